"""Finished episodes: every one counts, and their rewards are always raw."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from rlcluster.runs.fields import WINDOW


class Episode(NamedTuple):
    """One that has finished."""

    step: int  # of the rollout in which it finished
    env: int
    reward: float
    length: int


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

    def add(self, episodes: Sequence[Episode]) -> EpisodeSummary:
        """In any order: they count in that of their steps and environments."""
        if not episodes:
            return EpisodeSummary(0, None, None, None)
        rewards = [episode.reward for episode in sorted(episodes, key=lambda one: (one.step, one.env))]
        for reward in rewards:
            self._add_one(reward)
        length = sum(episode.length for episode in episodes) / len(episodes)
        return EpisodeSummary(len(episodes), _mean(rewards), _std(rewards), length)

    @property
    def total(self) -> int:
        """Episodes that have finished so far."""
        return self._total

    def recent_reward(self) -> float | None:
        """Mean over the last 100 finished episodes, or over all while there are fewer."""
        return _mean(self._rewards) if self._rewards else None

    def full_recent_reward(self) -> float | None:
        """Mean over the last 100 finished episodes; None while there are fewer."""
        return self.recent_reward() if len(self._rewards) == WINDOW else None

    def recent_std(self) -> float | None:
        return _std(self._rewards) if self._rewards else None

    def state(self) -> dict[str, Any]:
        return {
            "rewards": list(self._rewards),
            "total": self._total,
            "initial_reward": self.initial_reward,
            "best_reward": self.best_reward,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """`rewards` may be a tensor: earlier versions kept one."""
        self._rewards = deque(map(float, state["rewards"]), maxlen=WINDOW)
        self._total = state["total"]
        self.initial_reward = state["initial_reward"]
        self.best_reward = state["best_reward"]

    def _add_one(self, reward: float) -> None:
        self._rewards.append(reward)
        self._total += 1
        mean = _mean(self._rewards)
        if self._total <= WINDOW:
            self.initial_reward = self.best_reward = mean
        elif self.best_reward is not None:
            self.best_reward = max(self.best_reward, mean)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _std(values: Sequence[float]) -> float:
    """Of the values themselves: divided by their number."""
    mean = _mean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
