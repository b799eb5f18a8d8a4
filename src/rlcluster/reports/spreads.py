"""Means over runs with how far the runs differ, as text.

From MIN_RUNS runs on, a mean has its 95 % interval in brackets; below that, the lowest and the highest run follow it in
parentheses. The mean of one run is the run's own number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from rlcluster.reports import statistics
from rlcluster.reports.statistics import Estimate

MISSING = "-"
NOTATION = {
    r"\(\S+ to \S+\)": "in parentheses the lowest and the highest run",
    r"\[\S+, \S+\]": "in brackets a 95 % interval",
}


def number(value: float | None, form: str) -> str:
    return MISSING if value is None else format(value, form)


class Spread(NamedTuple):
    """A mean over runs, and how far they differ: its 95 % interval, or the lowest and the highest run."""

    value: float
    low: float | None = None
    high: float | None = None
    is_interval: bool = False


def spread_of(values: Sequence[float]) -> Spread | None:
    """None of no values; one value has no spread."""
    if len(values) < 2:
        return Spread(values[0]) if values else None
    mean = statistics.estimate({"": np.array(values, np.float64)}, statistics.mean)
    if mean.low is not None:
        return Spread(mean.value, mean.low, mean.high, is_interval=True)
    return Spread(mean.value, min(values), max(values))


def spread_text(spread: Spread | None, form: str) -> str:
    """`7.25`, `7.25 (6.90 to 7.60)` of a few runs, `7.25 [7.01, 7.49]` of enough; `-` of none. A spread that the digits
    do not show is left out.
    """
    if spread is None:
        return MISSING
    value = format(spread.value, form)
    if spread.low is None or spread.high is None:
        return value
    low, high = format(spread.low, form), format(spread.high, form)
    if low == high:
        return value
    return f"{value} [{low}, {high}]" if spread.is_interval else f"{value} ({low} to {high})"


def notation(cells: Iterable[str], are_means: bool) -> str:
    """Explains what the cells of a table have, and no more: `Means over runs; in parentheses the lowest and the highest
    run, in brackets a 95 % interval.`
    """
    shown = list(cells)
    signs = [text for pattern, text in NOTATION.items() if any(re.search(pattern, cell) for cell in shown)]
    parts = [*(["means over runs"] if are_means else []), *([", ".join(signs)] if signs else [])]
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def mean_text(values: Sequence[float], form: str) -> str:
    return spread_text(spread_of(values), form)


def estimate_spread(estimate: Estimate | statistics.Interval) -> Spread:
    return Spread(estimate.value, estimate.low, estimate.high, is_interval=True)


def estimate_text(estimate: Estimate | statistics.Interval, form: str = ".3f") -> str:
    return spread_text(estimate_spread(estimate), form)
