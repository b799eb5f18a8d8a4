"""The data that assets/page.js draws, embedded in comparison.html as JSON.

Curves of methods have equally spaced positions, so their ends say where the points are. Those of a run share theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rlcluster.reports import statistics
from rlcluster.reports.comparison import Comparison, curve_of
from rlcluster.reports.curves import DIAGNOSTICS, QUANTITIES, Curve
from rlcluster.reports.method_curves import AXES, BAND_TEXTS, MethodCurve
from rlcluster.reports.reference_scores import published_curves
from rlcluster.reports.scoring import Scoring
from rlcluster.runs.reader import RecordedRun

THRESHOLDS = 101  # points of a performance profile
SHARED = ("fps", *DIAGNOSTICS)  # curves with the same slices


def page_data(comparison: Comparison) -> dict[str, Any]:
    """The data that page.js draws."""
    methods = list(comparison.methods)
    return {
        "methods": comparison.method_titles,
        "tasks": comparison.tasks,
        "quantities": {name: quantity._asdict() for name, quantity in QUANTITIES.items()},
        "diagnostics": [name for name in DIAGNOSTICS if _is_known(comparison, name)],
        "bands": BAND_TEXTS,
        "method_curves": [_method_data(comparison, method) for method in methods],
        "runs": [
            {
                "name": comparison.names[k],
                "method": methods.index(comparison.method_of(k)),
                "task": run.task,
                "cores": run.cores,
                **_run_data(comparison, k),
            }
            for k, run in enumerate(comparison.runs)
        ],
        "reference": _reference_data(comparison.runs) if comparison.references else {},
        "profile": _profile_data(comparison.scoring, methods) if has_profile(comparison.scoring) else None,
    }


def _is_known(comparison: Comparison, quantity: str) -> bool:
    return any(not np.isnan(curves[quantity].values).all() for curves in comparison.curves)


def _method_data(comparison: Comparison, method: str) -> dict[str, Any]:
    """axis -> quantity, and for rewards the task -> curve. A method with one run is drawn from that run."""
    if len(comparison.methods[method]) == 1:
        return {"run": comparison.methods[method][0]}
    data: dict[str, Any] = {}
    for axis in AXES:
        rewards = {task: curve_of(comparison, method, "reward", axis, task) for task in comparison.tasks}
        names = ["fps", *DIAGNOSTICS, *(["timesteps"] if axis == "seconds" else [])]
        others = {name: curve_of(comparison, method, name, axis) for name in names}
        data[axis] = {
            "reward": {task: _method_curve(curve) for task, curve in rewards.items() if curve is not None},
            **{name: _method_curve(curve) for name, curve in others.items() if curve is not None},
        }
    return data


def _method_curve(curve: MethodCurve) -> dict[str, Any]:
    ends = [float(curve.positions[0]), float(curve.positions[-1]), len(curve.positions)]
    data: dict[str, Any] = {"ends": ends, "y": _numbers(curve.values), "band": curve.band, "runs": curve.num_runs}
    if curve.band != "none":
        data |= {"low": _numbers(curve.low), "high": _numbers(curve.high)}
    return data


def _run_data(comparison: Comparison, k: int) -> dict[str, Any]:
    curves = comparison.curves[k]
    shared = {name: _numbers(curves[name].values) for name in SHARED if _is_known(comparison, name)}
    positions = {"steps": _numbers(curves["fps"].steps), "seconds": _numbers(curves["fps"].seconds)}
    return {"reward": _reward_data(curves["reward"]), "shared": positions | shared}


def _reward_data(curve: Curve) -> dict[str, Any]:
    data = {"steps": _numbers(curve.steps), "seconds": _numbers(curve.seconds), "y": _numbers(curve.values)}
    if not np.isnan(curve.low).all():
        data |= {"low": _numbers(curve.low), "high": _numbers(curve.high)}
    return data


def _reference_data(runs: Sequence[RecordedRun]) -> dict[str, list[dict[str, Any]]]:
    return {
        game: [
            {"name": curve.name, "steps": _numbers(curve.steps), "values": _numbers(curve.values)} for curve in curves
        ]
        for game, curves in published_curves(runs).items()
    }


def _numbers(values: Iterable[float]) -> list[float | None]:
    """Rounded to five digits, more than a screen can show."""
    return [None if math.isnan(value) else float(f"{value:.5g}") for value in values]


def has_profile(scoring: Scoring | None) -> bool:
    """True if a method has enough runs to speak of their distribution."""
    return scoring is not None and any(map(statistics.has_interval, scoring.scores.values()))


def _profile_data(scoring: Scoring | None, methods: Sequence[str]) -> dict[str, Any]:
    assert scoring is not None
    flat = [value for one in scoring.scores.values() for values in one.values() for value in values]
    thresholds = np.linspace(min(0.0, *flat), max(0.0, *flat) or 1.0, THRESHOLDS)
    rows = []
    for method, scores in scoring.scores.items():
        values, low, high = statistics.performance_profile(scores, thresholds)
        shares: dict[str, Any] = {"y": _numbers(values)}
        if statistics.has_interval(scores):
            shares |= {"low": _numbers(low), "high": _numbers(high), "band": "interval"}
        rows.append({"method": methods.index(method), **shares})
    return {"thresholds": _numbers(thresholds), "methods": rows}
