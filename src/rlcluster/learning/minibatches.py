"""Shuffled minibatches of samples, with the targets of the policy that acted: PPO, A2C and A3C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcluster.exchange.ranks import Ranks
from rlcluster.learning.losses import Loss, LossSums, Samples
from rlcluster.learning.model import Model
from rlcluster.learning.rollout import Rollout
from rlcluster.learning.shuffle import sample_slices
from rlcluster.learning.sums import Normal, moments, normal_from, spread
from rlcluster.learning.targets import Targets, gae
from rlcluster.networks.policy import Policy
from rlcluster.settings.schema import Settings
from rlcluster.system.phases import clock


class Minibatches:
    """Makes the updates of a run."""

    def __init__(self, settings: Settings, model: Model, ranks: Ranks, chunk_size: int) -> None:
        self._settings, self._model, self._ranks, self._chunk_size = settings, model, ranks, chunk_size

    def __call__(self, rollouts: Sequence[Rollout], rewards: Sequence[Tensor]) -> MinibatchUpdate:
        (rollout,), (own_rewards,) = rollouts, rewards
        return MinibatchUpdate(self, rollout, self.targets(rollout, own_rewards))

    def targets(self, rollout: Rollout, rewards: Tensor) -> Targets:
        gamma, lambda_ = self._settings.training.gamma, self._settings.training.gae_lambda
        return gae(rewards, rollout.values, rollout.next_values, rollout.dones, gamma, lambda_)

    def cut(self, epoch: int, rollout: Rollout, samples: Samples) -> list[Minibatch]:
        """The minibatches of an epoch, with the statistics of the advantages of all ranks' samples in each."""
        slices = self.slices(epoch, rollout.n_steps)
        statistics = self.statistics(slices, samples.advantages)
        return make_minibatches(rollout.observations.flatten(0, 1), samples, slices, statistics, self._chunk_size)

    def statistics(self, slices: Sequence[Tensor], advantages: Tensor) -> list[Statistics]:
        """Without an all-reduce where nothing depends on the data."""
        normalizes = self._settings.training.normalize_advantages
        if not normalizes and not self._settings.parallel.preempt_stragglers:
            return [Statistics(self._settings.batch_size, Normal())] * len(slices)
        return statistics_of(slices, advantages, normalizes, self._ranks)

    def slices(self, epoch: int, n_steps: int) -> list[Tensor]:
        """The samples of each minibatch."""
        position = self._model.updates * self._settings.n_epochs + epoch
        seed, num_minibatches = self._settings.env.seed, self._settings.num_minibatches
        return sample_slices(seed, self._model.envs, position, n_steps, num_minibatches)


class MinibatchUpdate:
    """One rollout; its targets are computed once, the samples are shuffled again for every epoch."""

    def __init__(self, source: Minibatches, rollout: Rollout, targets: Targets) -> None:
        self._source, self._rollout, self._targets = source, rollout, targets
        self._samples = flatten(rollout, targets)

    def batches(self, epoch: int) -> list[Minibatch]:
        return self._source.cut(epoch, self._rollout, self._samples)

    def spread(self) -> Tensor:
        return spread(self._targets.returns, self._rollout.values)


@dataclass(frozen=True)
class Minibatch:
    """This rank's samples of a minibatch, and what is known of all ranks' samples in it."""

    observations: Tensor  # [S, ...] of all samples of the update
    samples: Samples  # [S]
    indices: Tensor  # of this rank's samples of the minibatch
    num_samples: float  # of all ranks
    normal: Normal
    chunk_size: int

    @property
    def num_own(self) -> int:
        return len(self.indices)

    def losses(self, policy: Policy, loss: Loss) -> Iterator[LossSums]:
        with clock("gather"):
            own = self.normal.applied_to(Samples(*(column[self.indices] for column in self.samples)))
        for start in range(0, self.num_own, self.chunk_size):
            part = slice(start, start + self.chunk_size)
            with clock("gather"):
                rows = self.observations.index_select(0, self.indices[part])  # copies whole rows; [] copies values
                samples = Samples(*(column[part] for column in own))
            with clock("forward", len(rows)):
                output = policy(rows)
            with clock("loss"):
                losses = loss(output, samples)
            yield losses


@dataclass(frozen=True)
class Statistics:
    """Of a minibatch, over all ranks."""

    num_samples: float
    normal: Normal  # of its advantages


def statistics_of(slices: Sequence[Tensor], advantages: Tensor, normalizes: bool, ranks: Ranks) -> list[Statistics]:
    """Of each slice, by one all-reduce."""
    sums = torch.stack([moments(advantages[indices]) for indices in slices])
    rows = ranks.sum_(sums).tolist()
    return [Statistics(row[0], normal_from(*row) if normalizes and row[0] else Normal()) for row in rows]


def make_minibatches(
    observations: Tensor,
    samples: Samples,
    slices: Sequence[Tensor],
    statistics: Sequence[Statistics],
    chunk_size: int,
) -> list[Minibatch]:
    """Those that have a sample on some rank."""
    return [
        Minibatch(observations, samples, indices, one.num_samples, one.normal, chunk_size)
        for indices, one in zip(slices, statistics, strict=True)
        if one.num_samples
    ]


def flatten(rollout: Rollout, targets: Targets) -> Samples:
    """Samples [T * N], in the order of the rollout."""
    columns = (rollout.actions, rollout.log_probs, rollout.values, targets.advantages, targets.returns)
    return Samples(*(column.flatten() for column in columns))
