"""`rlcluster suite FILE.yaml`: trains and evaluates every cell of a plan as a separate run, then writes one report.

OUTPUT/cells/NAME.yaml   the settings of a cell; `rlcluster train --config` runs it by hand
OUTPUT/cells/NAME.json   its final state and timings, also where tasks of a scheduler's job run the cells
OUTPUT/runs/NAME/        its run directory, with evaluation.json and play_*.mp4
OUTPUT/logs/NAME.log     the output of its processes
OUTPUT/suite.json        the same of all cells
OUTPUT/comparison.*      the report: html, png, json, and the table of scores as csv, md and tex

Finished cells are skipped, so the same command resumes an interrupted suite and retries failed cells. A pattern on the
names of cells (--only) runs a part; the report is always of all cells that have a run.
"""

from __future__ import annotations

import os
import shlex
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rlcluster.experiments.commands import failure_text, rlcluster_command, run_to_completion
from rlcluster.experiments.side_by_side import partition_cores, run_side_by_side
from rlcluster.experiments.suite_outcomes import (
    CellState,
    Outcome,
    Share,
    assumed_seconds,
    expected_seconds,
    record_outcome,
    record_suite,
    recorded_outcomes,
    sharing_notes,
)
from rlcluster.experiments.suite_plan import Cell, Suite, read_suite
from rlcluster.experiments.suite_progress import CellProgress
from rlcluster.experiments.suite_report import REFRESH_SECONDS, SuiteReport
from rlcluster.runs.checkpoints import has_checkpoint
from rlcluster.runs.config import read_run_settings
from rlcluster.runs.evaluations import clip_file, clips_of, episodes_evaluated, evaluation_file
from rlcluster.runs.files import RUNS_FOLDER, make_folders
from rlcluster.runs.reader import read_summary
from rlcluster.runs.status import acquire_lock, is_being_written, read_state
from rlcluster.settings.games import procgen_game
from rlcluster.settings.loading import flatten
from rlcluster.settings.resume import resume_differences
from rlcluster.settings.schema import Settings, budgets
from rlcluster.system import cores
from rlcluster.system.atomic_file import write_atomically
from rlcluster.system.console import clock_text, counted, say
from rlcluster.system.cores import Cores
from rlcluster.system.errors import EXIT_RUN_FAILED, EXIT_SAVED, UserError
from rlcluster.system.signals import StopRequest

SPEED_SETTINGS = ("parallel.num_workers", "parallel.workers_per_rank", "hardware.num_threads", "hardware.kernels")


class Part(NamedTuple):
    """The part of a suite that one command or one job does."""

    only: str | None = None  # the cells whose names this pattern matches
    task_file: Path | None = None  # each line names the cells of a task, which writes no report
    task: int = 0
    report_only: bool = False
    in_job: bool = False

    def cells_of(self, suite: Suite) -> Sequence[Cell]:
        if self.report_only:
            return []
        if self.task_file is None:
            return suite.matching(self.only)
        tasks = self.task_file.read_text(encoding="utf-8").splitlines()
        if not self.task < len(tasks):
            raise UserError(f"--task {self.task}: {self.task_file} has {counted(len(tasks), 'task')}")
        return [cell for cell in suite.cells if cell.name in tasks[self.task].split()]


class How(NamedTuple):
    """How the cells are run."""

    num_jobs: int = 1  # side by side, each with cores of its own
    watch: bool = False  # keep the report up to date


class PendingCell(NamedTuple):
    """A cell that is not done."""

    name: str
    seconds: float  # expected


def pending_cells(suite: Suite, folder: Path, only: str | None = None) -> list[PendingCell]:
    """Of the cells that match `only`; also of a suite that was never started."""
    run = _SuiteRun(suite, folder, StopRequest(), Part(), partition_cores(cores.observe(), 1))
    cells = [cell for cell in suite.matching(only) if not run.is_done(cell)]
    measured = [run.remaining_seconds([cell]) for cell in cells]
    return [
        PendingCell(cell.name, assumed_seconds(suite, cell) if seconds is None else seconds)
        for cell, seconds in zip(cells, measured, strict=True)
    ]


def suite_command(file: Path, output_dir: Path | None, part: Part = Part(), how: How = How()) -> int:  # noqa: B008
    """Returns 0 if every cell of the part finished."""
    lanes = partition_cores(cores.observe(), how.num_jobs)
    suite = read_suite(file, lanes[0])
    chosen = part.cells_of(suite)
    folder = output_dir or RUNS_FOLDER / suite.name
    make_folders(folder, *(folder / name for name in ("cells", "runs", "logs")))
    lock = acquire_lock(folder, shared=part.task_file is not None or part.report_only)
    try:
        _refuse_other_runs(folder, chosen)
        with StopRequest(ignores_second_signal=True) as stop:  # a second signal must not orphan a run
            exit_code = _SuiteRun(suite, folder, stop, part, lanes).run(how.watch)
    finally:
        os.close(lock)
    if stop.signal_number is None:
        return exit_code
    if stop.signal_number == signal.SIGUSR1 and part.in_job:
        return EXIT_SAVED
    pattern = [] if part.only is None else ["--only", part.only]
    again = shlex.join(["rlcluster", "suite", str(file), "--output-dir", str(folder), *pattern])
    say(f"stopped by a signal; to resume: {again}")
    return 128 + stop.signal_number


class _SuiteRun:
    """One pass over the chosen cells."""

    def __init__(self, suite: Suite, folder: Path, stop: StopRequest, part: Part, lanes: Sequence[Cores]) -> None:
        self._suite, self._folder, self._stop, self._part, self._lanes = suite, folder, stop, part, lanes
        self._chosen = part.cells_of(suite)
        self._outcomes: list[Outcome] = []
        self._outcomes_before = recorded_outcomes(folder)
        self._pending: list[Cell] = []
        self._shares: dict[str, Share] = {}  # of the cells that this pass trains
        self._report = SuiteReport(suite, folder, self._chosen)
        self._lock = threading.Lock()  # of the outcomes and of the console, which the lanes share
        self._start = self._refreshed_at = time.perf_counter()

    def run(self, watch: bool = False) -> int:
        self._pending = [cell for cell in self._chosen if not self.is_done(cell)]
        self._print_plan(self._pending)
        numbered = [(number, len(self._pending), cell) for number, cell in enumerate(self._pending, 1)]
        run_side_by_side(numbered, self._lanes, self._run_numbered, self._refresh if watch else lambda: None)
        if self._part.task_file is None:
            self._conclude()
        while self._part.report_only and recorded_outcomes(self._folder) != self._outcomes_before:
            self._outcomes_before = recorded_outcomes(self._folder)  # a task has ended while the report was written
            self._conclude()
        self._print_times()
        return EXIT_RUN_FAILED if self._failed() else 0

    def _run_numbered(self, item: tuple[int, int, Cell]) -> None:
        number, total, cell = item
        if self._stop.requested:
            return
        self._shares[cell.name] = self._share_of(cell)
        heading = f"cell {number} of {total}: {cell.name} ... "
        say(heading, end="" if len(self._lanes) == 1 else "\n")
        outcome = self._try_cell(cell, heading)._replace(**self._shares[cell.name]._asdict())
        with self._lock:
            self._outcomes.append(outcome)
            self._pending.remove(cell)
            text = self._outcome_text(cell, outcome, self._pending)
            say(text if len(self._lanes) == 1 else f"{cell.name}: {text}")
            record_outcome(self._folder, outcome)

    def _conclude(self) -> None:
        """Writes the report, and the outcomes of this pass and, for cells it did not run, of earlier ones."""
        outcomes = {**self._outcomes_before, **{outcome.name: outcome for outcome in self._outcomes}}
        record_suite(self._folder, self._suite.plan.model_dump(mode="json"), outcomes.values())
        self._report.show(self._failed(), self._sharing_notes())

    def _share_of(self, cell: Cell) -> Share:
        """This pass's; of a cell that an earlier pass trained, or began to train side by side, that pass's."""
        before = self._outcomes_before.get(cell.name)
        own = Share(len(self._lanes), cores.observe().allowed)  # of this thread: a lane's
        if before is None or not (self._is_trained(cell) or has_checkpoint(self._path(cell))):
            return own
        return before.share if self._is_trained(cell) or before.num_jobs > own.num_jobs else own

    def _sharing_notes(self) -> list[str]:
        before = {name: outcome.share for name, outcome in self._outcomes_before.items()}
        return sharing_notes(before | self._shares, len(self._suite.cells))

    def _failed(self) -> list[Outcome]:
        """Of this pass; in a report alone, of all tasks."""
        outcomes = self._outcomes_before.values() if self._part.report_only else self._outcomes
        return [outcome for outcome in outcomes if outcome.state == "failed"]

    def _refresh(self) -> None:
        """Writes the report anew, from the runs as they are."""
        if time.perf_counter() - self._refreshed_at < REFRESH_SECONDS:
            return
        with self._lock:
            self._report.write(self._failed(), self._sharing_notes(), is_running=True)
        self._refreshed_at = time.perf_counter()

    def is_done(self, cell: Cell) -> bool:
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

    def _try_cell(self, cell: Cell, heading: str) -> Outcome:
        """A cell whose files cannot be written fails; the suite continues."""
        try:
            return self._run_cell(cell, heading)
        except (UserError, OSError) as error:
            return Outcome(cell.name, "failed", 0.0, 0.0, str(error))

    def _run_cell(self, cell: Cell, heading: str) -> Outcome:
        log = self._folder / "logs" / f"{cell.name}.log"
        train_seconds = evaluate_seconds = 0.0
        if not self._is_trained(cell):
            command = self._training_command(cell)
            train_seconds, error = self._run_command(command, log, heading)
            if error is not None:
                return Outcome(cell.name, "stopped" if self._stop.requested else "failed", train_seconds, 0.0, error)
        if not self._is_evaluated(cell):
            evaluate_seconds, error = self._run_command(self._evaluation_command(cell), log, heading)
            if error is not None:
                state: CellState = "stopped" if self._stop.requested else "failed"
                return Outcome(cell.name, state, train_seconds, evaluate_seconds, error)
        return Outcome(cell.name, "finished", train_seconds, evaluate_seconds)

    def _run_command(self, command: list[str], log: Path, heading: str) -> tuple[float, str | None]:
        """Returns the seconds it took, and the error if it failed."""
        start = time.perf_counter()
        if len(self._lanes) == 1:
            progress = CellProgress(log, heading)
            exit_code, errors = run_to_completion(command, self._stop, log, progress.show)
            progress.clear()
        else:  # the progress of several cells would overwrite one another; `rlcluster watch` shows them
            exit_code, errors = run_to_completion(command, self._stop, log)
        with log.open("a", encoding="utf-8") as file:
            file.write(errors)
        return time.perf_counter() - start, None if exit_code == 0 else failure_text(exit_code, errors)

    def _training_command(self, cell: Cell) -> list[str]:
        """Resumes a run that has a checkpoint; moves any other aside and starts again."""
        path, in_job = self._path(cell), ["--in-job"] if self._part.in_job else []
        if has_checkpoint(path):
            return rlcluster_command("train", "--resume", "--output-dir", str(path), *in_job)
        if path.exists():
            aside = next(
                name for k in range(1, 10**6) if not (name := path.with_name(f"{path.name}.failed-{k}")).exists()
            )
            path.rename(aside)
        file = self._folder / "cells" / f"{cell.name}.yaml"
        write_atomically(file, cell.settings.to_yaml().encode())
        return rlcluster_command("train", "--config", str(file), "--output-dir", str(path), *in_job)

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
        plan, cells, chosen = self._suite.plan, self._suite.cells, self._chosen
        part = "" if len(chosen) == len(cells) else f"; of these {len(chosen)}"
        say(
            f"{self._suite.name}: {' '.join(self._suite.methods)} × {' '.join(plan.games)} × "
            f"{counted(len(plan.seeds), 'seed')} = {counted(len(cells), 'cell')}{part}, "
            f"{len(chosen) - len(pending)} done -> {self._folder}"
        )
        seconds = self.remaining_seconds(pending)
        if seconds is None:
            say("planned wall-clock: known after the first cell (the budget is in steps)")
        else:
            say(f"planned wall-clock: {clock_text(seconds / len(self._lanes))}")
        if len(self._lanes) > 1:
            sizes = {lane.allowed for lane in self._lanes}
            say(Share(len(self._lanes), sizes.pop() if len(sizes) == 1 else None).text)

    def remaining_seconds(self, cells: Sequence[Cell]) -> float | None:
        """None: unknown."""
        return expected_seconds(self._suite, cells, [*self._outcomes_before.values(), *self._outcomes])

    def _outcome_text(self, cell: Cell, outcome: Outcome, pending: Sequence[Cell]) -> str:
        if outcome.state != "finished":
            return f"{outcome.state}: {outcome.error}"
        summary = read_summary(self._path(cell))
        reward = summary["final_reward"]
        text = f"{summary['average_fps']:,.0f} steps/s, reward {'-' if reward is None else f'{reward:.2f}'}"
        remaining = self.remaining_seconds(pending)
        if remaining is None or not pending:
            return text
        return f"{text}, ETA {clock_text(remaining / len(self._lanes))}"

    def _print_times(self) -> None:
        total = time.perf_counter() - self._start
        training = sum(outcome.train_seconds for outcome in self._outcomes)
        evaluation = sum(outcome.evaluate_seconds for outcome in self._outcomes)
        rest = total - (training + evaluation) / len(self._lanes)
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
