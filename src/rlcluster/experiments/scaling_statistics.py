"""Scaling statistics, as pure functions: medians, intervals over repeats, speed-up, efficiency, serial fraction.

B is the baseline, the smallest world size; repeat r with W ranks is compared with repeat r of the baseline:

    speed-up         S = fps_W / fps_B
    efficiency       E = (fps_W / W) / (fps_B / B) = S * B / W
    serial fraction  e = (1/S - 1/W) / (1 - 1/W)        (Karp and Flatt, CACM 33(5), 1990)

e needs the speed of one rank: it is null unless B = 1, and for W = 1. For weak scaling it assumes that the fps of one
rank would be the same with W times the environments.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rlcluster.reports.statistics import MIN_RUNS, NORMAL_QUANTILE

State = Literal["finished", "failed", "stopped"]

# The 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom; beyond them, that of the normal distribution.
T_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


class Medians(NamedTuple):
    """Medians over a run's updates after the warm-up; None if there are none."""

    fps: float | None = None
    t_iter: float | None = None
    t_rollout: float | None = None
    t_learn: float | None = None
    t_sync: float | None = None


QUANTITIES = Medians._fields


class RunRow(NamedTuple):
    """One run as a table row: its case, its final state, its medians."""

    scaling: str
    world_size: int
    repeat: int
    num_envs: int
    state: State
    steps: int = 0  # environment steps of the whole run
    fps: float | None = None
    t_iter: float | None = None
    t_rollout: float | None = None
    t_learn: float | None = None
    t_sync: float | None = None
    error: str | None = None


class Estimate(NamedTuple):
    """A mean with its 95 % interval; of fewer than MIN_RUNS values with the lowest and the highest; of one alone."""

    mean: float
    low: float | None = None
    high: float | None = None
    is_interval: bool = False

    def times(self, factor: float) -> Estimate:
        low, high = (None if value is None else value * factor for value in (self.low, self.high))
        return Estimate(self.mean * factor, low, high, self.is_interval)


class SummaryRow(NamedTuple):
    """One world size under one kind of scaling, over its finished repeats."""

    scaling: str
    world_size: int
    num_envs: int
    finished_repeats: int
    is_beyond_cores: bool
    estimates: dict[str, Estimate | None]  # of QUANTITIES, speedup and efficiency; None if not measured
    serial_fraction: float | None

    def flat(self) -> dict[str, Any]:
        """As a table row: fps, fps_low, fps_high, fps_is_interval, ..."""
        line = self._asdict()
        fraction = line.pop("serial_fraction")
        for name, estimate in line.pop("estimates").items():
            mean, low, high, is_interval = estimate or (None, None, None, None)
            values = mean, low, high, None if low is None else is_interval
            line.update(zip((name, f"{name}_low", f"{name}_high", f"{name}_is_interval"), values, strict=True))
        return {**line, "serial_fraction": fraction}


def medians(records: Sequence[Mapping[str, Any]], num_warmup: int) -> Medians:
    measured = [record for record in records if record["update"] > num_warmup]
    if not measured:
        return Medians()
    return Medians(*(statistics.median(record[name] for record in measured) for name in QUANTITIES))


def estimate_mean(values: Sequence[float]) -> Estimate | None:
    """mean ± t * s / sqrt(n), with n - 1 degrees of freedom; below MIN_RUNS values, their range."""
    if not values:
        return None
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Estimate(mean)
    if len(values) < MIN_RUNS:
        return Estimate(mean, min(values), max(values))
    margin = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - margin, mean + margin, is_interval=True)


def t_quantile(degrees_of_freedom: int) -> float:
    return T_QUANTILES[degrees_of_freedom - 1] if degrees_of_freedom <= len(T_QUANTILES) else NORMAL_QUANTILE


def paired_ratios(values: Mapping[int, float], base: Mapping[int, float]) -> list[float]:
    """value / base for each repeat that has both: whatever slows a whole repeat down cancels out."""
    return [values[repeat] / base[repeat] for repeat in sorted(values.keys() & base.keys())]


def karp_flatt(speedup: float, world_size: int) -> float | None:
    """The serial fraction implied by a speed-up; negative if the speed-up is superlinear."""
    if world_size == 1:
        return None
    return (1 / speedup - 1 / world_size) / (1 - 1 / world_size)


def summarise(rows: Sequence[RunRow], ranks_that_fit: int) -> list[SummaryRow]:
    """One row per kind of scaling and world size, smallest first; only finished runs count."""
    summary = []
    for scaling in dict.fromkeys(row.scaling for row in rows):
        sizes = sorted({row.world_size for row in rows if row.scaling == scaling})
        groups = {size: [row for row in rows if (row.scaling, row.world_size) == (scaling, size)] for size in sizes}
        summary += [_summarise_size(groups, size, ranks_that_fit) for size in sizes]
    return summary


def _summarise_size(groups: Mapping[int, list[RunRow]], world_size: int, ranks_that_fit: int) -> SummaryRow:
    base = min(groups)
    finished = [row for row in groups[world_size] if row.state == "finished"]
    estimates = {name: estimate_mean([getattr(row, name) for row in finished]) for name in QUANTITIES}
    speedup = estimate_mean(paired_ratios(_fps_by_repeat(finished), _fps_by_repeat(groups[base])))
    estimates["speedup"] = speedup
    estimates["efficiency"] = speedup and speedup.times(base / world_size)
    return SummaryRow(
        scaling=groups[world_size][0].scaling,
        world_size=world_size,
        num_envs=groups[world_size][0].num_envs,
        finished_repeats=len(finished),
        is_beyond_cores=world_size > ranks_that_fit,
        estimates=estimates,
        serial_fraction=karp_flatt(speedup.mean, world_size) if speedup and base == 1 else None,
    )


def _fps_by_repeat(rows: Sequence[RunRow]) -> dict[int, float]:
    return {row.repeat: row.fps for row in rows if row.state == "finished" and row.fps is not None}
