"""`rlcluster suite FILE.yaml`: trains and evaluates every cell of a plan as a separate run, then writes one report.

OUTPUT/cells/NAME.yaml   the settings of a cell; `rlcluster train --config` runs it by hand
OUTPUT/runs/NAME/        its run directory, with evaluation.json and play_*.mp4
OUTPUT/logs/NAME.log     the output of its processes
OUTPUT/suite.json        the final state and the timings of each cell
OUTPUT/comparison.*      the report: html, png, txt, json

Finished cells are skipped, so the same command resumes an interrupted suite and retries failed cells.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from rlcluster.experiments.commands import failure_text, rlcluster_command, run_to_completion
from rlcluster.experiments.suite_plan import Cell, Suite, read_suite
from rlcluster.experiments.suite_progress import CellProgress
from rlcluster.reports.compare import Outputs, write
from rlcluster.reports.comparison import Options, compare
from rlcluster.reports.comparison_text import score_lines, table_text
from rlcluster.reports.reference import ranges
from rlcluster.runs.checkpoints import has_checkpoint
from rlcluster.runs.config import read_run_settings
from rlcluster.runs.evaluations import clip_file, clips_of, episodes_evaluated, evaluation_file
from rlcluster.runs.files import RUNS_FOLDER, make_folders
from rlcluster.runs.reader import RecordedRun, read_run, read_summary
from rlcluster.runs.status import acquire_lock, is_being_written, read_state
from rlcluster.settings.games import procgen_game
from rlcluster.settings.loading import flatten
from rlcluster.settings.resume import resume_differences
from rlcluster.settings.schema import Settings, budgets
from rlcluster.system.atomic_file import write_atomically, write_json
from rlcluster.system.console import clock_text, counted, say, warn
from rlcluster.system.errors import EXIT_RUN_FAILED, UserError
from rlcluster.system.signals import StopRequest

SPEED_SETTINGS = ("parallel.num_workers", "parallel.workers_per_rank", "hardware.num_threads", "hardware.kernels")
SUITE_FILE = "suite.json"
STARTING_SECONDS, EVALUATING_SECONDS = 4.0, 10.0  # estimates; the second is replaced by measured evaluations

CellState = Literal["finished", "failed", "stopped"]


class Outcome(NamedTuple):
    """How a cell ended."""

    name: str
    state: CellState
    train_seconds: float  # of the process, including its start-up
    evaluate_seconds: float
    error: str | None = None


def suite_command(file: Path, output_dir: Path | None) -> int:
    """Returns 0 if every cell finished."""
    suite = read_suite(file)
    folder = output_dir or RUNS_FOLDER / suite.name
    make_folders(folder, *(folder / name for name in ("cells", "runs", "logs")))
    lock = acquire_lock(folder)
    try:
        _refuse_other_runs(folder, suite.cells)
        with StopRequest(ignores_second_signal=True) as stop:  # a second signal must not orphan a run
            return _SuiteRun(suite, folder, stop).run()
    finally:
        os.close(lock)


class _SuiteRun:
    """One pass over the cells."""

    def __init__(self, suite: Suite, folder: Path, stop: StopRequest) -> None:
        self._suite, self._folder, self._stop = suite, folder, stop
        self._outcomes: list[Outcome] = []
        self._outcomes_before = self._read_state()
        self._heading = ""
        self._start = time.perf_counter()

    def run(self) -> int:
        pending = [cell for cell in self._suite.cells if not self._is_done(cell)]
        self._print_plan(pending)
        for number, cell in enumerate(pending, 1):
            if self._stop.requested:
                break
            self._heading = f"cell {number} of {len(pending)}: {cell.name} ... "
            say(self._heading, end="")
            outcome = self._try_cell(cell)
            self._outcomes.append(outcome)
            say(self._outcome_text(cell, outcome, pending[number:]))
            self._write_state()
        failed = [outcome for outcome in self._outcomes if outcome.state == "failed"]
        self._report(failed)
        self._print_times()
        if self._stop.signal_number is not None:
            say(f"stopped by a signal; to resume: rlcluster suite {self._suite.file} --output-dir {self._folder}")
            return 128 + self._stop.signal_number
        return EXIT_RUN_FAILED if failed else 0

    def _is_done(self, cell: Cell) -> bool:
        return self._is_trained(cell) and self._is_evaluated(cell)

    def _is_trained(self, cell: Cell) -> bool:
        state = read_state(self._path(cell))
        return state is not None and state.state == "finished"

    def _is_evaluated(self, cell: Cell) -> bool:
        """True if the evaluation has the planned number of episodes, and a clip if the plan wants one."""
        plan, path = self._suite.plan.evaluation, self._path(cell)
        if plan.num_episodes == 0:
            return True
        has_clip = not plan.video or bool(clips_of(path))
        return has_clip and episodes_evaluated(path) == {plan.num_episodes}

    def _path(self, cell: Cell) -> Path:
        return self._folder / "runs" / cell.name

    def _try_cell(self, cell: Cell) -> Outcome:
        """A cell whose files cannot be written fails; the suite continues."""
        try:
            return self._run_cell(cell)
        except (UserError, OSError) as error:
            return Outcome(cell.name, "failed", 0.0, 0.0, str(error))

    def _run_cell(self, cell: Cell) -> Outcome:
        log = self._folder / "logs" / f"{cell.name}.log"
        train_seconds = evaluate_seconds = 0.0
        if not self._is_trained(cell):
            command = self._training_command(cell)
            train_seconds, error = self._run_command(command, log)
            if error is not None:
                return Outcome(cell.name, "stopped" if self._stop.requested else "failed", train_seconds, 0.0, error)
        if not self._is_evaluated(cell):
            evaluate_seconds, error = self._run_command(self._evaluation_command(cell), log)
            if error is not None:
                state: CellState = "stopped" if self._stop.requested else "failed"
                return Outcome(cell.name, state, train_seconds, evaluate_seconds, error)
        return Outcome(cell.name, "finished", train_seconds, evaluate_seconds)

    def _run_command(self, command: list[str], log: Path) -> tuple[float, str | None]:
        """Returns the seconds it took, and the error if it failed."""
        start = time.perf_counter()
        progress = CellProgress(log, self._heading)
        exit_code, errors = run_to_completion(command, self._stop, log, progress.show)
        progress.clear()
        with log.open("a", encoding="utf-8") as file:
            file.write(errors)
        return time.perf_counter() - start, None if exit_code == 0 else failure_text(exit_code, errors)

    def _training_command(self, cell: Cell) -> list[str]:
        """Resumes a run that has a checkpoint; moves any other aside and starts again."""
        path = self._path(cell)
        if has_checkpoint(path):
            return rlcluster_command("train", "--resume", "--output-dir", str(path))
        if path.exists():
            aside = next(
                name for k in range(1, 10**6) if not (name := path.with_name(f"{path.name}.failed-{k}")).exists()
            )
            path.rename(aside)
        file = self._folder / "cells" / f"{cell.name}.yaml"
        write_atomically(file, cell.settings.to_yaml().encode())
        return rlcluster_command("train", "--config", str(file), "--output-dir", str(path))

    def _evaluation_command(self, cell: Cell) -> list[str]:
        plan, path, env = self._suite.plan.evaluation, self._path(cell), cell.settings.env
        levels = "train" if env.distribution_mode == "exploration" and procgen_game(env.name) else "both"
        arguments = ["--levels", levels, "--num-episodes", str(plan.num_episodes), "--json", str(evaluation_file(path))]
        if plan.video:
            arguments += ["--video", str(clip_file(path))]
        if cell.settings.hardware.num_threads is not None and cell.settings.mode == "sequential":
            arguments += ["--num-threads", str(cell.settings.hardware.num_threads)]
        return rlcluster_command("evaluate", "--checkpoint", str(path), *arguments)

    def _print_plan(self, pending: Sequence[Cell]) -> None:
        plan, cells = self._suite.plan, self._suite.cells
        say(
            f"{self._suite.name}: {' '.join(plan.algorithms)} × {' '.join(plan.modes)} × {' '.join(plan.games)} × "
            f"{counted(len(plan.seeds), 'seed')} = {counted(len(cells), 'cell')}, {len(cells) - len(pending)} done -> "
            f"{self._folder}"
        )
        seconds = self._remaining_seconds(pending)
        if seconds is None:
            say("planned wall-clock: known after the first cell (the budget is in steps)")
        else:
            say(f"planned wall-clock: {clock_text(seconds)}")

    def _remaining_seconds(self, cells: Sequence[Cell]) -> float | None:
        """Timed cells take their duration, others the mean of finished ones; None if none has finished."""
        known_cells = [*self._outcomes_before.values(), *self._outcomes]
        finished = [outcome for outcome in known_cells if outcome.state == "finished"]
        evaluations = [outcome.evaluate_seconds for outcome in finished if outcome.evaluate_seconds > 0]
        evaluation = sum(evaluations) / len(evaluations) if evaluations else EVALUATING_SECONDS
        evaluation = evaluation if self._suite.plan.evaluation.num_episodes else 0.0
        trained = {outcome.name: outcome.train_seconds for outcome in finished if outcome.train_seconds > 0}
        seconds = 0.0
        for cell in cells:
            duration = cell.settings.training.duration
            alike = [value for name, value in trained.items() if name.startswith(cell.settings.run_name)]
            known = alike or list(trained.values())
            if duration is None and not known:
                return None
            seconds += evaluation + (duration + STARTING_SECONDS if duration else sum(known) / len(known))
        return seconds

    def _outcome_text(self, cell: Cell, outcome: Outcome, pending: Sequence[Cell]) -> str:
        if outcome.state != "finished":
            return f"{outcome.state}: {outcome.error}"
        summary = read_summary(self._path(cell))
        reward = summary["final_reward"]
        text = f"{summary['average_fps']:,.0f} fps, reward {'-' if reward is None else f'{reward:.2f}'}"
        remaining = self._remaining_seconds(pending)
        return text if remaining is None or not pending else f"{text}, ETA {clock_text(remaining)}"

    def _read_state(self) -> dict[str, Outcome]:
        """The outcomes of earlier passes."""
        path = self._folder / SUITE_FILE
        if not path.exists():
            return {}
        return {cell["name"]: Outcome(**cell) for cell in json.loads(path.read_text())["cells"]}

    def _write_state(self) -> None:
        """Writes the outcomes of this pass and, for cells it did not run, of earlier ones."""
        cells = {**self._outcomes_before, **{outcome.name: outcome for outcome in self._outcomes}}
        listed = [outcome._asdict() for outcome in cells.values()]
        content = {"plan": self._suite.plan.model_dump(mode="json"), "cells": listed}
        write_json(self._folder / SUITE_FILE, content)

    def _report(self, failed: Sequence[Outcome]) -> None:
        runs, missing = self._readable_runs()
        if not runs:
            warn("no report: no cell has a readable run")
            return
        plan = self._suite.plan
        options = Options(ranges(plan.score_ranges.items()), with_reference=plan.reference)
        comparison = compare(runs, [run.path.name for run in runs], options)
        failures = [f"{outcome.name} failed: {outcome.error}" for outcome in failed]
        comparison = comparison._replace(warnings=[*failures, *missing, *comparison.warnings])
        outputs = Outputs.inside(self._folder)
        note = f"{len(runs)} of {counted(len(self._suite.cells), 'cell')}"
        write(comparison, outputs, f"Suite {self._suite.name}", note=note)
        for warning in comparison.warnings:
            warn(warning)
        say(table_text(comparison) + "\n" + "\n".join(score_lines(comparison)) + f"\n\nReport: {outputs.page}")

    def _readable_runs(self) -> tuple[list[RecordedRun], list[str]]:
        runs, missing = [], []
        for cell in self._suite.cells:
            try:
                runs.append(read_run(self._path(cell)))
            except UserError as error:
                missing.append(f"missing from this report: {error}")
        return runs, missing

    def _print_times(self) -> None:
        total = time.perf_counter() - self._start
        training = sum(outcome.train_seconds for outcome in self._outcomes)
        evaluation = sum(outcome.evaluate_seconds for outcome in self._outcomes)
        rest = total - training - evaluation
        share = f" ({rest / training:.1%} of training)" if training else ""
        say(
            f"Wall-clock: training {clock_text(training)}, evaluation {clock_text(evaluation)}, "
            f"overhead {rest:.1f} s{share}"
        )


def _refuse_other_runs(folder: Path, cells: Sequence[Cell]) -> None:
    """Refuses existing runs whose settings differ from the plan's: the folder belongs to another plan. Cells without a
    checkpoint start again anyway, so they may differ.
    """
    for cell in cells:
        path = folder / "runs" / cell.name
        if is_being_written(path):
            raise UserError(f"{path} is being written by another process; wait for it or stop it")
        if not has_checkpoint(path):
            continue
        differences = _differences(read_run_settings(path), cell.settings)
        if differences:
            raise UserError(
                f"{path} was made with settings that differ from the plan: {'; '.join(differences)}; choose another "
                "--output-dir"
            )


def _differences(old: Settings, new: Settings) -> list[str]:
    """Differences in settings that affect the result, in the budget, and in the speed settings that the plan gives."""
    differences = resume_differences(old, new)
    if budgets(old) != budgets(new):
        differences.append(f"budget {budgets(new)} but the run has {budgets(old)}")
    old_values, new_values = flatten(old.to_dict()), flatten(new.to_dict())
    for key in SPEED_SETTINGS:
        if new_values.get(key) is not None and new_values[key] != old_values.get(key):
            differences.append(f"{key}={new_values[key]} but the run has {old_values.get(key)}")
    return differences
