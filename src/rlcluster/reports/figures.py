"""Figures: the panels of a comparison or of one run, drawn for print.

Sets of panels, chosen by --panels: `main` (reward by steps and by wall-clock, speed, timesteps against wall-clock),
`diagnostics` (losses, entropy, KL, explained variance, action information), `core-hours` (reward and timesteps by
core-hours) and `seeds` (main, with a line per run).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import fill, wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlcluster.reports.comparison import Comparison, curve_of, is_normalised, normalised
from rlcluster.reports.curves import DIAGNOSTICS, QUANTITIES, run_curves
from rlcluster.reports.drawing import escaped, figure_for, label, lift_from_frame, style
from rlcluster.reports.headline import setup_text
from rlcluster.reports.method_curves import BAND_TEXTS, IQM_RUNS, Axis, MethodCurve, line_of, method_curve
from rlcluster.reports.reference_scores import OPENAI, PublishedCurve, curves_until, published_curves
from rlcluster.runs.metrics import Metrics
from rlcluster.runs.reader import RecordedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

DEFAULT_PANELS = ("main", "diagnostics")
NO_PUBLISHED_CURVES = "Published curves are of one game each, so they are not drawn where several games share an axis."
MARKERS_PER_CURVE, X_MARGIN = 8, 0.03
LEGEND_CHARACTERS, SAMPLE_CHARACTERS = 95, 10  # in a row of the legend, of which a sample of a line takes some
NOTE_CHARACTERS = 110  # in a line below the panels
MAIN_HEIGHT, SMALL_HEIGHT, LEGEND_HEIGHT, TITLE_HEIGHT = 2.1, 1.6, 0.18, 0.25  # inches, of a row
TIME_UNITS = ((3 * 3600.0, 3600.0, "hours"), (180.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
STEP_UNITS = ((1e6, 1e6, "millions"), (1e4, 1e3, "thousands"), (0.0, 1.0, ""))

AXIS_NAMES: dict[Axis, str] = {"steps": "steps", "seconds": "wall-clock", "core_hours": "core-hours"}

CurveOf = Callable[[str, Axis, str | None], MethodCurve | None]  # quantity, axis, task (None: all together)


class Panel(NamedTuple):
    """What one pair of axes shows."""

    quantity: str
    axis: Axis
    task: str | None = None
    is_normalised: bool = False


class Series(NamedTuple):
    """One line of every panel."""

    name: str | None  # None: another line has the same entry in the legend
    position: int  # decides colour, line style and marker
    curve: CurveOf
    is_thin: bool = False  # one of many: a thin line without a band

    @property
    def has_band(self) -> bool:
        return not self.is_thin and self.position >= 0


class Section(NamedTuple):
    """A block of panels that share their series."""

    title: str | None
    panels: Sequence[Panel]
    series: Sequence[Series]
    num_columns: int
    row_height: float  # inches

    @property
    def num_rows(self) -> int:
        return -(-len(self.panels) // self.num_columns)


def draw_comparison(comparison: Comparison, paths: Sequence[Path], panels: Sequence[str] = DEFAULT_PANELS) -> None:
    """One line per method, with a band over its runs; in the panels `seeds` one per run."""
    published = _published_series(comparison)
    methods, runs = [*_method_series(comparison), *published], [*_run_series(comparison), *published]
    main = _main_panels(comparison)
    sections = {
        "main": Section(None, main, methods, 2, MAIN_HEIGHT),
        "diagnostics": Section("Diagnostics", _diagnostic_panels(), methods, 3, SMALL_HEIGHT),
        "core-hours": Section("By core-hours", _core_hours_panels(comparison), methods, 2, MAIN_HEIGHT),
        "seeds": Section("Single runs", main, runs, 2, MAIN_HEIGHT),
    }
    _draw([sections[name] for name in panels], setup_text(comparison.runs), paths, _remarks(comparison))


def _remarks(comparison: Comparison) -> list[str]:
    """What stands below the panels: the key, and why published curves are missing."""
    is_without = bool(comparison.references) and is_normalised(comparison)
    return [*comparison.key_lines, *([NO_PUBLISHED_CURVES] if is_without else [])]


def draw_run(
    metrics: Metrics,
    title: str,
    paths: Sequence[Path],
    published: Sequence[PublishedCurve] = (),
    panels: Sequence[str] = DEFAULT_PANELS,
) -> None:
    """The panels of one run."""
    curves = run_curves(metrics)

    def curve(quantity: str, axis: Axis, task: str | None) -> MethodCurve | None:
        return method_curve({"": [line_of(curves[quantity], axis, 1)]})

    series = [Series("this run", 0, curve), *_published({None: published})]
    main = [Panel("reward", "steps"), *_timed_panels()]
    sections = {
        "main": Section(None, main, series, 2, MAIN_HEIGHT),
        "diagnostics": Section("Diagnostics", _diagnostic_panels(), series, 3, SMALL_HEIGHT),
    }
    _draw([sections[name] for name in panels if name in sections], title, paths)


def _main_panels(comparison: Comparison) -> list[Panel]:
    return [*_reward_panels(comparison, ("steps", "seconds")), *_timed_panels()[1:]]


def _core_hours_panels(comparison: Comparison) -> list[Panel]:
    return [*_reward_panels(comparison, ("core_hours",)), Panel("timesteps", "core_hours")]


def _reward_panels(comparison: Comparison, axes: Sequence[Axis]) -> list[Panel]:
    """Rewards of several games share an axis if all can be normalised; else each game has its own panels."""
    tasks: list[str | None] = [None]
    if len(comparison.tasks) > 1 and not is_normalised(comparison):
        tasks = list(comparison.tasks)
    return [Panel("reward", axis, task, is_normalised(comparison)) for task in tasks for axis in axes]


def _timed_panels() -> list[Panel]:
    return [Panel(quantity, "seconds") for quantity in ("reward", "fps", "timesteps")]


def _diagnostic_panels() -> list[Panel]:
    return [Panel(quantity, "steps") for quantity in DIAGNOSTICS]


def _method_series(comparison: Comparison) -> list[Series]:
    def curve_of_method(method: str) -> CurveOf:
        return lambda quantity, axis, task: curve_of(comparison, method, quantity, axis, task)

    return [
        Series(_counted(title, len(comparison.finished(method))), k, curve_of_method(method))
        for k, (title, method) in enumerate(zip(comparison.method_titles, comparison.methods, strict=True))
    ]


def _counted(title: str, num_runs: int) -> str:
    return f"{title} ({num_runs} runs)" if num_runs > 1 else title


def _run_series(comparison: Comparison) -> list[Series]:
    methods = list(comparison.methods)

    def curve_of_run(k: int) -> CurveOf:
        run = comparison.runs[k]

        def curve(quantity: str, axis: Axis, task: str | None) -> MethodCurve | None:
            if task not in (None, run.task):
                return None
            own = comparison.curves[k][quantity]
            if quantity == "reward" and task is None and is_normalised(comparison):
                own = normalised(own, comparison.ranges[k])
            return method_curve({"": [line_of(own, axis, run.cores)]})

        return curve

    return [
        Series(
            comparison.method_titles[methods.index(method)] if comparison.methods[method][0] == k else None,
            methods.index(method),
            curve_of_run(k),
            is_thin=True,
        )
        for k, method in enumerate(map(comparison.method_of, range(len(comparison.runs))))
    ]


def _draw(sections: Sequence[Section], title: str, paths: Sequence[Path], key: Sequence[str] = ()) -> None:
    """`key` explains the names of the legend, below the panels."""
    columns, legend_rows = _legend_size([one.name for one in sections[0].series if one.name is not None])
    above = [LEGEND_HEIGHT * legend_rows, *(TITLE_HEIGHT for _ in sections[1:])]
    heights = [section.num_rows * section.row_height + extra for section, extra in zip(sections, above, strict=True)]
    key = [part for line in key for part in wrap(line, NOTE_CHARACTERS, subsequent_indent="    ")]
    with figure_for(paths, sum(heights) + 2 * TITLE_HEIGHT + LEGEND_HEIGHT * len(key)) as figure:
        figure.suptitle(escaped(title))
        parts = figure.subfigures(len(sections), 1, height_ratios=heights, squeeze=False)[:, 0]
        drawn = [curve for section, part in zip(sections, parts, strict=True) for curve in _draw_section(part, section)]
        entries = _legend_entries([axis for part in parts for axis in part.axes], sections[0].series)
        if len(entries) > 1:
            lines, names = list(entries.values()), list(entries)
            parts[0].legend(lines, names, loc="outside upper center", ncols=columns, handlelength=3)
        note = "\n".join([*wrap(_note(drawn), NOTE_CHARACTERS), *map(escaped, key)])
        figure.supxlabel(note, fontsize="medium", color="#444444")


def _legend_entries(axes: Sequence[Axes], series: Sequence[Series]) -> dict[str, Any]:
    """label -> its line, from all panels: published curves are in some only."""
    known = {_label(one.name) for one in series if one.name is not None}
    entries: dict[str, Any] = {}
    for axis in axes:
        for line, name in zip(*axis.get_legend_handles_labels(), strict=True):
            if name in known:
                entries.setdefault(name, line)
    return entries


def _draw_section(part: SubFigure, section: Section) -> list[MethodCurve]:
    """Returns the curves that were drawn with their bands."""
    drawn = []
    axes = part.subplots(section.num_rows, section.num_columns, squeeze=False)
    for axis, panel in zip(axes.flat, section.panels, strict=False):
        drawn += _draw_panel(axis, panel, section.series)
    for axis in axes.flat[len(section.panels) :]:
        axis.set_visible(False)
    part.align_ylabels(axes)
    if section.title is not None:
        part.suptitle(section.title, fontsize="medium", fontweight="bold")
    return drawn


def _legend_size(names: Sequence[str]) -> tuple[int, int]:
    """Columns and lines."""
    lines = [_wrapped(name).split("\n") for name in names]
    longest = max((len(line) for own in lines for line in own), default=0) + SAMPLE_CHARACTERS
    columns = max(1, min(len(names), LEGEND_CHARACTERS // longest))
    return columns, -(-len(names) // columns) * max(map(len, lines), default=0)


def _wrapped(name: str) -> str:
    """A name that a row of the legend can hold."""
    return fill(name, LEGEND_CHARACTERS - SAMPLE_CHARACTERS)


def _label(name: str) -> str:
    return escaped(_wrapped(name))


def _note(curves: Sequence[MethodCurve]) -> str:
    """What lines and bands mean; empty where no curve can have a band."""
    counts = {curve.num_runs for curve in curves} - {1}
    line = "interquartile mean of the runs" if counts and max(counts) >= IQM_RUNS else "mean of the runs"
    if counts and min(counts) < IQM_RUNS <= max(counts):
        line += f" (mean of fewer than {IQM_RUNS})"
    kinds = {curve.band for curve in curves}
    bands = [text for kind, text in BAND_TEXTS.items() if kind in kinds and kind != "none"]
    parts = [f"Lines: {line}."] if counts else []
    parts += [f"Bands: {'; '.join(bands)}."] if bands else ["No bands: too few runs or episodes."] if curves else []
    return " ".join(parts)


def _draw_panel(axis: Axes, panel: Panel, series: Sequence[Series]) -> list[MethodCurve]:
    """Returns the curves that were drawn with their bands."""
    curves = [(one, one.curve(panel.quantity, panel.axis, panel.task)) for one in series]
    known = [(one, curve) for one, curve in curves if curve is not None]
    far = max((float(curve.positions[-1]) for _, curve in known), default=0.0)
    x_scale, x_label = _x_unit(panel.axis, far)
    y_scale, y_unit = 1.0, QUANTITIES[panel.quantity].unit
    if panel.quantity == "timesteps":
        top = max((float(curve.values[-1]) for _, curve in known), default=0.0)
        y_scale, word = next((scale, word) for limit, scale, word in STEP_UNITS if top >= limit)
        y_unit = f"{y_unit} ({word})" if word else y_unit
    for one, curve in known:
        _draw_curve(axis, curve, one, x_scale, y_scale)
    if not known:
        axis.text(0.5, 0.5, "no data", transform=axis.transAxes, ha="center", color="#666666")
    label(axis, _panel_title(panel), x_label, "normalised reward" if panel.is_normalised else y_unit)
    lift_from_frame(axis, QUANTITIES[panel.quantity].is_from_zero)
    if far > 0:
        axis.set_xlim(-X_MARGIN * far / x_scale, (1 + X_MARGIN) * far / x_scale)  # from 0, as in the panels beside it
    return [curve for one, curve in known if one.has_band]


def _panel_title(panel: Panel) -> str:
    title = QUANTITIES[panel.quantity].title
    if panel.quantity == "reward":
        title += f" by {AXIS_NAMES[panel.axis]}"
    elif panel.axis == "core_hours":
        title = title.replace("wall-clock", "core-hours")
    return f"{title}: {panel.task}" if panel.task is not None else title


def _x_unit(axis: Axis, far: float) -> tuple[float, str]:
    if axis == "core_hours":
        return 1.0, "core-hours"
    name, units = ("environment steps", STEP_UNITS) if axis == "steps" else ("wall-clock", TIME_UNITS)
    scale, word = next((scale, word) for limit, scale, word in units if far >= limit)
    return scale, f"{name} ({word})" if word else name


def _draw_curve(axis: Axes, curve: MethodCurve, series: Series, x_scale: float, y_scale: float) -> None:
    look: dict[str, Any] = style(series.position)
    positions, values, low, high = (curve.positions / x_scale, *(part / y_scale for part in curve[1:4]))
    look["markevery"] = [-1] if series.is_thin else max(1, len(positions) // MARKERS_PER_CURVE)
    look |= {"linewidth": 0.6, "alpha": 0.75} if series.is_thin else {}
    axis.plot(positions, values, label=None if series.name is None else _label(series.name), **look)
    if series.has_band and not np.isnan(low).all():
        axis.fill_between(positions, low, high, color=look["color"], alpha=0.15, linewidth=0)


def _published_series(comparison: Comparison) -> list[Series]:
    """If published scores are wanted: of each game, on its own panels."""
    if not comparison.references or is_normalised(comparison):
        return []
    if len(comparison.tasks) == 1:
        return _published({None: _published_curves(comparison.runs)})
    runs = {task: [run for run in comparison.runs if run.task == task] for task in comparison.tasks}
    return _published({task: _published_curves(own) for task, own in runs.items()})


def _published_curves(runs: Sequence[RecordedRun]) -> list[PublishedCurve]:
    """Of runs of one task, up to the end of the last one."""
    last_step = max(float(run.metrics["steps_global"][-1]) for run in runs)
    return curves_until([curve for curves in published_curves(runs).values() for curve in curves], last_step)


def _published(by_task: Mapping[str | None, Sequence[PublishedCurve]]) -> list[Series]:
    """A series for each name. OpenAI's comes last and has the first style."""
    found = dict.fromkeys(curve.name for curves in by_task.values() for curve in curves)
    names = sorted(found, key=lambda name: name == OPENAI)
    return [
        Series(
            name,
            k - len(names),
            _reward_by_steps({task: curve for task, own in by_task.items() for curve in own if curve.name == name}),
        )
        for k, name in enumerate(names)
    ]


def _reward_by_steps(by_task: Mapping[str | None, PublishedCurve]) -> CurveOf:
    """Published curves, which other panels do not have."""

    def curve(quantity: str, axis: Axis, task: str | None) -> MethodCurve | None:
        if quantity != "reward" or axis != "steps" or task not in by_task:
            return None
        steps, scores = by_task[task].steps, by_task[task].values
        unknown = np.full(len(steps), np.nan)
        return MethodCurve(steps, scores, unknown, unknown, "none", 1)

    return curve
