"""Whole trajectories, with V-trace targets of the policy that learns: IMPALA.

An update is one batch: all rollouts that are ready, in chunks of whole trajectories, for each has its targets within
itself. The targets come from the very forward pass whose loss is learnt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rlcluster.exchange.ranks import Ranks
from rlcluster.learning.losses import Loss, LossSums, Samples
from rlcluster.learning.model import Model
from rlcluster.learning.rollout import Rollout
from rlcluster.learning.sums import Normal, moments, normal_from, spread
from rlcluster.learning.targets import Targets, VtraceCoefficients, vtrace
from rlcluster.networks.policy import ActorCritic, PolicyOutput
from rlcluster.settings.schema import Settings


class Trajectories:
    """Makes the updates of a run."""

    def __init__(self, settings: Settings, model: Model, ranks: Ranks, chunk_size: int) -> None:
        training = settings.training
        self._policy, self._ranks, self._chunk_size = model.policy, ranks, chunk_size
        self._normalizes = training.normalize_advantages
        self._coefficients = VtraceCoefficients(training.gamma, training.gae_lambda, training.rho_bar, training.c_bar)

    def __call__(self, rollouts: Sequence[Rollout], rewards: Sequence[Tensor]) -> TrajectoryUpdate:
        completed = [self._completed(rollout, own) for rollout, own in zip(rollouts, rewards, strict=True)]
        chunks = [
            Chunk(rollout, slice(start, start + num_envs), self._coefficients)
            for rollout in completed
            for num_envs in [max(1, self._chunk_size // rollout.n_steps)]
            for start in range(0, rollout.num_envs, num_envs)
        ]
        num_own = sum(rollout.rewards.numel() for rollout in completed)
        num_samples = float(self._ranks.sum_(torch.tensor([num_own], dtype=torch.float64)))
        return TrajectoryUpdate(chunks, num_own, num_samples, self._advantage_statistics(chunks))

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
                sums += moments(targets.advantages)
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

    def losses(self, policy: ActorCritic, loss: Loss) -> Iterator[LossSums]:
        for chunk in self._chunks:
            output = chunk.forward(policy)
            targets, values = chunk.targets(output)
            self._spread += spread(targets.returns, values)
            yield loss(output, self._normal.applied_to(chunk.samples(targets)))

    def spread(self) -> Tensor:
        return self._spread


class Chunk:
    """The trajectories of some environments of a rollout."""

    def __init__(self, rollout: Rollout, envs: slice, coefficients: VtraceCoefficients) -> None:
        self._rollout, self._envs, self._coefficients = rollout, envs, coefficients

    def forward(self, policy: ActorCritic) -> PolicyOutput:
        """[T * n]"""
        output: PolicyOutput = policy(self._rollout.observations[:, self._envs].flatten(0, 1))
        return output

    def targets(self, output: PolicyOutput) -> tuple[Targets, Tensor]:
        """[T, n], and the values that they correct."""
        rollout, envs = self._rollout, self._envs
        logits = output.logits.detach().view(rollout.n_steps, -1, output.logits.shape[-1])
        values = output.values.detach().view(rollout.n_steps, -1)
        actions, dones, log_probs = (column[:, envs] for column in (rollout.actions, rollout.dones, rollout.log_probs))
        log_ratios = torch.log_softmax(logits, -1).gather(-1, actions.unsqueeze(-1)).squeeze(-1) - log_probs
        given = rollout.next_values[:, envs]
        next_values = torch.where(dones, given, torch.cat([values[1:], given[-1:]]))
        rewards = rollout.rewards[:, envs]
        return vtrace(rewards, values, next_values, dones, log_ratios, self._coefficients), values

    def samples(self, targets: Targets) -> Samples:
        rollout = self._rollout
        given = (column[:, self._envs] for column in (rollout.actions, rollout.log_probs, rollout.values))
        return Samples(*(column.flatten() for column in (*given, *targets)))
