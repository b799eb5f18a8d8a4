"""Trajectories with V-trace targets of the policy that learns: IMPALA.

An update takes all rollouts that it is given, in chunks of whole trajectories, for each has its targets within itself.

- One epoch of one minibatch without clipping is the paper's IMPALA: the targets come from the very forward pass whose
  loss is learnt.
- Otherwise the policy at the start of the update computes the targets, by a forward pass of its own. Then come epochs
  of shuffled minibatches: of whole trajectories with the plain policy gradient, or of samples with PPO's clipped loss
  (APPO, "asynchronous PPO"). What it clips is the ratio to the policy that acted. That limits how far the policy moves
  in all updates since then, the lag included, and it corrects for the lag: so these advantages lack V-trace's rho.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rlcluster.exchange.ranks import Ranks
from rlcluster.learning.losses import Loss, LossSums, Samples
from rlcluster.learning.minibatches import Minibatch, make_minibatches, statistics_of
from rlcluster.learning.model import Model
from rlcluster.learning.rollout import Rollout
from rlcluster.learning.shuffle import sample_slices, trajectory_slices
from rlcluster.learning.sums import Normal, moments, normal_from, spread
from rlcluster.learning.targets import Targets, VtraceCoefficients, VtraceTargets, vtrace
from rlcluster.networks.policy import Policy, PolicyOutput, log_probs_of
from rlcluster.settings.schema import Settings
from rlcluster.system.phases import clock


class Trajectories:
    """Makes the updates of a run."""

    def __init__(self, settings: Settings, model: Model, ranks: Ranks, chunk_size: int) -> None:
        training = settings.training
        self._settings, self._model, self._ranks, self._chunk_size = settings, model, ranks, chunk_size
        self._policy, self._normalizes = model.policy, training.normalize_advantages
        self._coefficients = VtraceCoefficients(training.gamma, training.gae_lambda, training.rho_bar, training.c_bar)

    def __call__(self, rollouts: Sequence[Rollout], rewards: Sequence[Tensor]) -> TrajectoryUpdate | ShuffledUpdate:
        completed = [self._completed(rollout, own) for rollout, own in zip(rollouts, rewards, strict=True)]
        chunks = [
            Chunk(rollout, slice(start, start + num_envs), self._coefficients)
            for rollout in completed
            for num_envs in [max(1, self._chunk_size // rollout.n_steps)]
            for start in range(0, rollout.num_envs, num_envs)
        ]
        if self._settings.learns_in_one_pass:
            num_own = sum(rollout.rewards.numel() for rollout in completed)
            num_samples = float(self._ranks.sum_(torch.tensor([num_own], dtype=torch.float64)))
            return TrajectoryUpdate(chunks, num_own, num_samples, self._advantage_statistics(chunks))
        return self._shuffled(completed, chunks)

    def _shuffled(self, rollouts: Sequence[Rollout], chunks: Sequence[Chunk]) -> ShuffledUpdate:
        """With the targets of the policy as it is now."""
        columns: list[Samples] = []
        own_spread = torch.zeros(4, dtype=torch.float64)
        with torch.no_grad():
            for chunk in chunks:
                output = chunk.forward(self._policy)
                targets, values = chunk.targets(output)
                own_spread += spread(targets.returns, values)
                fixed = targets.unweighted() if self._settings.is_clipped else targets.weighted()
                columns.append(chunk.fixed_samples(values, fixed))
        samples = Samples(*(torch.cat(parts, 1).flatten() for parts in zip(*columns, strict=True)))
        observations = rollouts[0].observations
        if len(rollouts) > 1:
            observations = torch.cat([rollout.observations for rollout in rollouts], 1)
        envs = torch.cat([rollout.envs for rollout in rollouts]).tolist()
        return ShuffledUpdate(self, observations.flatten(0, 1), samples, envs, own_spread)

    def cut(self, epoch: int, observations: Tensor, samples: Samples, envs: Sequence[int]) -> list[Minibatch]:
        """The minibatches of an epoch over the trajectories of `envs`."""
        settings = self._settings
        position = self._model.updates * settings.n_epochs + epoch
        given = settings.env.seed, envs, position, len(samples.actions) // len(envs), settings.num_minibatches
        slices = sample_slices(*given) if settings.is_clipped else trajectory_slices(*given, settings.env.num_envs)
        statistics = statistics_of(slices, samples.advantages, self._normalizes, self._ranks)
        return make_minibatches(observations, samples, slices, statistics, self._chunk_size)

    def _completed(self, rollout: Rollout, rewards: Tensor) -> Rollout:
        """The rollout with these rewards, and with bootstrap values from the policy that learns."""
        with torch.no_grad():
            last_values = self._policy(rollout.last_observations).values
        next_values = rollout.next_values.clone()
        next_values[-1] = torch.where(rollout.dones[-1], next_values[-1], last_values)
        return replace(rollout, rewards=rewards, next_values=next_values)

    def _advantage_statistics(self, chunks: Sequence[Chunk]) -> Normal:
        """Over all ranks, by a forward pass of its own. Those of the policy that acted would save it, but after a step
        that moves the values they are far from what is learnt: such runs were seen to lose all entropy.
        """
        if not self._normalizes:
            return Normal()
        sums = torch.zeros(3, dtype=torch.float64)
        with torch.no_grad():
            for chunk in chunks:
                targets, _ = chunk.targets(chunk.forward(self._policy))
                sums += moments(targets.weighted().advantages)
        return normal_from(*self._ranks.sum_(sums).tolist())


class TrajectoryUpdate:
    """All trajectories that an update takes, as its one batch."""

    def __init__(self, chunks: Sequence[Chunk], num_own: int, num_samples: float, normal: Normal) -> None:
        self.num_own, self.num_samples = num_own, num_samples
        self._chunks, self._normal = chunks, normal
        self._spread = torch.zeros(4, dtype=torch.float64)

    def batches(self, epoch: int) -> list[TrajectoryUpdate]:
        del epoch  # there is one
        return [self]

    def losses(self, policy: Policy, loss: Loss) -> Iterator[LossSums]:
        for chunk in self._chunks:
            output = chunk.forward(policy)
            with clock("targets"):
                targets, values = chunk.targets(output)
                self._spread += spread(targets.returns, values)
            with clock("loss"):
                losses = loss(output, self._normal.applied_to(chunk.samples(targets.weighted())))
            yield losses

    def spread(self) -> Tensor:
        return self._spread


class ShuffledUpdate:
    """Samples with fixed targets, shuffled again for every epoch."""

    def __init__(
        self, source: Trajectories, observations: Tensor, samples: Samples, envs: Sequence[int], own_spread: Tensor
    ) -> None:
        self._source, self._observations, self._samples = source, observations, samples
        self._envs, self._spread = envs, own_spread

    def batches(self, epoch: int) -> list[Minibatch]:
        return self._source.cut(epoch, self._observations, self._samples, self._envs)

    def spread(self) -> Tensor:
        return self._spread


class Chunk:
    """The trajectories of some environments of a rollout."""

    def __init__(self, rollout: Rollout, envs: slice, coefficients: VtraceCoefficients) -> None:
        self._rollout, self._envs, self._coefficients = rollout, envs, coefficients

    def forward(self, policy: Policy) -> PolicyOutput:
        """[T * n]"""
        with clock("gather"):
            rows = self._rollout.observations[:, self._envs].flatten(0, 1)
        with clock("forward", len(rows)):
            output: PolicyOutput = policy(rows)
        return output

    def targets(self, output: PolicyOutput) -> tuple[VtraceTargets, Tensor]:
        """[T, n], and the values that they correct."""
        rollout, envs = self._rollout, self._envs
        logits = output.logits.detach().view(rollout.n_steps, -1, output.logits.shape[-1])
        values = output.values.detach().view(rollout.n_steps, -1)
        actions, dones, log_probs = (column[:, envs] for column in (rollout.actions, rollout.dones, rollout.log_probs))
        log_ratios = log_probs_of(logits, actions) - log_probs
        given = rollout.next_values[:, envs]
        next_values = torch.where(dones, given, torch.cat([values[1:], given[-1:]]))
        rewards = rollout.rewards[:, envs]
        return vtrace(rewards, values, next_values, dones, log_ratios, self._coefficients), values

    def samples(self, targets: Targets) -> Samples:
        rollout = self._rollout
        given = (column[:, self._envs] for column in (rollout.actions, rollout.log_probs, rollout.values))
        return Samples(*(column.flatten() for column in (*given, *targets)))

    def fixed_samples(self, values: Tensor, targets: Targets) -> Samples:
        """[T, n], with the `values` of the update's start."""
        actions, log_probs = (column[:, self._envs] for column in (self._rollout.actions, self._rollout.log_probs))
        return Samples(actions, log_probs, values, *targets)
