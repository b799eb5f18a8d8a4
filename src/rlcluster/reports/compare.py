"""`rlcluster compare` and `rlcluster plot`: read runs, write tables, figures and a page. Runs are never modified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlcluster.reports.comparison import Comparison, Options, compare
from rlcluster.reports.comparison_text import report_text, score_lines, table_text
from rlcluster.reports.drawing import FORMATS
from rlcluster.reports.figures import DEFAULT_PANELS, draw_comparison, draw_run
from rlcluster.reports.groups import Group, evaluated, groups_of, groups_of_task, speedup, summary_value
from rlcluster.reports.headline import SEPARATOR, headline, setup_text, steps_text
from rlcluster.reports.output_paths import check_output_file, check_outside_runs
from rlcluster.reports.page import page_text
from rlcluster.reports.reference_scores import DEFINITION, PublishedCurve, curves_until, published_curves
from rlcluster.reports.score_table import WRITERS, score_tables
from rlcluster.reports.scoring import Scoring
from rlcluster.runs.config import read_run_settings
from rlcluster.runs.files import RUNS_FOLDER, runs_below
from rlcluster.runs.metrics import read_metrics_file
from rlcluster.runs.reader import RecordedRun, read_run
from rlcluster.settings.games import game_name
from rlcluster.settings.schema import MODE_NAMES
from rlcluster.system.atomic_file import StorageError, write_atomically, write_json
from rlcluster.system.console import say, warn
from rlcluster.system.errors import UserError

NAME, REPORT = "comparison", "comparison_report.txt"
MEANS = ("average_fps", "duration_seconds", "total_timesteps", "peak_memory_gb")  # of comparison.json


class Outputs(NamedTuple):
    """Where a comparison is written."""

    figures: Sequence[Path]
    tables: Sequence[Path]  # of the scores
    report: Path
    page: Path
    data: Path

    @classmethod
    def inside(cls, folder: Path, formats: Sequence[str] = (".png",), name: str = NAME) -> Outputs:
        """`formats` are suffixes of figures and of tables; `name` is that of figures and tables."""
        figures, tables = (
            [folder / f"{name}{suffix}" for suffix in formats if suffix in known] for known in (FORMATS, WRITERS)
        )
        return cls(figures, tables, folder / REPORT, folder / f"{NAME}.html", folder / f"{NAME}.json")

    @property
    def files(self) -> list[Path]:
        return [*self.figures, *self.tables, self.report, self.page, self.data]


def compare_command(
    paths: Sequence[Path],
    titles: Sequence[str] | None,
    outputs: Callable[[Sequence[Path]], Outputs],
    options: Options,
    panels: Sequence[str] = DEFAULT_PANELS,
) -> int:
    """`titles` replace the runs' names in the table where flags named the runs (--sequential, --parallel)."""
    paths = paths or latest_of_each_mode()
    if len(paths) < 2:
        raise UserError(f"compare: {paths[0]} is one run only; give two or more, or use: rlcluster plot {paths[0]}")
    chosen = outputs(paths)
    runs = [read_run(path) for path in paths]
    if options.threshold is not None and len({run.game for run in runs}) > 1:
        raise UserError(f"--threshold {options.threshold:g}: the runs use different games; compare one game at a time")
    unknown = [game for game in options.ranges if game not in {run.game for run in runs}]
    if unknown:
        raise UserError(f"--score-range {unknown[0]}=...: no run uses that game; leave it out")
    for title, run in zip(titles or [], runs, strict=bool(titles)):
        if run.settings.mode != title.lower():
            warn(f"--{title.lower()} {run.path}: its mode is {run.settings.mode}")
    comparison = compare(runs, options=options)
    write(comparison, chosen, "Training comparison", Shown(titles, options.per_run, panels))
    show(comparison, titles, options.per_run)
    for path in chosen.files:
        say(f"Saved to: {path}")
    return 0


class Shown(NamedTuple):
    """How a comparison is shown."""

    titles: Sequence[str] | None = None  # instead of the runs' names, in text
    per_run: bool = False  # single runs in tables and, on the page, in curves
    panels: Sequence[str] = DEFAULT_PANELS
    note: str = ""  # next to the date on the page
    refresh_seconds: int | None = None  # the page reloads itself this often


def write(comparison: Comparison, outputs: Outputs, title: str, shown: Shown | None = None) -> None:
    shown = shown or Shown()
    draw_comparison(comparison, outputs.figures, shown.panels)
    write_atomically(outputs.report, report_text(comparison, shown.titles, shown.per_run).encode())
    write_atomically(outputs.page, _page(comparison, title, shown).encode())
    write_json(outputs.data, as_data(comparison))
    tables = score_tables(comparison, shown.per_run)
    for path in outputs.tables:
        write_atomically(path, WRITERS[path.suffix](tables).encode())


def _page(comparison: Comparison, title: str, shown: Shown) -> str:
    return page_text(comparison, title, shown.note, shown.per_run, shown.refresh_seconds)


def show(comparison: Comparison, titles: Sequence[str] | None = None, per_run: bool = False) -> None:
    """On the console: the two sentences, failures and warnings, the table, the scores."""
    say("\n".join([*headline(comparison), ""]))
    if comparison.failures:
        listed = "; ".join(f"{name}: {why}" for name, why in comparison.failures.items())
        warn(f"failed: {listed}")
    for warning in comparison.warnings:
        warn(warning)
    say(table_text(comparison, titles, per_run))
    say("\n".join(["", *score_lines(comparison, per_run), ""]))
    if comparison.has_repeats and not per_run and titles is None:
        say("One column per method; --per-run shows single runs.\n")


def choose_outputs(output: Path, formats: Sequence[str], runs: Sequence[Path]) -> Outputs:
    """`output` is a folder, or the figure's file, whose folder takes the other files. Never inside a run. `formats`
    are suffixes; none given: the figure's own, else .png.
    """
    is_figure = output.suffix in FORMATS and not output.is_dir()
    folder = output.parent if is_figure else output
    check_outside_runs("--output", folder, runs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"--output {output}", error) from None
    outputs = Outputs.inside(folder, *figure_choice(output if is_figure else folder / f"{NAME}.png", formats))
    for file in outputs.files:
        check_output_file("--output", file)
    return outputs


def figure_choice(figure: Path, formats: Sequence[str]) -> tuple[list[str], str]:
    """The suffixes to write, a figure's among them, and the name before them."""
    has_figure = any(suffix in FORMATS for suffix in formats)
    return [*([] if has_figure else [figure.suffix]), *formats], figure.stem


def latest_of_each_mode(folder: Path = RUNS_FOLDER) -> list[Path]:
    """The latest run, and the latest run of the same algorithm and game in each other mode: sequential first."""
    chosen: dict[str, RecordedRun] = {}
    for path in runs_below(folder):
        try:
            settings = read_run_settings(path)
            latest = next((run.settings for run in chosen.values()), settings)
            kind, wanted = ((one.algorithm, game_name(one.env.name)) for one in (settings, latest))
            if kind == wanted and settings.mode not in chosen:
                chosen[settings.mode] = read_run(path)
        except UserError as error:
            warn(f"skipped: {error}")
    if len(chosen) < 2:
        raise UserError(
            f"compare: {folder}/ has no two runs of the same algorithm and game in different modes; name the runs: "
            "rlcluster compare RUN RUN"
        )
    return [chosen[mode].path for mode in MODE_NAMES if mode in chosen]


def as_data(comparison: Comparison) -> dict[str, Any]:
    """comparison.json: the contents of the tables, machine-readable."""
    return {
        "headline": headline(comparison),
        "methods": _methods_data(comparison),
        "runs": [_run_data(comparison, k) for k in range(len(comparison.runs))],
        "failures": dict(comparison.failures),
        "warnings": list(comparison.warnings),
        "differences": [row._asdict() for row in comparison.differences],
        "references": [score.data for score in comparison.references],
        "reference_definition": DEFINITION if comparison.references else None,
        "scores": None if comparison.scoring is None else _scores_data(comparison.scoring),
    }


def _methods_data(comparison: Comparison) -> list[dict[str, Any]]:
    groups = groups_of(comparison)
    return [
        {
            "name": group.method,
            "key": comparison.key.get(group.method),
            "runs": [comparison.names[k] for k in comparison.methods[group.method]],
            "speedup": speedup(group, groups[0]),
            **{name: _mean(group.values(summary_value(name))) for name in MEANS},
            **_rewards_data(group),
            "games": {part.runs[0].task: _rewards_data(part) for part in _by_task(comparison, group.method)},
        }
        for group in groups
    ]


def _by_task(comparison: Comparison, method: str) -> list[Group]:
    groups = [group for task in comparison.tasks for group in groups_of_task(comparison, task)]
    return [group for group in groups if group.method == method]


def _rewards_data(group: Group) -> dict[str, float | None]:
    """Mean raw rewards; null of several games."""
    values = {"final_reward": summary_value("final_reward"), "unseen_levels": evaluated("test")}
    return {name: _mean(group.rewards(value)) for name, value in values.items()}


def _run_data(comparison: Comparison, k: int) -> dict[str, Any]:
    run, reached = comparison.runs[k], comparison.reached[k]
    return {
        "name": comparison.names[k],
        "path": str(run.path),
        "method": comparison.method_of(k),
        "game": run.game,
        "task": run.task,
        "seed": run.settings.env.seed,
        "cores": run.cores,
        "state": run.state.state if run.state is not None else None,
        "summary": dict(run.summary),
        "evaluation": run.evaluation and run.evaluation._asdict(),
        "generalisation_gap": run.evaluation and run.evaluation.gap,
        "mean_reward_until_shortest": comparison.efficiency[k],
        "first_at_threshold": reached and reached._asdict(),
    }


def _scores_data(scoring: Scoring) -> dict[str, Any]:
    return {
        "source": scoring.source,
        "left_out": list(scoring.left_out),
        "is_normalised": scoring.is_normalised,
        "methods": {
            method: {
                "scores": {game: values.tolist() for game, values in scoring.scores[method].items()},
                **{name: estimate._asdict() for name, estimate in aggregates.items()},
            }
            for method, aggregates in scoring.aggregates.items()
        },
        "probability_of_improvement": [
            {"method": method, "other": other, **interval._asdict()}
            for (method, other), interval in scoring.improvement.items()
        ],
        "why_uncertain": scoring.why_uncertain,
        "winner": scoring.verdict.winner,
        "verdict": scoring.verdict.text,
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def plot_command(
    run: Path | None,
    log_file: Path | None,
    output: Path | None,
    formats: Sequence[str] = (),
    with_reference: bool = False,
    panels: Sequence[str] = DEFAULT_PANELS,
) -> int:
    """The learning curves of a run or of a single metrics file."""
    if (run is None) == (log_file is None):
        raise UserError("plot: give a run directory, or --log-file FILE")
    published: Sequence[PublishedCurve] = []
    if run is not None:
        recorded = read_run(run)
        metrics, place, what = recorded.metrics, run.resolve(), f"{recorded.game} with these settings and steps"
        title = SEPARATOR.join([recorded.settings.log_name, setup_text([recorded])])
        if with_reference:
            curves = published_curves([recorded]).get(recorded.game, [])
            published = curves_until(curves, float(metrics["steps_global"][-1]))
        for warning in [*([f"failed {recorded.failure}"] if recorded.failure else []), *recorded.warnings]:
            warn(warning)
    else:
        assert log_file is not None
        metrics, place, what = read_metrics_file(log_file), log_file.resolve().parent, "a single metrics file"
        title = SEPARATOR.join([f"{place.name}/{log_file.name}", steps_text(float(metrics["steps_global"][-1]))])
    output = output or Path(f"{place.name}.png")
    check_output_file("--output", output, FORMATS)
    check_outside_runs("--output", output, [] if run is None else [run])
    suffixes, name = figure_choice(output, [suffix for suffix in formats if suffix in FORMATS])
    paths = [output.with_name(f"{name}{suffix}") for suffix in suffixes]
    draw_run(metrics, title, paths, published, panels)
    if with_reference and not published:
        warn(f"--reference: no published score for {what}; the plot is without")
    for path in paths:
        say(f"Saved to: {path}")
    return 0
