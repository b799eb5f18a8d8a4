"""A comparison as text: the console table and comparison_report.txt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rlcluster.reports.comparison import Comparison
from rlcluster.reports.efficiency import unfinished_tasks
from rlcluster.reports.fairness import Difference
from rlcluster.reports.groups import (
    Group,
    cores_spread,
    episodes_text,
    evaluated,
    evaluated_text,
    gap,
    groups_by_task,
    groups_of,
    speedup,
    summary_value,
)
from rlcluster.reports.headline import headline
from rlcluster.reports.method_curves import AXES
from rlcluster.reports.reference_scores import DEFINITION
from rlcluster.reports.score_table import game_table
from rlcluster.reports.scoring import AGGREGATE_TITLES, Scoring, evaluation_title
from rlcluster.reports.spreads import MISSING, estimate_text, mean_text, notation, spread_text
from rlcluster.reports.words import joined
from rlcluster.system.console import counted

LABEL_WIDTH, COLUMN_WIDTH, BLOCK_WIDTH = 41, 21, 84  # of a label, at least of a column, of all columns of a block
SPEEDUP = "Speedup"
EFFICIENCY = "Mean reward until the shortest finished run of the game ends"


class Row(NamedTuple):
    """A table row; `cell` takes a group and the first group, the baseline."""

    title: str
    cell: Callable[[Group, Group], str]


class Part(NamedTuple):
    title: str
    rows: Sequence[Row]


def table_text(comparison: Comparison, titles: Sequence[str] | None = None, per_run: bool = False) -> str:
    """One column per method, or per run, a few per block; speed-ups are relative to the first."""
    groups = groups_of(comparison, per_run, titles)
    names = [group.title for group in groups]
    heading = ["TRAINING COMPARISON"]
    if any(len(name) >= COLUMN_WIDTH for name in names):
        kind = "Run" if per_run or not comparison.has_repeats else "Method"
        heading += [f"{kind} {k}: {name}" for k, name in enumerate(names, 1)]
        names = [f"{kind} {k}" for k in range(1, len(names) + 1)]
    heading += comparison.key_lines
    cells = {
        part: [(row, [row.cell(group, groups[0]) for group in groups]) for row in part.rows]
        for part in parts(comparison, groups)
    }
    longest = max(len(cell) for rows in cells.values() for _, row in rows for cell in row)
    column = max(COLUMN_WIDTH, longest + 2)
    size = max(1, min(len(names), BLOCK_WIDTH // column))  # of a block
    width = LABEL_WIDTH + column * size
    lines = ["=" * width, heading[0], "=" * width, *heading[1:], *(["-" * width] if heading[1:] else [])]
    for begin in range(0, len(names), size):
        block = slice(begin, begin + size)
        lines += [_line("Metric", names[block], column), "-" * width]
        for part, rows in cells.items():
            lines += [] if part is PARTS[0] else ["", part.title, "-" * width]
            lines += [_line(_row_title(row, names), own[block], column) for row, own in rows]
        lines.append("=" * width)
    lines += by_game_lines(comparison, groups)
    shown = [*(cell for rows in cells.values() for _, row in rows for cell in row), *lines]
    notes = notation(shown, are_means=any(len(group.runs) > 1 for group in groups))
    lines += [notes] if notes else []
    return "\n".join(line.rstrip() for line in lines)


def by_game_lines(comparison: Comparison, groups: Sequence[Group]) -> list[str]:
    """The rewards of each method in each game, where a group has runs of several: their raw rewards have no mean."""
    table = None if all(group.is_of_one_task for group in groups) else game_table(comparison)
    if table is None:
        return []
    cells = [table.headings, *table.rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return ["", "Rewards by game", *(row.rstrip() for row in rows), ""]


def report_text(comparison: Comparison, titles: Sequence[str] | None = None, per_run: bool = False) -> str:
    """comparison_report.txt: the two sentences, warnings, methods or runs, speed-ups and scores."""
    groups = groups_of(comparison, per_run, titles)
    rule, thin = "=" * 80, "-" * 80
    pair = f"{groups[0].title} vs {groups[1].title} " if len(groups) == 2 else ""
    lines = [rule, f"{pair}training comparison report".upper(), rule, "", *headline(comparison), ""]
    for group in groups:
        lines += [f"{group.title} Directory: {run.path}" for run in group.runs]
    if comparison.failures:
        lines += ["", "FAILED RUNS", thin, *(f"{name}: {why}" for name, why in comparison.failures.items())]
    if comparison.warnings:
        lines += ["", "WARNINGS", thin, *comparison.warnings]
    for group in groups:
        lines += ["", f"{group.title} training".upper(), thin, *group_lines(group)]
    if by_game := by_game_lines(comparison, groups):
        lines += ["", "REWARDS BY GAME", thin, *by_game[2:-1]]
    if against_first := _against_first(groups):
        lines += ["", "COMPARISON", thin, *against_first]
    lines += ["", "SCORES", thin, *score_lines(comparison, per_run)]
    if comparison.differences:
        lines += ["", "SETTINGS THAT DIFFER", thin, *comparison.key_lines]
        lines += [f"Of {', '.join(group.title for group in groups)}:"]
        lines += [
            f"{row.key}: {', '.join(own_values(row, group) for group in groups)}" for row in comparison.differences
        ]
    return "\n".join(lines) + "\n"


def own_values(row: Difference, group: Group) -> str:
    """The values of a setting in a group; several where its runs differ: `1 / 2 / 3`."""
    return " / ".join(dict.fromkeys(MISSING if row.values[k] is None else str(row.values[k]) for k in group.positions))


def group_lines(group: Group) -> list[str]:
    summary = {
        "Total Timesteps": ("total_timesteps", ",.0f"),
        "Average FPS": ("average_fps", ",.0f"),
        "Peak Memory (GB)": ("peak_memory_gb", ".2f"),
    }
    cores = sorted({run.cores for run in group.runs})
    lines = [
        *([f"Runs: {group.count_text}"] if group.count_text != "1" else []),
        f"Duration: {_hours(group)} hours on {' or '.join(map(str, cores))} core{'' if cores == [1] else 's'}",
        *(f"{title}: {mean_text(group.values(summary_value(name)), form)}" for title, (name, form) in summary.items()),
    ]
    return [*lines, *(_reward_lines(group) if group.is_of_one_task else [])]


def _reward_lines(group: Group) -> list[str]:
    """Of one game; those of several are in a table by game."""
    final = mean_text(group.rewards(summary_value("final_reward")), ".2f")
    lines = [f"Final Reward (last 100 training episodes): {final}"]
    for levels, title in {"train": "Training Levels", "test": evaluation_title(group.runs).title()}.items():
        if episodes := episodes_text(group, levels):
            shown = mean_text(group.rewards(evaluated(levels)), ".2f")
            alone = evaluated_text(group.runs[0], levels)
            lines.append(f"{title}: {alone if len(group.runs) == 1 else f'{shown}, {episodes}'}")
    if any(run.evaluation is not None for run in group.runs):
        lines.append(f"Generalisation Gap: {mean_text(group.rewards(gap), '.2f')}")
    return lines


def score_lines(comparison: Comparison, per_run: bool = False) -> list[str]:
    """Aggregates, verdict, efficiency, time to threshold and the published scores."""
    scoring = comparison.scoring
    lines = [comparison.why_unscored] if scoring is None else _scoring_lines(comparison, scoring)
    groups = groups_by_task(comparison, per_run)
    lines += ["", f"{EFFICIENCY}, by steps, wall-clock and core-hours:", *efficiency_notes(comparison)]
    lines += [f"  {group.title}: {', '.join(efficiency_texts(comparison, group))}" for group in groups]
    arrivals = [(group.title, arrival) for group in groups if (arrival := arrival_of(comparison, group)) is not None]
    if arrivals:
        lines += ["", "Time to a mean reward (over 100 episodes) of:"]
        lines += [f"  {title}: {arrival.text}" for title, arrival in arrivals]
    if comparison.references:
        lines += ["", DEFINITION, *(f"  {score.text}" for score in comparison.references)]
    return lines


def efficiency_texts(comparison: Comparison, group: Group) -> list[str]:
    """The group's efficiency along each axis."""
    rows = [comparison.efficiency[k] for k in group.positions]
    return [mean_text([value for row in rows if (value := row[axis]) is not None], ".2f") for axis in AXES]


def efficiency_notes(comparison: Comparison) -> list[str]:
    """What the heading does not say."""
    tasks = unfinished_tasks(comparison.runs)
    if not tasks:
        return []
    return [f"No run of {joined(tasks)} has finished: until the shortest run there is, and a threshold that all reach."]


class Arrival(NamedTuple):
    """When the runs of a group first reached their threshold: means over those that did, None if none did."""

    threshold: str  # `7.00`; of several games `5.00 or 7.00`
    num_arrived: int
    num_runs: int
    steps: float | None = None
    minutes: float | None = None
    core_hours: float | None = None

    @property
    def text(self) -> str:
        if self.steps is None:
            return f"{self.threshold} not reached"
        share = "" if self.num_runs == 1 else f" by {self.num_arrived} of {counted(self.num_runs, 'run')}"
        return (
            f"{self.threshold}{share} after {self.steps:,.0f} steps, {self.minutes:.3g} minutes, "
            f"{self.core_hours:.3g} core-hours"
        )


def arrival_of(comparison: Comparison, group: Group) -> Arrival | None:
    """None without a threshold."""
    rows = [row for k in group.positions if (row := comparison.reached[k]) is not None]
    if not rows:
        return None
    threshold = " or ".join(sorted({f"{row.threshold:.2f}" for row in rows}))
    times = [
        (row.steps, row.seconds / 60, row.core_hours)
        for row in rows
        if row.steps is not None and row.seconds is not None and row.core_hours is not None
    ]
    means = [sum(axis) / len(times) for axis in zip(*times, strict=True)]
    return Arrival(threshold, len(times), len(rows), *means)


def _scoring_lines(comparison: Comparison, scoring: Scoring) -> list[str]:
    lines = [scoring.definition]
    for method, aggregates in scoring.aggregates.items():
        scores = scoring.scores[method]
        runs, games = counted(sum(map(len, scores.values())), "run"), counted(len(scores), "game")
        shown = [f"{AGGREGATE_TITLES[name]} {estimate_text(value)}" for name, value in aggregates.items()]
        lines.append(f"  {comparison.title_of(method)} ({runs}, {games}): {', '.join(shown)}")
    lines += [scoring.why_uncertain] if scoring.why_uncertain else []
    if comparison.excluded:
        lines.append(f"Excluded, without a score: {', '.join(comparison.excluded)}.")
    return [*lines, scoring.verdict.text]


def parts(comparison: Comparison, groups: Sequence[Group]) -> Iterator[Part]:
    """The sections of the table; the evaluation's only if a run has one, the number of runs only if a group has two."""
    has_evaluation = any(run.evaluation is not None for run in comparison.runs)
    for part in PARTS:
        if part is RUNS and all(group.count_text == "1" for group in groups):
            continue
        if part is not EVALUATION or has_evaluation:
            yield part


def _times(ratio: float | None) -> str:
    return MISSING if ratio is None else f"{ratio:.2f}x"


def _gain(group: Group, first: Group) -> str:
    ratio = speedup(group, first)
    return MISSING if ratio is None else f"{100 * (ratio - 1):.1f}%"


def _evaluated_short(group: Group, levels: str) -> str:
    episodes = sum(
        int(run.evaluation.results[levels]["episodes"])
        for run in group.runs
        if run.evaluation is not None and levels in run.evaluation.results
    )
    is_known = episodes and group.is_of_one_task
    return f"{mean_text(group.rewards(evaluated(levels)), '.2f')} (n={episodes})" if is_known else MISSING


def _hours(group: Group) -> str:
    hours = [float(run.summary["duration_seconds"]) / 3600 for run in group.runs]
    return mean_text(hours, ".2f" if max(hours) >= 0.1 else ".4f")


def _cores(group: Group, first: Group) -> str:
    return spread_text(cores_spread(group), ".0f")


def _summary_cell(name: str, form: str) -> Callable[[Group, Group], str]:
    return lambda group, first: mean_text(group.values(summary_value(name)), form)


def _reward_cell(name: str) -> Callable[[Group, Group], str]:
    return lambda group, first: mean_text(group.rewards(summary_value(name)), ".2f")


RUNS = Part("Runs", (Row("Runs", lambda group, first: group.count_text),))
EVALUATION = Part(
    "Evaluation (n: episodes)",
    (
        Row("Training Levels", lambda group, first: _evaluated_short(group, "train")),
        Row("Unseen Levels (or new episodes)", lambda group, first: _evaluated_short(group, "test")),
        Row("Generalisation Gap", lambda group, first: mean_text(group.rewards(gap), ".2f")),
    ),
)
PARTS = (
    Part(
        "",
        (
            Row("Duration (hours)", lambda group, first: _hours(group)),
            Row("Total Timesteps", _summary_cell("total_timesteps", ",.0f")),
            Row("Total Updates", _summary_cell("total_updates", ",.0f")),
        ),
    ),
    RUNS,
    Part(
        "Performance Metrics",
        (
            Row("Average FPS", _summary_cell("average_fps", ",.0f")),
            Row(SPEEDUP, lambda group, first: _times(speedup(group, first))),
            Row("Final FPS", _summary_cell("final_fps", ",.0f")),
        ),
    ),
    Part(
        "Reward Metrics",
        (
            Row("Initial Reward", _reward_cell("initial_reward")),
            Row("Final Reward", _reward_cell("final_reward")),
            Row("Best Reward", _reward_cell("best_reward")),
        ),
    ),
    EVALUATION,
    Part(
        "Resource Usage",
        (
            Row("Cores", _cores),
            Row("Peak Memory (GB)", _summary_cell("peak_memory_gb", ".2f")),
        ),
    ),
    Part(
        "Efficiency Metrics",
        (
            Row("Timesteps/Hour", _summary_cell("timesteps_per_hour", ",.0f")),
            Row("Efficiency Gain (%)", _gain),
        ),
    ),
)


def _against_first(groups: Sequence[Group]) -> list[str]:
    first, lines = groups[0], []
    for group in [group for group in groups[1:] if speedup(group, first) is not None]:
        prefix = "" if len(groups) == 2 else f"{group.title}, "
        lines.append(f"{prefix}Speedup (FPS): {_times(speedup(group, first))}")
        lines.append(f"{prefix}Efficiency Gain: {_gain(group, first)}")
    return lines


def _line(title: str, cells: Sequence[str], column: int) -> str:
    return title.ljust(LABEL_WIDTH) + "".join(cell.ljust(column) for cell in cells)


def _row_title(row: Row, names: Sequence[str]) -> str:
    if row.title != SPEEDUP:
        return row.title
    exact = f"{SPEEDUP} ({names[1]}/{names[0]})" if len(names) == 2 else ""
    return exact if 0 < len(exact) < LABEL_WIDTH else f"{SPEEDUP} (vs. the first)"
