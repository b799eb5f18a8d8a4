"""Curves of methods: those of their runs, on common positions, with a band over the runs.

The line is the interquartile mean of the runs (of fewer than four, the mean). The band says how far the runs differ:
from MIN_RUNS runs on it is the 95 % interval of the line (bootstrap, runs resampled within each game), below that the
lowest and the highest run. A method with one run keeps that run's own band, over its episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from rlcluster.reports.curves import Curve
from rlcluster.reports.statistics import CONFIDENCE, Array, has_interval, iqm, resample

Axis = Literal["steps", "seconds", "core_hours"]
AXES: tuple[Axis, ...] = ("steps", "seconds", "core_hours")
BandKind = Literal["interval", "range", "episodes", "none"]
BAND_TEXTS: dict[BandKind, str] = {
    "interval": "95 % interval over runs",
    "range": "lowest to highest run",
    "episodes": "95 % interval over the episodes of the one run",
    "none": "none",
}
IQM_RUNS = 4  # of fewer, the interquartile mean is the mean
POINTS = 100
RESAMPLES = 500


class Line(NamedTuple):
    """The known points [K] of one run along one axis, with their bands."""

    positions: Array
    values: Array
    low: Array
    high: Array


class MethodCurve(NamedTuple):
    """Points [K] of a method along one axis; NaN bounds: no band there."""

    positions: Array
    values: Array
    low: Array
    high: Array
    band: BandKind
    num_runs: int


def line_of(curve: Curve, axis: Axis, num_cores: int) -> Line:
    known = ~np.isnan(curve.values)
    core_hours = curve.seconds * num_cores / 3600
    positions = {"steps": curve.steps, "seconds": curve.seconds, "core_hours": core_hours}[axis]
    return Line(*(column[known] for column in (positions, curve.values, curve.low, curve.high)))


def method_curve(lines: Mapping[str, Sequence[Line]]) -> MethodCurve | None:
    """`lines` of the runs of each game. The curve begins where the last run begins and ends where the first one ends:
    every point has all runs. None if a run has no point.
    """
    runs = [line for game in lines.values() for line in game]
    if not runs or any(not len(line.positions) for line in runs):
        return None
    if len(runs) == 1:
        (line,) = runs
        return MethodCurve(*line, "none" if np.isnan(line.low).all() else "episodes", 1)
    grid = _common_positions(runs)
    values = {
        game: np.stack([np.interp(grid, line.positions, line.values) for line in own], -1)  # [K, n]
        for game, own in lines.items()
    }
    low, high, band = _band(values)
    return MethodCurve(grid, iqm(list(values.values())), low, high, band, len(runs))


def _common_positions(runs: Sequence[Line]) -> Array:
    begin = max(float(line.positions[0]) for line in runs)
    end = min(float(line.positions[-1]) for line in runs)
    points = min(POINTS, max(len(line.positions) for line in runs))
    return np.linspace(begin, end, points) if begin < end else np.array([end])


def _band(values: Mapping[str, Array]) -> tuple[Array, Array, BandKind]:
    """Bounds [K] from the values [K, n] of each game."""
    samples = {game: own[0] for game, own in values.items()}
    if has_interval(samples):
        numbers = {game: np.arange(own.shape[-1], dtype=np.float64) for game, own in values.items()}
        drawn = [part.astype(int) for part in resample(numbers, np.random.default_rng(0), RESAMPLES)]  # [R, n]
        draws = iqm([own[:, part] for own, part in zip(values.values(), drawn, strict=True)])  # [K, R]
        ends = 50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)
        low, high = np.percentile(draws, ends, axis=-1)
        return low, high, "interval"
    together = np.concatenate(list(values.values()), -1)
    if len(values) == 1:
        return together.min(-1), together.max(-1), "range"
    unknown = np.full(len(together), np.nan)  # a range over several games says nothing about the runs
    return unknown, unknown, "none"
