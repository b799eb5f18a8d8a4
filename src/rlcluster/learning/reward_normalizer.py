"""Rewards divided by the running standard deviation of the discounted return, as train-procgen does.

The statistics are (count, sum, sum of squares), so those of many ranks merge by addition: once per rollout, before
that rollout's rewards are scaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rlcluster.exchange.ranks import Ranks
from rlcluster.learning.rollout import Rollout

EPSILON = 1e-8


class RewardNormalizer:
    def __init__(self, env_indices: range, gamma: float, clip: float, ranks: Ranks) -> None:
        self._env_indices, self._gamma, self._clip, self._ranks = env_indices, gamma, clip, ranks
        self._returns = torch.zeros(
            len(env_indices), dtype=torch.float64
        )  # [N] discounted return of the running episode
        self._moments = torch.zeros(3, dtype=torch.float64)  # count, sum, sum of squares

    def __call__(self, rollouts: Sequence[Rollout]) -> list[Tensor]:
        """The scaled rewards [T, N] of each rollout, whose own returns are part of the statistics. Rollouts of the same
        environment are given in the order of play.
        """
        own = torch.zeros(3, dtype=torch.float64)
        for rollout in rollouts:
            returns = self._discounted_returns(rollout)
            own += torch.stack([torch.tensor(float(returns.numel())), returns.sum(), returns.square().sum()])
        self._moments += self._ranks.sum_(own)
        scale = self.scale()
        return [(rollout.rewards / scale).clamp(-self._clip, self._clip) for rollout in rollouts]

    def scale(self) -> float:
        """The standard deviation of all discounted returns so far."""
        count, total, squares = self._moments.tolist()
        return float((max(0.0, squares / count - (total / count) ** 2) + EPSILON) ** 0.5)

    def forget_episodes(self) -> None:
        """The environments start new episodes: drops the running returns."""
        self._returns.zero_()

    def state(self) -> dict[str, Any]:
        """The statistics and running returns of all ranks."""
        return {"returns": self._ranks.gather_rows(self._returns.clone()), "moments": self._moments.clone()}

    def restore(self, state: dict[str, Any]) -> None:
        """Keeps the running returns of its own environments only."""
        self.set(state["returns"][list(self._env_indices)], state["moments"])

    def set(self, returns: Tensor, moments: Tensor) -> None:
        if (returns.shape, moments.shape) != (self._returns.shape, self._moments.shape):  # copy_ would broadcast
            raise ValueError(f"reward statistics of shapes {list(returns.shape)} and {list(moments.shape)}")
        self._returns.copy_(returns)
        self._moments.copy_(moments)

    def _discounted_returns(self, rollout: Rollout) -> Tensor:
        places = rollout.envs - self._env_indices.start
        rewards, running = rollout.rewards.double(), self._returns[places]
        returns = torch.empty_like(rewards)
        for t in range(len(rewards)):
            running = running * self._gamma + rewards[t]
            returns[t] = running
            running = running * (~rollout.dones[t])
        self._returns[places] = running
        return returns
