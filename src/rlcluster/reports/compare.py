"""`rlcluster compare` and `rlcluster plot`: read runs, write tables, figures and a page. Runs are never modified."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlcluster.reports.comparison import Comparison, Options, compare
from rlcluster.reports.comparison_text import report_text, score_lines, table_text
from rlcluster.reports.drawing import FORMATS
from rlcluster.reports.figures import draw_comparison, draw_run
from rlcluster.reports.output_paths import check_output_file, check_outside_runs
from rlcluster.reports.page import page_text
from rlcluster.runs.config import read_run_settings
from rlcluster.runs.files import RUNS_FOLDER, runs_below
from rlcluster.runs.metrics import read_metrics_file
from rlcluster.runs.reader import RecordedRun, read_run
from rlcluster.settings.games import game_name
from rlcluster.settings.schema import MODE_NAMES
from rlcluster.system.atomic_file import write_atomically, write_json
from rlcluster.system.console import say, warn
from rlcluster.system.errors import EXIT_STORAGE, UserError

FIGURE, REPORT, PAGE, DATA = "comparison.png", "comparison_report.txt", "comparison.html", "comparison.json"


class Outputs(NamedTuple):
    """Where a comparison is written."""

    figure: Path
    report: Path
    page: Path
    data: Path

    @classmethod
    def inside(cls, folder: Path) -> Outputs:
        return cls(*(folder / name for name in (FIGURE, REPORT, PAGE, DATA)))


def compare_command(paths: Sequence[Path], titles: Sequence[str] | None, output: Path, options: Options) -> int:
    """`titles` replace the runs' names in the table where flags named the runs (--sequential, --parallel)."""
    paths = paths or latest_of_each_mode()
    if len(paths) < 2:
        raise UserError(f"compare: {paths[0]} is one run only; give two or more, or use: rlcluster plot {paths[0]}")
    outputs = choose_outputs(output, paths)
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
    write(comparison, outputs, "Training comparison", titles)
    for warning in comparison.warnings:
        warn(warning)
    say(table_text(comparison, titles))
    say("\n".join(["", *score_lines(comparison), ""]))
    for path in outputs:
        say(f"Saved to: {path}")
    return 0


def write(
    comparison: Comparison, outputs: Outputs, title: str, titles: Sequence[str] | None = None, note: str = ""
) -> None:
    draw_comparison(comparison, outputs.figure)
    write_atomically(outputs.report, report_text(comparison, titles).encode())
    write_atomically(outputs.page, page_text(comparison, title, note).encode())
    write_json(outputs.data, as_data(comparison))


def choose_outputs(output: Path, runs: Sequence[Path]) -> Outputs:
    """`output` is a folder, or the figure's file, whose folder takes the other files. Never inside a run."""
    is_figure = output.suffix in FORMATS and not output.is_dir()
    folder = output.parent if is_figure else output
    check_outside_runs("--output", folder, runs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output {output}: {error.strerror} ({error.filename})", EXIT_STORAGE) from None
    outputs = Outputs.inside(folder)
    return outputs._replace(figure=output) if is_figure else outputs


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
    scoring = comparison.scoring
    return {
        "runs": [
            {
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
                "first_at_threshold": (reached := comparison.reached[k]) and reached._asdict(),
            }
            for k, run in enumerate(comparison.runs)
        ],
        "warnings": list(comparison.warnings),
        "differences": [row._asdict() for row in comparison.differences],
        "references": list(comparison.references),
        "scores": None
        if scoring is None
        else {
            "source": scoring.source,
            "left_out": list(scoring.left_out),
            "is_normalised": scoring.is_normalised,
            "methods": {
                method: {
                    "scores": {game: values.tolist() for game, values in scoring.scores[method].items()},
                    **{name: interval._asdict() for name, interval in aggregates.items()},
                }
                for method, aggregates in scoring.aggregates.items()
            },
            "probability_of_improvement": [
                {"method": method, "other": other, **interval._asdict()}
                for (method, other), interval in scoring.improvement.items()
            ],
            "winner": scoring.verdict.winner,
            "verdict": scoring.verdict.text,
        },
    }


def plot_command(run: Path | None, log_file: Path | None, output: Path | None, with_reference: bool) -> int:
    """The learning curves of a run or of a single metrics file."""
    if (run is None) == (log_file is None):
        raise UserError("plot: give a run directory, or --log-file FILE")
    if run is not None:
        recorded = read_run(run)
        settings = recorded.settings
        metrics, env, place = recorded.metrics, settings.env, run.resolve()
        steps = f"{recorded.summary['total_timesteps']:,} steps"
        title = f"{settings.log_name} on {settings.env.name}, seed {settings.env.seed}: {steps}"
        for warning in recorded.warnings:
            warn(warning)
    else:
        assert log_file is not None
        metrics, env, place = read_metrics_file(log_file), None, log_file.resolve().parent
        title = f"{log_file.resolve().parent.name}/{log_file.name}"
    output = output or Path(f"{place.name}.png")
    check_output_file("--output", output, FORMATS)
    check_outside_runs("--output", output, [] if run is None else [run])
    draw_run(metrics, title, output, env if with_reference else None)
    say(f"Saved to: {output}")
    return 0
