"""The outputs of `rlcluster scale`: per_run and summary as CSV and JSON, plots.png, and a console table."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcluster.experiments.scaling_statistics import QUANTITIES, Estimate, RunRow, SummaryRow
from rlcluster.reports.drawing import PHASE_STYLES, figure_for, label, lift_from_frame, style
from rlcluster.reports.headline import SEPARATOR, limit_text
from rlcluster.reports.statistics import MIN_RUNS
from rlcluster.settings.games import game_name
from rlcluster.settings.schema import Settings
from rlcluster.system import cores
from rlcluster.system.atomic_file import write_atomically, write_json
from rlcluster.system.console import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES = {"strong": style(0), "weak": style(1)}
PANELS = {
    "fps": ("Speed", "steps/s"),
    "speedup": ("Speed-up", "relative to fewest ranks"),
    "efficiency": ("Efficiency", "speed-up per rank"),
}
HEIGHT, GROUP_GAP = 5.0, 0.7  # inches, of the figure; bars, between strong and weak scaling
COLUMNS = ("ranks", "steps/s", "speed-up", "efficiency", "serial", "t_iter", "rollout", "learn", "sync")


def write_runs(folder: Path, rows: Sequence[RunRow]) -> None:
    """per_run.csv and per_run.json: one row per run."""
    _write(folder / "per_run.csv", _csv([row._asdict() for row in rows]))
    write_json(folder / "per_run.json", [row._asdict() for row in rows])


def write_summary(folder: Path, summary: Sequence[SummaryRow], facts: Mapping[str, Any]) -> None:
    """summary.csv and summary.json: one row per kind of scaling and world size; the JSON also describes the machine."""
    rows = [row.flat() for row in summary]
    _write(folder / "summary.csv", _csv(rows))
    write_json(folder / "summary.json", {**facts, "rows": rows})


def table_text(summary: Sequence[SummaryRow], rows: Sequence[RunRow], settings: Settings, ranks_that_fit: int) -> str:
    """One table per kind of scaling, and notes. Times are in milliseconds."""
    lines = []
    for scaling in dict.fromkeys(row.scaling for row in summary):
        sizes = [row for row in summary if row.scaling == scaling]
        is_weak = scaling == "weak"
        num_envs = sizes[0].num_envs // sizes[0].world_size if is_weak else sizes[0].num_envs
        share = f"{num_envs} environments {'per rank' if is_weak else 'in total'}"
        lines.append(f"{scaling} scaling: {settings.algorithm} on {settings.env.name}, {share}")
        lines += [*_aligned([COLUMNS, *(_cells(row) for row in sizes)]), ""]
    return "\n".join(lines + _notes(summary, rows, ranks_that_fit))


def _cells(row: SummaryRow) -> tuple[str, ...]:
    estimates = row.estimates
    serial = "-" if row.serial_fraction is None else f"{row.serial_fraction:.3f}"
    times = [estimates[name] for name in QUANTITIES if name != "fps"]
    return (
        f"{'* ' if row.is_beyond_cores else ''}{row.world_size}",
        _text(estimates["fps"], ",.0f"),
        _text(estimates["speedup"], ".2f"),
        _text(estimates["efficiency"], ".2f"),
        serial,
        *(_text(time and Estimate(1000 * time.mean), ".1f") for time in times),
    )


def _text(estimate: Estimate | None, form: str) -> str:
    """`100 ± 3` with an interval, `100 (98 to 103)` of too few repeats for one."""
    if estimate is None:
        return "-"
    if estimate.low is None or estimate.high in (None, estimate.mean):  # one value, or the baseline versus itself
        return format(estimate.mean, form)
    if estimate.is_interval:
        return f"{estimate.mean:{form}} ± {estimate.high - estimate.mean:{form}}"
    return f"{estimate.mean:{form}} ({estimate.low:{form}} to {estimate.high:{form}})"


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]


def _notes(summary: Sequence[SummaryRow], rows: Sequence[RunRow], ranks_that_fit: int) -> list[str]:
    notes = []
    if any(row.is_beyond_cores for row in summary):
        notes.append(
            f"* oversubscribed: this machine has physical cores for {counted(ranks_that_fit, 'rank')}, so ranks "
            "share cores"
        )
    base = min((row.world_size for row in summary), default=1)
    if base > 1:
        notes.append(f"The baseline is {base} ranks: speed-ups are relative to it, and there is no serial fraction.")
    notes += [*_spread_notes(summary), "Times are in milliseconds."]
    unfinished = sum(row.state != "finished" for row in rows)
    if unfinished:
        notes.append(f"{unfinished} of {len(rows)} runs did not finish; per_run.csv says why.")
    return notes


def _spread_notes(summary: Sequence[SummaryRow]) -> list[str]:
    """What the table gives with a mean, and why."""
    estimates = [one for row in summary for one in row.estimates.values() if one is not None and one.low is not None]
    notes = []
    if any(one.is_interval for one in estimates):
        notes.append("± is the 95 % interval of the mean over the repeats (Student's t).")
    if not all(one.is_interval for one in estimates):
        notes.append(
            f"In parentheses the lowest and the highest repeat: an interval takes at least {MIN_RUNS} repeats."
        )
    return notes


def write_plots(folder: Path, summary: Sequence[SummaryRow], settings: Settings, ranks_that_fit: int) -> None:
    """plots.png: steps/s, speed-up, efficiency and phase times over the number of ranks."""
    with figure_for([folder / "plots.png"], HEIGHT) as figure:
        figure.suptitle(_title(summary, settings))
        axes = figure.subplots(2, 2)
        for axis, (quantity, (title, unit)) in zip(axes.flat, PANELS.items(), strict=False):
            _draw_curves(axis, summary, quantity)
            _draw_ideal(axis, summary, quantity)
            label(axis, title, "ranks", unit)
            lift_from_frame(axis, is_from_zero=True)
            _shade_shared_cores(axis, summary, ranks_that_fit)
        _draw_phases(axes[1, 1], summary)
        label(axes[1, 1], "Where the time goes", "ranks", "milliseconds per update")
        handles, labels = axes[0, 1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels) or 1)


def _title(summary: Sequence[SummaryRow], settings: Settings) -> str:
    """What was measured, then under which budget and on how many cores."""
    parts = [
        limit_text(settings.training),
        counted(max((row.finished_repeats for row in summary), default=0), "repeat"),
        f"seed {settings.env.seed}",
        f"{counted(settings.hardware.num_threads or 1, 'thread')} per rank",
        counted(cores.observe().physical, "core"),
    ]
    return f"Scaling of {settings.log_name}{SEPARATOR}{game_name(settings.env.name)}\n{SEPARATOR.join(parts)}"


def _draw_curves(axis: Axes, summary: Sequence[SummaryRow], quantity: str) -> None:
    offset = max((row.world_size for row in summary), default=1) / 60  # so that error bars do not overlap
    for k, scaling in enumerate(dict.fromkeys(row.scaling for row in summary)):
        points = [
            (row.world_size + k * offset, estimate)
            for row in summary
            if row.scaling == scaling and (estimate := row.estimates[quantity]) is not None
        ]
        axis.errorbar(
            [position for position, _ in points],
            [value.mean for _, value in points],
            yerr=_margins([value for _, value in points]),
            capsize=4,
            label=scaling,
            **STYLES[scaling],
        )
    axis.set_xticks(sorted({row.world_size for row in summary}))


def _margins(estimates: Sequence[Estimate]) -> tuple[list[float], list[float]]:
    """Below and above each mean; nothing that is drawn here can be below 0."""
    below = [0.0 if one.low is None else one.mean - max(0.0, one.low) for one in estimates]
    return below, [0.0 if one.high is None else one.high - one.mean for one in estimates]


def _draw_ideal(axis: Axes, summary: Sequence[SummaryRow], quantity: str) -> None:
    sizes = sorted({row.world_size for row in summary})
    ideal = {"speedup": [size / sizes[0] for size in sizes], "efficiency": [1.0 for _ in sizes]}
    if sizes and quantity in ideal:
        axis.plot(sizes, ideal[quantity], color="#555555", linestyle=":", label="ideal")


def _shade_shared_cores(axis: Axes, summary: Sequence[SummaryRow], ranks_that_fit: int) -> None:
    if any(row.is_beyond_cores for row in summary):
        low, high = axis.get_xlim()
        axis.axvspan(ranks_that_fit + 0.5, high, color="#000000", alpha=0.08, lw=0, label="shared cores")
        axis.set_xlim(low, high)


def _draw_phases(axis: Axes, summary: Sequence[SummaryRow]) -> None:
    """Bars of strong and of weak scaling, a gap between them, each group with its name below."""
    measured = [row for row in summary if row.estimates["t_iter"] is not None]
    scalings = list(dict.fromkeys(row.scaling for row in measured))
    positions = [k + GROUP_GAP * scalings.index(row.scaling) for k, row in enumerate(measured)]
    bottoms = [0.0 for _ in measured]
    for phase in ("rollout", "learn", "sync"):
        heights = [1000 * estimate.mean if (estimate := row.estimates[f"t_{phase}"]) else 0.0 for row in measured]
        axis.bar(
            positions,
            heights,
            bottom=bottoms,
            edgecolor="#222222",
            linewidth=0.5,
            width=0.6,
            label=phase,
            **PHASE_STYLES[phase],
        )
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    axis.set_xticks(positions, [str(row.world_size) for row in measured])
    if len(scalings) > 1:
        _name_groups(axis, positions, [row.scaling for row in measured])
    axis.set_xlim(-0.6, max(positions, default=0) + 0.6)
    axis.set_ylim(0, (max(bottoms, default=0.0) or 1.0) * 1.25)  # room for the legend above the bars
    axis.legend(ncols=3, loc="upper center")


def _name_groups(axis: Axes, positions: Sequence[float], names: Sequence[str]) -> None:
    """Each name once, below the middle of its bars."""
    groups: dict[str, list[float]] = {}
    for position, name in zip(positions, names, strict=True):
        groups.setdefault(name, []).append(position)
    axis.xaxis.remove_overlapping_locs = False  # the middle may be a bar's own place
    middles = [(own[0] + own[-1]) / 2 for own in groups.values()]
    axis.set_xticks(middles, [f"\n{name}" for name in groups], minor=True)
    axis.tick_params(axis="x", which="minor", length=0, pad=8)


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys() if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    write_atomically(path, text.encode())
