"""The data that assets/page.js draws, embedded in comparison.html as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rlcluster.reports import reference, statistics
from rlcluster.reports.comparison import Comparison, Scoring
from rlcluster.reports.curves import Curve, fps_curve, mean_curve

THRESHOLDS = 101  # points of a performance profile


def page_data(comparison: Comparison) -> dict[str, Any]:
    """The data that page.js draws."""
    methods = list(comparison.methods)
    tasks = sorted({run.task for run in comparison.runs})
    published = [run for run in comparison.runs if reference.is_published_setting(run.settings.env)]
    has_reference = bool(comparison.references)
    return {
        "methods": methods if len(methods) < len(comparison.runs) else _single_names(comparison),
        "tasks": tasks,
        "runs": [
            {
                "name": comparison.names[k],
                "method": methods.index(comparison.method_of(k)),
                "task": run.task,
                "cores": run.cores,
                "curves": {
                    "reward": _curve_data(comparison.curves[k]),
                    "fps": _curve_data(fps_curve(run.metrics)),
                    "policy_loss": _curve_data(mean_curve(run.metrics, "policy_loss")),
                },
            }
            for k, run in enumerate(comparison.runs)
        ],
        "reference": {
            run.game: {"steps": reference.STEPS, "train": reference.GAMES[run.game].train}
            for run in published
            if has_reference and run.game in reference.GAMES
        },
        "profile": _profile_data(comparison.scoring, methods) if has_profile(comparison.scoring) else None,
    }


def _single_names(comparison: Comparison) -> list[str]:
    """With one run per method, the run's name is more informative."""
    return [comparison.names[positions[0]] for positions in comparison.methods.values()]


def _curve_data(curve: Curve) -> dict[str, Any]:
    data = {"steps": _numbers(curve.steps), "seconds": _numbers(curve.seconds), "values": _numbers(curve.values)}
    if not np.isnan(curve.low).all():
        data |= {"low": _numbers(curve.low), "high": _numbers(curve.high)}
    return data


def _numbers(values: Iterable[float]) -> list[float | None]:
    """Rounded to five digits, more than a screen can show."""
    return [None if math.isnan(value) else float(f"{value:.5g}") for value in values]


def has_profile(scoring: Scoring | None) -> bool:
    """True if a method has more than one score."""
    return scoring is not None and max(sum(map(len, one.values())) for one in scoring.scores.values()) > 1


def _profile_data(scoring: Scoring | None, methods: Sequence[str]) -> dict[str, Any]:
    assert scoring is not None
    flat = [value for one in scoring.scores.values() for values in one.values() for value in values]
    thresholds = np.linspace(min(0.0, *flat), max(0.0, *flat) or 1.0, THRESHOLDS)
    rows = []
    for method, scores in scoring.scores.items():
        values, low, high = statistics.performance_profile(scores, thresholds)
        shares = {"y": _numbers(values), "low": _numbers(low), "high": _numbers(high)}
        rows.append({"method": methods.index(method), **shares})
    return {"thresholds": _numbers(thresholds), "methods": rows}
