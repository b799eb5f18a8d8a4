"""How fast runs learn: their mean reward up to a common end, and when they first reach a threshold.

The common end and the default threshold of a task are those of its finished runs: a run that has failed or just begun
decides nothing about the others. Where no run of a task has finished, all of them decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rlcluster.reports import statistics
from rlcluster.reports.method_curves import AXES
from rlcluster.runs.fields import WINDOW
from rlcluster.runs.metrics import Column
from rlcluster.runs.reader import RecordedRun


class Reached(NamedTuple):
    """When a run's mean reward over 100 episodes first reached the threshold; None if it never did."""

    threshold: float
    steps: float | None
    seconds: float | None
    core_hours: float | None


def efficiency(runs: Sequence[RecordedRun]) -> list[Mapping[str, float | None]]:
    """The mean reward of each run until the shortest deciding run of its task ends, along each axis; None if it ended
    before.
    """
    curves = [_rewards(run) for run in runs]
    horizons = {
        task: {axis: _earliest_end([curves[k][axis] for k in positions]) for axis in AXES}
        for task, positions in _deciding(runs).items()
    }
    return [
        {
            str(axis): statistics.mean_until(own[axis], own["rewards"], horizon)
            for axis, horizon in horizons[run.task].items()
        }
        for run, own in zip(runs, curves, strict=True)
    ]


def reached(runs: Sequence[RecordedRun], threshold: float | None) -> list[Reached | None]:
    """The default threshold is the highest mean reward that every deciding run of the task has reached."""
    means = [_full_means(run) for run in runs]
    levels = {
        task: _common_level([means[k] for k in positions]) if threshold is None else threshold
        for task, positions in _deciding(runs).items()
    }
    return [_reached(run, values, levels[run.task]) for run, values in zip(runs, means, strict=True)]


def _reached(run: RecordedRun, means: Column, threshold: float | None) -> Reached | None:
    if threshold is None:
        return None
    axes = run.metrics["steps_global"], run.metrics["elapsed_seconds"], run.core_hours
    return Reached(threshold, *(statistics.first_reach(axis, means, threshold) for axis in axes))


def unfinished_tasks(runs: Sequence[RecordedRun]) -> list[str]:
    """Tasks of which no run has finished."""
    return sorted({run.task for run in runs} - {run.task for run in runs if run.is_finished})


def _deciding(runs: Sequence[RecordedRun]) -> dict[str, list[int]]:
    """task -> positions of the runs that decide its end and threshold."""
    unfinished = unfinished_tasks(runs)
    positions: dict[str, list[int]] = {}
    for k, run in enumerate(runs):
        if run.is_finished or run.task in unfinished:
            positions.setdefault(run.task, []).append(k)
    return positions


def _earliest_end(positions: Sequence[Column]) -> float:
    """0 without any point: there is no efficiency then."""
    return min((float(own[-1]) for own in positions if len(own)), default=0.0)


def _common_level(means: Sequence[Column]) -> float | None:
    """None if one of them has no mean."""
    if any(np.isnan(values).all() for values in means):
        return None
    return min(float(np.nanmax(values)) for values in means)


def _rewards(run: RecordedRun) -> dict[str, Column]:
    """Rewards of the updates with finished episodes, and their positions along each axis."""
    metrics = run.metrics
    known = ~np.isnan(metrics["episode_reward_mean"])
    axes = metrics["steps_global"], metrics["elapsed_seconds"], run.core_hours, metrics["episode_reward_mean"]
    return {name: column[known] for name, column in zip((*AXES, "rewards"), axes, strict=True)}


def _full_means(run: RecordedRun) -> Column:
    """Mean reward over the last 100 episodes at each update; NaN before the first 100."""
    is_full = np.cumsum(run.metrics["episode_count"]) >= WINDOW
    return np.where(is_full, run.metrics["episode_reward_recent"], np.nan)
