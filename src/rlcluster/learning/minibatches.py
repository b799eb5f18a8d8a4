"""Shuffled minibatches of single samples, with the targets of the policy that acted: PPO, A2C and A3C.

Minibatches are stratified: each environment's steps are shuffled by its own stream; minibatch k is the k-th slice of
each. So the global minibatch is the same set of samples for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlcluster.environments.randomness import Purpose, generator
from rlcluster.exchange.ranks import Ranks
from rlcluster.learning.losses import Loss, LossSums, Samples
from rlcluster.learning.model import Model
from rlcluster.learning.rollout import Rollout
from rlcluster.learning.sums import Normal, moments, normal_from, spread
from rlcluster.learning.targets import Targets, gae
from rlcluster.networks.policy import ActorCritic
from rlcluster.settings.schema import Settings


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
        observations, chunk_size = rollout.observations.flatten(0, 1), self._chunk_size
        return [
            Minibatch(observations, samples, indices, num_samples, normal, chunk_size)
            for indices, (num_samples, normal) in zip(slices, self.statistics(slices, samples.advantages), strict=True)
        ]

    def statistics(self, slices: Sequence[Tensor], advantages: Tensor) -> list[tuple[float, Normal]]:
        """The number of samples over all ranks in each slice, and what its advantages are normalised by."""
        normalizes = self._settings.training.normalize_advantages
        if not normalizes and not self._settings.parallel.preempt_stragglers:
            return [(self._settings.batch_size, Normal())] * len(slices)
        sums = torch.stack([moments(advantages[indices]) for indices in slices])
        rows = self._ranks.sum_(sums).tolist()
        return [(row[0], normal_from(*row) if normalizes else Normal()) for row in rows]

    def slices(self, epoch: int, n_steps: int) -> list[Tensor]:
        """The samples of each minibatch, as t * N + n."""
        envs, num_minibatches = self._model.envs, self._settings.num_minibatches
        if num_minibatches == 1:
            return [torch.arange(n_steps * len(envs))]
        position = self._model.updates * self._settings.n_epochs + epoch
        streams = (generator(self._settings.env.seed, Purpose.SHUFFLE, i, position) for i in envs)
        order = np.stack([stream.permutation(n_steps) for stream in streams], 1) * len(envs) + np.arange(len(envs))
        parts = np.array_split(order, num_minibatches)  # each [T / K, N]
        return [torch.from_numpy(part.reshape(-1)) for part in parts]


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

    observations: Tensor  # [T * N, ...] of the whole rollout
    samples: Samples  # [T * N] of the whole rollout
    indices: Tensor  # t * N + n of this rank's samples
    num_samples: float  # of all ranks
    normal: Normal
    chunk_size: int

    @property
    def num_own(self) -> int:
        return len(self.indices)

    def losses(self, policy: ActorCritic, loss: Loss) -> Iterator[LossSums]:
        own = self.normal.applied_to(Samples(*(column[self.indices] for column in self.samples)))
        for start in range(0, self.num_own, self.chunk_size):
            part = slice(start, start + self.chunk_size)
            rows = self.observations.index_select(0, self.indices[part])  # copies whole rows; [] copies values
            yield loss(policy(rows), Samples(*(column[part] for column in own)))


def flatten(rollout: Rollout, targets: Targets) -> Samples:
    """Samples [T * N], in the order of the rollout."""
    columns = (rollout.actions, rollout.log_probs, rollout.values, targets.advantages, targets.returns)
    return Samples(*(column.flatten() for column in columns))
