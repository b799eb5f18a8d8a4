"""A comparison of runs: the data behind its table, report, figure and page.

Runs that differ only in seed and game belong to one *method*: tables and curves show methods, and single runs on
request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rlcluster.reports import reference, statistics
from rlcluster.reports.curves import Curve, run_curves
from rlcluster.reports.efficiency import Reached, efficiency, reached
from rlcluster.reports.fairness import Difference, setting_differences, warnings_for
from rlcluster.reports.method_curves import Axis, Line, MethodCurve, line_of, method_curve
from rlcluster.reports.methods import group_methods, named_methods
from rlcluster.reports.published import published_methods
from rlcluster.reports.reference import Range
from rlcluster.reports.reference_scores import ReferenceScore, reference_scores
from rlcluster.reports.scoring import Scoring, score
from rlcluster.runs.reader import RecordedRun
from rlcluster.system.errors import UserError


class Comparison(NamedTuple):
    """Everything the table, report, figure and page show."""

    runs: Sequence[RecordedRun]
    names: Sequence[str]  # of the runs, unique
    methods: Mapping[str, Sequence[int]]  # name -> positions of its runs
    key: Mapping[str, str]  # name -> its settings, of methods whose names do not say them
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
    def excluded(self) -> list[str]:
        """Runs without a score. Failed ones are named elsewhere, with the reason."""
        left_out = () if self.scoring is None else self.scoring.left_out
        return [name for name in left_out if name not in self.failures]

    @property
    def has_repeats(self) -> bool:
        """False if every method has one run: then the run's name says more than the method's."""
        return len(self.methods) < len(self.runs)

    @property
    def method_titles(self) -> list[str]:
        return list(self.methods) if self.has_repeats else list(self.names)

    def title_of(self, method: str) -> str:
        return dict(zip(self.methods, self.method_titles, strict=True))[method]

    @property
    def key_lines(self) -> list[str]:
        """What the short names of methods stand for; they are named by their runs as well where titles do so."""
        titles = zip(self.methods, self.method_titles, strict=True)
        named = {method: method if title == method else f"{method} ({title})" for method, title in titles}
        return [f"{named[method]}: {settings}" for method, settings in self.key.items()]


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
    method_of_run: Sequence[str] | None = None,
) -> Comparison:
    """`method_of_run`: where a plan names it; else runs are grouped by their settings."""
    options = options or Options()
    names = names or run_names([run.path for run in runs])
    differences = setting_differences(runs)
    methods, key = group_methods(runs) if method_of_run is None else named_methods(method_of_run)
    ranges = [options.ranges.get(run.game) or reference.score_range(run.settings.env) for run in runs]
    scoring, why_unscored = score(runs, names, methods, ranges)
    comparison = Comparison(
        runs=runs,
        names=names,
        methods=methods,
        key=key,
        curves=[run_curves(run.metrics) for run in runs],
        warnings=warnings_for(runs, names, methods),
        failures={name: why for name, run in zip(names, runs, strict=True) if (why := run.failure) is not None},
        differences=differences,
        scoring=scoring,
        why_unscored=why_unscored,
        efficiency=efficiency(runs),
        reached=reached(runs, options.threshold),
        references=[],
        ranges=ranges,
    )
    if not options.with_reference:
        return comparison
    groups = _reference_groups(comparison, options.per_run)
    return comparison._replace(references=reference_scores(groups, published_methods()))


def _reference_groups(comparison: Comparison, per_run: bool) -> dict[str, list[RecordedRun]]:
    """What is set beside published scores: each method on each task, or each run."""
    if per_run or not comparison.has_repeats:
        return {name: [run] for name, run in zip(comparison.names, comparison.runs, strict=True)}
    groups: dict[str, list[RecordedRun]] = {}
    for method in comparison.methods:
        for run in (comparison.runs[k] for k in comparison.finished(method)):
            title = method if len(comparison.tasks) == 1 else f"{method}, {run.task}"
            groups.setdefault(title, []).append(run)
    return groups


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
