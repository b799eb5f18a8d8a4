"""A comparison of runs: the data behind its table, report, figure and page.

Runs that differ only in seed and game belong to one *method*: tables and curves show methods, and single runs on
request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlcluster.reports import reference, statistics
from rlcluster.reports.curves import Curve, run_curves
from rlcluster.reports.efficiency import Reached, efficiency, reached
from rlcluster.reports.fairness import Difference, setting_differences, warnings_for
from rlcluster.reports.method_curves import Axis, Line, MethodCurve, line_of, method_curve
from rlcluster.reports.published import published_methods
from rlcluster.reports.reference import Range
from rlcluster.reports.reference_scores import ReferenceScore, reference_scores
from rlcluster.reports.scoring import Scoring, score
from rlcluster.runs.reader import RecordedRun
from rlcluster.settings.loading import flatten
from rlcluster.system.errors import UserError

NOT_THE_METHOD = ("env.seed", "env.name", "output.")


class Comparison(NamedTuple):
    """Everything the table, report, figure and page show."""

    runs: Sequence[RecordedRun]
    names: Sequence[str]  # of the runs, unique
    methods: Mapping[str, Sequence[int]]  # name -> positions of its runs
    curves: Sequence[Mapping[str, Curve]]  # of each run, by quantity
    warnings: Sequence[str]
    failures: Mapping[str, str]  # name of each failed run (of a suite: also of cells without one) -> why it failed
    differences: Sequence[Difference]
    scoring: Scoring | None
    why_unscored: str
    efficiency: Sequence[Mapping[str, float | None]]  # of each run, along each axis
    reached: Sequence[Reached | None]  # of each run
    references: Sequence[ReferenceScore]  # scores versus published ones, if wanted
    ranges: Sequence[Range | None]  # score range of each run's task

    def method_of(self, position: int) -> str:
        return next(name for name, positions in self.methods.items() if position in positions)

    def finished(self, method: str) -> Sequence[int]:
        """Positions of the method's finished runs; of all its runs if none has finished."""
        positions = self.methods[method]
        return [k for k in positions if self.runs[k].is_finished] or positions

    @property
    def tasks(self) -> list[str]:
        return sorted({run.task for run in self.runs})

    @property
    def has_repeats(self) -> bool:
        """False if every method has one run: then the run's name says more than the method's."""
        return len(self.methods) < len(self.runs)

    @property
    def method_titles(self) -> list[str]:
        return list(self.methods) if self.has_repeats else list(self.names)


class Options(NamedTuple):
    """The user's choices."""

    ranges: Mapping[str, Range] = {}  # game -> a range that overrides the published one
    threshold: float | None = None
    with_reference: bool = False
    per_run: bool = False  # show single runs instead of methods


def compare(
    runs: Sequence[RecordedRun],
    names: Sequence[str] | None = None,
    options: Options | None = None,
    named_methods: Sequence[str] | None = None,
) -> Comparison:
    """`named_methods`: the method of each run, where its plan names it; else runs are grouped by their settings."""
    options = options or Options()
    names = names or run_names([run.path for run in runs])
    differences = setting_differences(runs)
    methods = group_methods(runs) if named_methods is None else _positions(named_methods)
    ranges = [options.ranges.get(run.game) or reference.score_range(run.settings.env) for run in runs]
    scoring, why_unscored = score(runs, names, methods, ranges)
    return Comparison(
        runs=runs,
        names=names,
        methods=methods,
        curves=[run_curves(run.metrics) for run in runs],
        warnings=warnings_for(runs, names),
        failures={name: why for name, run in zip(names, runs, strict=True) if (why := run.failure) is not None},
        differences=differences,
        scoring=scoring,
        why_unscored=why_unscored,
        efficiency=efficiency(runs),
        reached=reached(runs, options.threshold),
        references=reference_scores(runs, names, published_methods()) if options.with_reference else [],
        ranges=ranges,
    )


def run_names(paths: Sequence[Path]) -> list[str]:
    """The folders' names, with as many parents as make them unique. A run given twice is refused."""
    resolved = [path.resolve() for path in paths]
    for k, path in enumerate(resolved):
        if path in resolved[:k]:
            raise UserError(f"{paths[k]}: the same run is given twice; give each run once")
    for depth in range(1, max(len(path.parts) for path in resolved) + 1):
        names = ["/".join(path.parts[-depth:]) for path in resolved]
        if len(set(names)) == len(names):
            break
    return names


def group_methods(runs: Sequence[RecordedRun]) -> dict[str, list[int]]:
    """Method name -> positions of its runs. The name is e.g. PPO_Parallel, followed by the settings that differ where
    several methods would share it.
    """
    keys = [_method_key(run) for run in runs]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for k, key in enumerate(keys):
        groups.setdefault(tuple(map(str, key.values())), []).append(k)
    names: dict[str, list[int]] = {}
    for positions in groups.values():
        first = positions[0]
        alike = [
            group[0] for group in groups.values() if runs[group[0]].settings.log_name == runs[first].settings.log_name
        ]
        differing = [name for name in keys[first] if any(keys[k].get(name) != keys[first][name] for k in alike)]
        suffix = ", ".join(f"{name.split('.')[-1]}={keys[first][name]}" for name in differing)
        names[runs[first].settings.log_name + (f" ({suffix})" if suffix else "")] = positions
    return names


def _positions(methods: Sequence[str]) -> dict[str, list[int]]:
    return {name: [k for k, other in enumerate(methods) if other == name] for name in dict.fromkeys(methods)}


def curve_of(
    comparison: Comparison, method: str, quantity: str, axis: Axis, task: str | None = None
) -> MethodCurve | None:
    """The curve of a method along an axis, on one task or over all of them. Its unfinished runs count only if none has
    finished: they would end the curve of all.
    """
    lines: dict[str, list[Line]] = {}
    for k in comparison.finished(method):
        run = comparison.runs[k]
        if task in (None, run.task):
            curve = comparison.curves[k][quantity]
            if quantity == "reward" and task is None and is_normalised(comparison):
                curve = normalised(curve, comparison.ranges[k])
            lines.setdefault(run.task, []).append(line_of(curve, axis, run.cores))
    return method_curve(lines)


def is_normalised(comparison: Comparison) -> bool:
    """True if the rewards of several games can be shown on one axis."""
    return len(comparison.tasks) > 1 and None not in comparison.ranges


def normalised(curve: Curve, scores: Range | None) -> Curve:
    if scores is None:
        return curve
    values, low, high = (statistics.normalise(part, *scores) for part in (curve.values, curve.low, curve.high))
    return curve._replace(values=values, low=low, high=high)


def _method_key(run: RecordedRun) -> dict[str, Any]:
    flat = flatten(run.settings.to_dict())
    return {key: value for key, value in flat.items() if not key.startswith(NOT_THE_METHOD)}
