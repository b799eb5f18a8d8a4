"""What a live view knows about a run: its last logged update, and what earlier ones say about reward, speed and the
remaining time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rlcluster.runs.status import Saved

REWARDS = 240  # points of the reward's history; halved in resolution when they are full
RECENT = 50  # updates over which the remaining time is estimated


class Snapshot(NamedTuple):
    """One moment of a run."""

    title: str
    status: str
    progress: float  # share of the budget that is spent
    record: Mapping[str, Any] | None  # the last logged update; None before the first
    rewards: Sequence[float]  # means over 100 episodes, from the beginning of the run
    remaining_seconds: float | None
    saved: Saved | None  # the last checkpoint

    def ended(self, is_finished: bool) -> Snapshot:
        """A finished run has no time to go; at a target reward its budget may not be spent."""
        if is_finished:
            return self._replace(progress=1.0, remaining_seconds=0.0)
        return self._replace(remaining_seconds=None)


class RemainingTime:
    """The ETA, from the progress over the last updates."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=RECENT)

    def seconds(self, elapsed_seconds: float, progress: float) -> float | None:
        """Of a run that has trained for `elapsed_seconds`; None while its speed is unknown."""
        self._points.append((elapsed_seconds, progress))
        since, progress_then = self._points[0]
        if progress >= 1:
            return 0.0
        if progress <= progress_then or elapsed_seconds <= since:
            return None
        return (elapsed_seconds - since) * (1 - progress) / (progress - progress_then)


class History:
    """Collects the updates of one run."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._remaining = RemainingTime()
        self._rewards: list[float] = []
        self._every, self._skipped = 1, 0
        self._last: tuple[Mapping[str, Any] | None, float, float | None] = (None, 0.0, None)

    def add(self, record: Mapping[str, Any], progress: float) -> None:
        before = self._last[0] or {}
        if record.get("episode_length_mean") is None:  # no episode ended in this update: the last known one
            record = {**record, "episode_length_mean": before.get("episode_length_mean")}
        self._last = record, progress, self._remaining.seconds(record["elapsed_seconds"], progress)
        reward = record.get("episode_reward_recent")
        self._skipped += 1
        if reward is None or self._skipped < self._every:
            return
        self._skipped = 0
        self._rewards.append(reward)
        if len(self._rewards) >= REWARDS:
            self._rewards, self._every = self._rewards[::2], 2 * self._every

    def snapshot(self, status: str = "running", saved: Saved | None = None) -> Snapshot:
        record, progress, remaining = self._last
        return Snapshot(self._title, status, progress, record, list(self._rewards), remaining, saved)
