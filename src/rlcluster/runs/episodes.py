"""Finished episodes: every one counts, and their rewards are always raw."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlcluster.runs.reader import WINDOW


class EpisodeSummary(NamedTuple):
    """The episodes that finished in one update; None where there was none."""

    episode_count: int
    episode_reward_mean: float | None
    episode_reward_std: float | None
    episode_length_mean: float | None


class EpisodeHistory:
    """Averages over the last 100 finished episodes, and the first and best such average of the run."""

    def __init__(self) -> None:
        self._rewards: deque[float] = deque(maxlen=WINDOW)
        self._total = 0
        self.initial_reward: float | None = None
        self.best_reward: float | None = None

    def add(self, episodes: Tensor) -> EpisodeSummary:
        """`episodes` [K, 4]: step, environment, reward, length; in any order."""
        if not len(episodes):
            return EpisodeSummary(0, None, None, None)
        order = sorted(range(len(episodes)), key=lambda k: (episodes[k, 0].item(), episodes[k, 1].item()))
        rewards, lengths = episodes[order, 2].double(), episodes[order, 3].double()
        for reward in rewards.tolist():
            self._add_one(reward)
        std = rewards.std(correction=0).item()
        return EpisodeSummary(len(order), rewards.mean().item(), std, lengths.mean().item())

    def recent_reward(self) -> float | None:
        """Mean over the last 100 finished episodes, or over all while there are fewer."""
        return sum(self._rewards) / len(self._rewards) if self._rewards else None

    def recent_std(self) -> float | None:
        if not self._rewards:
            return None
        return torch.tensor(list(self._rewards), dtype=torch.float64).std(correction=0).item()

    def state(self) -> dict[str, Any]:
        return {
            "rewards": torch.tensor(list(self._rewards), dtype=torch.float64),
            "total": self._total,
            "initial_reward": self.initial_reward,
            "best_reward": self.best_reward,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._rewards = deque(state["rewards"].tolist(), maxlen=WINDOW)
        self._total = state["total"]
        self.initial_reward = state["initial_reward"]
        self.best_reward = state["best_reward"]

    def _add_one(self, reward: float) -> None:
        self._rewards.append(reward)
        self._total += 1
        mean = self.recent_reward()
        if self._total <= WINDOW:
            self.initial_reward = self.best_reward = mean
        elif mean is not None and self.best_reward is not None:
            self.best_reward = max(self.best_reward, mean)
