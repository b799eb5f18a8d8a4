"""A comparison as text: the console table and comparison_report.txt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rlcluster.reports.comparison import Comparison, Reached, Scoring
from rlcluster.reports.statistics import Interval, Scores, has_spread
from rlcluster.runs.reader import RecordedRun
from rlcluster.system.console import counted

LABEL_WIDTH, COLUMN_WIDTH, RUNS_PER_BLOCK = 41, 21, 4
MISSING = "-"
SPEEDUP = "Speedup"
AGGREGATE_TITLES = {"iqm": "IQM", "mean": "mean", "median": "median", "optimality_gap": "optimality gap"}


class Row(NamedTuple):
    """A table row; `cell` takes a run and the first run, the baseline."""

    title: str
    cell: Callable[[RecordedRun, RecordedRun], str]


class Part(NamedTuple):
    title: str
    rows: Sequence[Row]


def table_text(comparison: Comparison, titles: Sequence[str] | None = None) -> str:
    """One column per run, a few runs per block; speed-ups are relative to the first run."""
    titles = titles or comparison.names
    width = LABEL_WIDTH + COLUMN_WIDTH * min(RUNS_PER_BLOCK, len(titles))
    lines = ["=" * width, "TRAINING COMPARISON", "=" * width]
    if any(len(title) >= COLUMN_WIDTH for title in titles):
        numbered = [f"Run {number}" for number in range(1, len(titles) + 1)]
        lines += [f"{number}: {title}" for number, title in zip(numbered, titles, strict=True)] + ["-" * width]
        titles = numbered
    for begin in range(0, len(titles), RUNS_PER_BLOCK):
        block = slice(begin, begin + RUNS_PER_BLOCK)
        lines += [_line("Metric", titles[block]), "-" * width]
        for part in parts(comparison):
            lines += [] if part is PARTS[0] else ["", part.title, "-" * width]
            for row in part.rows:
                cells = [row.cell(run, comparison.runs[0]) for run in comparison.runs[block]]
                lines.append(_line(_speedup_title(titles) if row.title == SPEEDUP else row.title, cells))
        lines.append("=" * width)
    return "\n".join(line.rstrip() for line in lines)


def report_text(comparison: Comparison, titles: Sequence[str] | None = None) -> str:
    """comparison_report.txt: warnings, each run, speed-ups relative to the first run, and scores."""
    titles = titles or comparison.names
    rule, thin = "=" * 80, "-" * 80
    pair = f"{titles[0]} vs {titles[1]} " if len(titles) == 2 else ""
    lines = [rule, f"{pair}training comparison report".upper(), rule, ""]
    lines += [f"{title} Directory: {run.path}" for title, run in zip(titles, comparison.runs, strict=True)]
    if comparison.warnings:
        lines += ["", "WARNINGS", thin, *comparison.warnings]
    for title, run in zip(titles, comparison.runs, strict=True):
        lines += ["", f"{title} training".upper(), thin, *run_lines(run)]
    lines += ["", "COMPARISON", thin, *_against_first(comparison, titles)]
    lines += ["", "SCORES", thin, *score_lines(comparison)]
    if comparison.differences:
        lines += ["", "SETTINGS THAT DIFFER", thin]
        lines += [f"{row.key}: {', '.join(map(str, row.values))}" for row in comparison.differences]
    return "\n".join(lines) + "\n"


def run_lines(run: RecordedRun) -> list[str]:
    summary = run.summary
    lines = [
        f"Duration: {_hours(run)} hours on {counted(run.cores, 'core')}",
        f"Total Timesteps: {summary['total_timesteps']:,}",
        f"Average FPS: {number(summary['average_fps'], ',.0f')}",
        f"Peak Memory: {number(summary['peak_memory_gb'], '.2f')} GB",
        f"Final Reward: {number(summary['final_reward'], '.2f')} (last 100 training episodes)",
    ]
    if run.evaluation is not None:
        titles = {"test": "Unseen Levels", "train": "Training Levels"}
        lines += [f"{titles.get(levels, levels)}: {evaluated_text(run, levels)}" for levels in run.evaluation.results]
        lines.append(f"Generalisation Gap: {number(run.evaluation.gap, '.2f')}")
    return lines


def score_lines(comparison: Comparison) -> list[str]:
    """Aggregates, verdict, efficiency, time to threshold and the published reference."""
    scoring = comparison.scoring
    lines = [comparison.why_unscored] if scoring is None else _scoring_lines(scoring)
    lines += ["", "Mean reward until the shortest run of the game ends, by steps, wall-clock and core-hours:"]
    for name, row in zip(comparison.names, comparison.efficiency, strict=True):
        lines.append(f"  {name}: " + ", ".join(number(row[axis], ".2f") for axis in row))
    reached = [(name, one) for name, one in zip(comparison.names, comparison.reached, strict=True) if one is not None]
    if reached:
        lines += ["", "Time to a mean reward (over 100 episodes) of:"]
        lines += [f"  {name}: {reached_text(one)}" for name, one in reached]
    if comparison.references:
        lines += ["", *comparison.references]
    return lines


def reached_text(reached: Reached) -> str:
    if reached.steps is None or reached.seconds is None or reached.core_hours is None:
        return f"{reached.threshold:.2f} not reached"
    return (
        f"{reached.threshold:.2f} after {reached.steps:,.0f} steps, {reached.seconds / 60:.1f} minutes, "
        f"{reached.core_hours:.3f} core-hours"
    )


def _scoring_lines(scoring: Scoring) -> list[str]:
    kind = "normalised by each game's range" if scoring.is_normalised else "not normalised"
    lines = [f"Score: {scoring.source}; {kind}. In brackets: 95 % intervals (stratified bootstrap)."]
    for method, aggregates in scoring.aggregates.items():
        scores = scoring.scores[method]
        runs, games = counted(sum(map(len, scores.values())), "run"), counted(len(scores), "game")
        parts = [f"{AGGREGATE_TITLES[name]} {interval_text(value, scores)}" for name, value in aggregates.items()]
        lines.append(f"  {method} ({runs}, {games}): {', '.join(parts)}")
    if scoring.left_out:
        lines.append(f"Excluded, without a score: {', '.join(scoring.left_out)}.")
    return [*lines, scoring.verdict.text]


def interval_text(interval: Interval, scores: Scores) -> str:
    text = f"{interval.value:.3f}"
    return f"{text} [{interval.low:.3f}, {interval.high:.3f}]" if has_spread(scores) else text


def number(value: float | None, form: str) -> str:
    return MISSING if value is None else format(value, form)


def parts(comparison: Comparison) -> Iterator[Part]:
    """The sections of the table; the evaluation's only if a run has one."""
    for part in PARTS:
        if part is not EVALUATION or any(run.evaluation is not None for run in comparison.runs):
            yield part


def speedup(run: RecordedRun, first: RecordedRun) -> float | None:
    own, base = run.summary["average_fps"], first.summary["average_fps"]
    return own / base if run is not first and own and base else None


def _times(ratio: float | None) -> str:
    return MISSING if ratio is None else f"{ratio:.2f}x"


def _gain(run: RecordedRun, first: RecordedRun) -> str:
    ratio = speedup(run, first)
    return MISSING if ratio is None else f"{100 * (ratio - 1):.1f}%"


def evaluated_text(run: RecordedRun, levels: str) -> str:
    """`6.13 (5.57 to 6.67), 300 episodes`"""
    if run.evaluation is None or levels not in run.evaluation.results:
        return MISSING
    result = run.evaluation.results[levels]
    low, high = result.get("reward_interval_95") or (None, None)
    interval = "" if low is None else f" ({low:.2f} to {high:.2f})"
    actions = ", greedy actions" if run.evaluation.deterministic else ""
    return f"{result['reward_mean']:.2f}{interval}, {result['episodes']} episodes{actions}"


def _evaluated_short(run: RecordedRun, levels: str) -> str:
    if run.evaluation is None or levels not in run.evaluation.results:
        return MISSING
    result = run.evaluation.results[levels]
    return f"{result['reward_mean']:.2f} (n={result['episodes']})"


def _hours(run: RecordedRun) -> str:
    hours = run.summary["duration_seconds"] / 3600
    return f"{hours:.2f}" if hours >= 0.1 else f"{hours:.4f}"


def _summary_cell(name: str, form: str) -> Callable[[RecordedRun, RecordedRun], str]:
    return lambda run, first: number(run.summary.get(name), form)


EVALUATION = Part(
    "Evaluation (n: episodes)",
    (
        Row("Training Levels", lambda run, first: _evaluated_short(run, "train")),
        Row("Unseen Levels (or new episodes)", lambda run, first: _evaluated_short(run, "test")),
        Row("Generalisation Gap", lambda run, first: number(run.evaluation and run.evaluation.gap, ".2f")),
    ),
)
PARTS = (
    Part(
        "",
        (
            Row("Duration (hours)", lambda run, first: _hours(run)),
            Row("Total Timesteps", _summary_cell("total_timesteps", ",")),
            Row("Total Updates", _summary_cell("total_updates", ",")),
        ),
    ),
    Part(
        "Performance Metrics",
        (
            Row("Average FPS", _summary_cell("average_fps", ",.0f")),
            Row(SPEEDUP, lambda run, first: _times(speedup(run, first))),
            Row("Final FPS", _summary_cell("final_fps", ",.0f")),
        ),
    ),
    Part(
        "Reward Metrics",
        (
            Row("Initial Reward", _summary_cell("initial_reward", ".2f")),
            Row("Final Reward", _summary_cell("final_reward", ".2f")),
            Row("Best Reward", _summary_cell("best_reward", ".2f")),
        ),
    ),
    EVALUATION,
    Part(
        "Resource Usage",
        (
            Row("Cores", lambda run, first: str(run.cores)),
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


def _against_first(comparison: Comparison, titles: Sequence[str]) -> list[str]:
    first, lines = comparison.runs[0], []
    for title, run in list(zip(titles, comparison.runs, strict=True))[1:]:
        prefix = "" if len(titles) == 2 else f"{title}, "
        ratio = speedup(run, first)
        lines.append(f"{prefix}Speedup (FPS): {_times(ratio)}")
        lines.append(f"{prefix}Efficiency Gain: {_gain(run, first)}")
    return lines or ["Only one run: nothing to compare."]


def _line(title: str, cells: Sequence[str]) -> str:
    return title.ljust(LABEL_WIDTH) + "".join(cell.ljust(COLUMN_WIDTH) for cell in cells)


def _speedup_title(titles: Sequence[str]) -> str:
    exact = f"{SPEEDUP} ({titles[1]}/{titles[0]})" if len(titles) == 2 else ""
    return exact if 0 < len(exact) < LABEL_WIDTH else f"{SPEEDUP} (vs. first run)"
