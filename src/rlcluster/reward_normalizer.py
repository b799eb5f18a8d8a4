"""Rewards divided by the running standard deviation of the discounted return, as train-procgen does.

The statistics are (count, sum, sum of squares), so those of many ranks merge by addition: once per rollout, before
that rollout's rewards are scaled.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlcluster.collectives import Ranks

EPSILON = 1e-8


class RewardNormalizer:
    def __init__(self, env_indices: range, gamma: float, clip: float, ranks: Ranks) -> None:
        self._env_indices, self._gamma, self._clip, self._ranks = env_indices, gamma, clip, ranks
        self._returns = torch.zeros(len(env_indices), dtype=torch.float64)  # [N] discounted, of this episode
        self._moments = torch.zeros(3, dtype=torch.float64)  # count, sum, sum of squares

    def __call__(self, rewards: Tensor, dones: Tensor) -> Tensor:
        """The scaled rewards [T, N] of one rollout; its own returns are part of the statistics."""
        returns = self._discounted_returns(rewards.double(), dones)
        own = torch.stack([torch.tensor(float(returns.numel())), returns.sum(), returns.square().sum()])
        self._moments += self._ranks.sum_(own)
        return (rewards / self.scale()).clamp(-self._clip, self._clip)

    def scale(self) -> float:
        """The standard deviation of all discounted returns so far."""
        count, total, squares = self._moments.tolist()
        return float((max(0.0, squares / count - (total / count) ** 2) + EPSILON) ** 0.5)

    def forget_episodes(self) -> None:
        self._returns.zero_()

    def state(self) -> dict[str, Any]:
        """Of all ranks."""
        return {"returns": self._ranks.gather_rows(self._returns.clone()), "moments": self._moments.clone()}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes the returns of its own environments."""
        self._returns.copy_(state["returns"][list(self._env_indices)])
        self._moments.copy_(state["moments"])

    def _discounted_returns(self, rewards: Tensor, dones: Tensor) -> Tensor:
        returns = torch.empty_like(rewards)
        for t in range(len(rewards)):
            self._returns = self._returns * self._gamma + rewards[t]
            returns[t] = self._returns
            self._returns = self._returns * (~dones[t])
        return returns
