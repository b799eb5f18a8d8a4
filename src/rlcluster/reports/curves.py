"""Curves of a run from its metrics, as pure functions: the updates are split into equal slices, one point per slice.

A point of the reward curve is the mean over *all episodes* that finished in its slice (every episode counts once, as in
the log), with the 95 % interval of that mean. There is no other smoothing: neighbouring points share no episodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlcluster.reports.statistics import NORMAL_QUANTILE
from rlcluster.runs.metrics import Column, Metrics

MAX_POINTS = 100
MIN_POINTS = 10
EPISODES_PER_POINT = 100  # at least, if the run has enough episodes

PHASES = ("rollout", "learn", "sync", "idle")


class Curve(NamedTuple):
    """Points [K] at the ends of their slices; NaN for a slice without data."""

    steps: Column
    seconds: Column
    values: Column
    low: Column
    high: Column
    per_point: float  # episodes or updates in a point, on average


def reward_curve(metrics: Metrics) -> Curve:
    """Mean episode reward; the interval treats episodes as independent."""
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
        margin = np.where(count > 1, NORMAL_QUANTILE * np.sqrt(variance / count), np.nan)
    return _curve(metrics, starts, values, margin, float(total / len(starts)))


def fps_curve(metrics: Metrics) -> Curve:
    """Environment steps of a slice divided by the seconds of its updates."""
    starts = _starts(len(metrics), MAX_POINTS)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.add.reduceat(np.nan_to_num(metrics["fps"] * metrics["t_iter"]), starts)
        values = steps / np.add.reduceat(np.nan_to_num(metrics["t_iter"]), starts)
    return _curve(metrics, starts, values, np.full(len(starts), np.nan), len(metrics) / len(starts))


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
