"""Curves of a run from its metrics, as pure functions: the updates are split into equal slices, one point per slice.

A point of the reward curve is the mean over *all episodes* that finished in its slice (every episode counts once, as in
the log), with the 95 % interval of that mean if there are enough of them. There is no other smoothing: neighbouring
points share no episodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rlcluster.reports.statistics import MIN_EPISODES, NORMAL_QUANTILE
from rlcluster.runs.metrics import Column, Metrics

MAX_POINTS = 100
MIN_POINTS = 10
EPISODES_PER_POINT = 100  # at least, if the run has enough episodes

SCORE_STEPS = 100_000  # a score during training is the mean over the episodes of this many steps

PHASES = ("rollout", "learn", "sync", "idle")


class Quantity(NamedTuple):
    """Something a run has a curve of, as titles and axes name it."""

    title: str
    unit: str
    is_from_zero: bool = False  # its axis begins at 0


QUANTITIES = {
    "reward": Quantity("Episode reward", "mean training reward"),
    "fps": Quantity("Speed", "steps/s", is_from_zero=True),
    "timesteps": Quantity("Timesteps against wall-clock", "steps", is_from_zero=True),
    "policy_loss": Quantity("Policy loss", "policy loss"),
    "value_loss": Quantity("Value loss", "value loss", is_from_zero=True),
    "entropy": Quantity("Entropy of the policy", "nats", is_from_zero=True),
    "approx_kl": Quantity("KL divergence of an update", "approx_kl (nats)", is_from_zero=True),
    "explained_variance": Quantity("Explained variance of the value", "share of variance"),
    "action_information": Quantity("Action information", "nats", is_from_zero=True),
}
DIAGNOSTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "explained_variance", "action_information")


class Curve(NamedTuple):
    """Points [K] at the ends of their slices; NaN for a slice without data."""

    steps: Column
    seconds: Column
    values: Column
    low: Column
    high: Column
    per_point: float  # episodes or updates in a point, on average


def run_curves(metrics: Metrics) -> Mapping[str, Curve]:
    """A curve of each of QUANTITIES."""
    speed = fps_curve(metrics)
    diagnostics = {name: mean_curve(metrics, name) for name in DIAGNOSTICS}
    return {"reward": reward_curve(metrics), "fps": speed, "timesteps": _timesteps(speed), **diagnostics}


class Slices(NamedTuple):
    """Consecutive slices of a run [K]: where each ends, and the episodes that finished in it."""

    steps: Column
    seconds: Column
    episodes: Column
    rewards: Column  # mean over these episodes; NaN if there are none

    def score_at(self, step: float) -> float | None:
        """The mean reward of the episodes that finished in the SCORE_STEPS steps before `step`; None if there are none.
        A slice that lies partly before them counts with that share of its episodes.
        """
        begins = np.concatenate([[0.0], self.steps[:-1]])
        inside = np.minimum(self.steps, step) - np.maximum(begins, step - SCORE_STEPS)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.nan_to_num(np.clip(inside, 0.0, None) / (self.steps - begins))
        weights = np.where(np.isnan(self.rewards), 0.0, shares * self.episodes)
        return float((weights * np.nan_to_num(self.rewards)).sum() / weights.sum()) if weights.any() else None


def slices_of(metrics: Metrics, num_slices: int | None = None) -> Slices:
    """Equal slices of the updates; one per update if `num_slices` is None."""
    starts = _starts(len(metrics), num_slices or len(metrics))
    ends = np.append(starts[1:], len(metrics)) - 1
    rewards = metrics["episode_reward_mean"]
    counts = np.where(np.isnan(rewards), 0.0, metrics["episode_count"])
    episodes, total = (np.add.reduceat(np.nan_to_num(column), starts) for column in (counts, counts * rewards))
    with np.errstate(divide="ignore", invalid="ignore"):
        means = total / episodes
    return Slices(metrics["steps_global"][ends], metrics["elapsed_seconds"][ends], episodes, means)


def reward_curve(metrics: Metrics) -> Curve:
    """Mean episode reward; the interval treats episodes as independent, and takes at least MIN_EPISODES."""
    mean, std = metrics["episode_reward_mean"], metrics["episode_reward_std"]
    counts = np.where(np.isnan(mean), 0.0, metrics["episode_count"])
    total = counts.sum()
    starts = _starts(len(metrics), int(np.clip(total // EPISODES_PER_POINT, MIN_POINTS, MAX_POINTS)))
    count, first, second = (
        np.add.reduceat(np.nan_to_num(column), starts)
        for column in (counts, counts * mean, counts * (np.nan_to_num(std) ** 2 + mean**2))
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        values = first / count
        variance = np.maximum(second / count - values**2, 0) * count / (count - 1)
        margin = np.where(count >= MIN_EPISODES, NORMAL_QUANTILE * np.sqrt(variance / count), np.nan)
    return _curve(metrics, starts, values, margin, float(total / len(starts)))


def fps_curve(metrics: Metrics) -> Curve:
    """Environment steps of a slice divided by the seconds of its updates."""
    starts = _starts(len(metrics), MAX_POINTS)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.add.reduceat(np.nan_to_num(metrics["fps"] * metrics["t_iter"]), starts)
        values = steps / np.add.reduceat(np.nan_to_num(metrics["t_iter"]), starts)
    return _curve(metrics, starts, values, np.full(len(starts), np.nan), len(metrics) / len(starts))


def _timesteps(speed: Curve) -> Curve:
    """Environment steps over time, from the start of the run."""
    start = np.zeros(1)
    steps, seconds = np.append(start, speed.steps), np.append(start, speed.seconds)
    unknown = np.full(len(steps), np.nan)
    return Curve(steps, seconds, steps, unknown, unknown, speed.per_point)


def mean_curve(metrics: Metrics, name: str) -> Curve:
    """The mean of a column over the updates that have it."""
    starts, column = _starts(len(metrics), MAX_POINTS), metrics[name]
    with np.errstate(divide="ignore", invalid="ignore"):
        count = np.add.reduceat((~np.isnan(column)).astype(float), starts)
        values = np.add.reduceat(np.nan_to_num(column), starts) / count
    return _curve(metrics, starts, values, np.full(len(starts), np.nan), len(metrics) / len(starts))


def phase_seconds(metrics: Metrics) -> dict[str, float]:
    """Seconds per update in each phase, averaged over the run. `idle` is the rest: logging and, for IMPALA with actors,
    the time the learner waits for them, which its log counts as rollout.
    """
    mean = {name: float(np.nan_to_num(metrics[f"t_{name}"]).mean()) for name in ("iter", "rollout", "learn", "sync")}
    if not np.isnan(metrics["learner_idle"]).all():
        mean["rollout"] = 0.0
    phases = {name: mean[name] for name in ("rollout", "learn", "sync")}
    return {**phases, "idle": max(0.0, mean["iter"] - sum(phases.values()))}


def _starts(num_updates: int, num_points: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The first update of each slice."""
    num_points = min(num_points, num_updates)
    return np.arange(num_points) * num_updates // num_points


def _curve(metrics: Metrics, starts: np.ndarray, values: Column, margin: Column, per_point: float) -> Curve:  # type: ignore[type-arg]
    ends = np.append(starts[1:], len(metrics)) - 1
    return Curve(
        metrics["steps_global"][ends],
        metrics["elapsed_seconds"][ends],
        values,
        values - margin,
        values + margin,
        per_point,
    )
