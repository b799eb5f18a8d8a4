"""One run on disk, as its writer sees it: settings, machine facts, metrics, checkpoints, summary. `recorded_run` is the
readers' side.

RUN/config.yaml  machine.json  run_state.json  benchmark_metrics.json
RUN/checkpoints/ppo_sequential_step_*.pt  ppo_sequential_final.pt
RUN/logs/PPO_Sequential/metrics.jsonl  events.out.tfevents.*
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

import yaml

from rlcluster.runs.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from rlcluster.runs.event_file import EventFile
from rlcluster.runs.reader import MACHINE_FILE, METRICS_FILE, SUMMARY_FILE, read_metrics, runs_below
from rlcluster.runs.status import (
    RUNS_FOLDER,
    RunState,
    StateName,
    acquire_lock,
    default_path,
    make_folders,
    read_state,
    refuse_occupied,
    write_state,
)
from rlcluster.settings.loading import load_settings, resume_differences
from rlcluster.settings.schema import CONFIG_FILE, MODE_NAMES, Settings
from rlcluster.system.atomic_file import write_atomically, write_json
from rlcluster.system.console import warn
from rlcluster.system.errors import EXIT_STORAGE, RankError, UserError


class RunDirectory:
    """The writer's side of a run: opened by one process at a time, new or to be continued."""

    def __init__(self, settings: Settings, resume: bool = False, restarts: int = 0) -> None:
        self.settings = settings
        self._state = RunState("running", restarts=restarts, parent=os.getppid())
        self.path = Path(settings.output.output_dir or default_path(settings))
        self._checkpoints = checkpoint_folder(settings, self.path)
        self._logs = Path(settings.output.log_dir or self.path / "logs") / settings.log_name
        self.restored: dict[str, Any] | None = None
        is_own = restarts > 0 and self._was_begun_here()
        if not resume and not is_own:
            self._refuse_existing()
        make_folders(self.path, self.path, self._checkpoints)
        self._lock = acquire_lock(self.path)
        try:
            if resume or (is_own and checkpoints_in(self._checkpoints, settings.algorithm)):
                self.restored = newest_checkpoint(self._checkpoints, settings.algorithm)
                self._refuse_other_run(self.restored)
                self._adopt_logs()
                self._remove_leftovers()
            make_folders(self.path, self._logs)
            without_place = settings.output.model_copy(update={"output_dir": None})  # so that it runs again elsewhere
            text = settings.model_copy(update={"output": without_place}).to_yaml()
            write_atomically(self.path / CONFIG_FILE, text.encode())
            self._open_logs()
            self._keep_running(self.restored)
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            for file in (self._metrics, self._events):
                self._close(file, quietly=error is not None)
            if error is not None:
                self._fail(error)
        finally:
            os.close(self._lock)

    def write_machine_facts(self, facts: dict[str, Any]) -> None:
        write_json(self.path / MACHINE_FILE, facts)

    def log(self, record: dict[str, Any]) -> None:
        """One JSON object per update, and the same in TensorBoard."""
        try:
            self._metrics.write(json.dumps(record, allow_nan=False) + "\n")
            self._metrics.flush()
            self._events.add(record)
        except OSError as error:
            raise self._not_writable(error) from None

    def save(self, content: dict[str, Any], final: bool = False) -> Path:
        """Writes a checkpoint, then drops the oldest periodic ones."""
        self._sync_metrics()  # metrics first: a checkpoint is never ahead of them
        name = "final" if final else f"step_{content['learner']['steps_global']}"
        path = self._checkpoints / f"{self.settings.run_name}_{name}.pt"
        save_checkpoint(path, content)
        self._keep_running(content)
        periodic = step_checkpoints(self._checkpoints, self.settings.algorithm)
        for old in periodic[: -self.settings.output.keep_checkpoints]:
            old.unlink(missing_ok=True)
        return path

    def write_summary(self, summary: dict[str, Any]) -> None:
        write_json(self.path / SUMMARY_FILE, summary)

    def conclude(self, state: StateName, reason: str | None = None) -> None:
        """Says how the run has ended."""
        self._state = self._state._replace(state=state, reason=reason)
        write_state(self.path, self._state)

    def _keep_running(self, checkpoint: dict[str, Any] | None) -> None:
        """The state of a run that goes on from its last checkpoint, or from nothing."""
        counters = checkpoint["learner"] if checkpoint is not None else {"steps_global": 0, "updates": 0}
        self._state = self._state._replace(steps_global=counters["steps_global"], update=counters["updates"])
        write_state(self.path, self._state)

    def _fail(self, error: BaseException) -> None:
        failed_rank = error.failed_rank if isinstance(error, RankError) else None
        self._state = self._state._replace(failed_rank=failed_rank)
        with contextlib.suppress(UserError):  # a disk that is full is already on its way to the user
            lines = str(error).splitlines() or [type(error).__name__]
            self.conclude("failed", getattr(error, "reason", lines[0]))

    def _sync_metrics(self) -> None:
        try:
            self._metrics.flush()
            os.fsync(self._metrics.fileno())
            self._events.flush()
        except OSError as error:
            raise self._not_writable(error) from None

    def _close(self, file: TextIO | EventFile, quietly: bool) -> None:
        """Closing writes what is still buffered; `quietly` where a first error is already on its way to the user."""
        try:
            file.close()
        except OSError as error:
            if not quietly:
                raise self._not_writable(error) from None

    def _not_writable(self, error: OSError) -> UserError:
        reason = f"{self._logs} cannot be written ({error.strerror})"
        return UserError(f"{reason}; free space and --resume", EXIT_STORAGE)

    def _refuse_existing(self) -> None:
        remedy = "continue it with --resume, or choose another --output-dir"
        refuse_occupied(self.path, remedy)
        if checkpoints_in(self._checkpoints, self.settings.algorithm):
            raise UserError(f"output.checkpoint_dir={self._checkpoints} holds checkpoints of a run; {remedy}")
        if (self._logs / METRICS_FILE).exists():
            raise UserError(f"output.log_dir={self._logs} holds the metrics of a run; {remedy}")

    def _was_begun_here(self) -> bool:
        """True if the process that started this one has started the last writer of this run too: a restart."""
        state = read_state(self.path)
        return state is not None and state.parent == self._state.parent

    def _adopt_logs(self) -> None:
        """A run that goes on in another mode keeps one log, under the new mode's name."""
        before = self.path / CONFIG_FILE
        old = load_settings(file=before).log_name if before.is_file() else self._logs.name
        if self._logs.with_name(old).is_dir() and not self._logs.exists():
            self._logs.with_name(old).rename(self._logs)

    def _refuse_other_run(self, checkpoint: dict[str, Any]) -> None:
        old = Settings.model_validate(yaml.safe_load(checkpoint["settings"]))
        differences = resume_differences(old, self.settings)
        if differences:
            raise UserError(f"--resume: the checkpoint is of other settings: {'; '.join(differences)}")

    def _remove_leftovers(self) -> None:
        """Half-written files of a process that was killed while it saved."""
        for folder in (self.path, self._checkpoints, self._logs):
            for file in folder.glob(".*.tmp"):
                file.unlink(missing_ok=True)

    def _open_logs(self) -> None:
        metrics = self._logs / METRICS_FILE
        first_step = 0
        if self.restored is not None:
            learner = self.restored["learner"]
            first_step = learner["steps_global"]
            kept = [line for line in read_metrics(metrics) if line["update"] <= learner["updates"]]
            text = "".join(json.dumps(line) + "\n" for line in kept)
            write_atomically(metrics, text.encode())
        try:
            self._metrics: TextIO = metrics.open("a", encoding="utf-8")
            self._events = EventFile(self._logs, first_step)
        except OSError as error:
            raise self._not_writable(error) from None


class SilentRun:
    """What ranks other than the first hold of a run: they write nothing."""

    def __init__(self, path: Path, restored: dict[str, Any] | None) -> None:
        self.path, self.restored = path, restored

    def log(self, record: dict[str, Any]) -> None:
        pass

    def save(self, content: dict[str, Any], final: bool = False) -> None:
        pass

    def write_summary(self, summary: dict[str, Any]) -> None:
        pass

    def conclude(self, state: StateName, reason: str | None = None) -> None:
        pass


def checkpoint_folder(settings: Settings, path: Path) -> Path:
    return Path(settings.output.checkpoint_dir or path / "checkpoints")


def step_checkpoints(folder: Path, algorithm: str) -> list[Path]:
    """The periodic checkpoints of a run, of all modes in which it has run, oldest first."""
    pattern = re.compile(rf"{algorithm}_(?:{'|'.join(MODE_NAMES)})_step_(\d+)\.pt")
    found = [(int(match[1]), path) for path in folder.glob("*.pt") if (match := pattern.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def checkpoints_in(folder: Path, algorithm: str) -> list[Path]:
    """All checkpoints of a run, the final ones first, then the newest: of all modes in which it has run."""
    finals = [folder / f"{algorithm}_{mode}_final.pt" for mode in MODE_NAMES]
    return [path for path in (*finals, *reversed(step_checkpoints(folder, algorithm))) if path.exists()]


def newest_checkpoint(folder: Path, algorithm: str) -> dict[str, Any]:
    """The furthest checkpoint that is whole. A damaged one is named on stderr, set aside as `*.damaged`, and the one
    before it is taken.
    """
    whole = []
    for path in checkpoints_in(folder, algorithm):
        try:
            whole.append(load_checkpoint(path))
        except CheckpointError as error:
            if not error.is_damaged:
                raise
            warn(f"{error}. Falling back to an earlier checkpoint.")
            path.rename(path.with_name(path.name + ".damaged"))
            continue
        if "_step_" in path.name:
            break  # the others are older
    if not whole:
        raise UserError(f"--resume: there is no usable checkpoint in {folder}; start a new run in another --output-dir")
    return max(whole, key=lambda content: int(content["learner"]["steps_global"]))


def find_checkpoint(path: Path) -> Path:
    """The checkpoint file that a path means: the file itself, or the furthest one of a run directory."""
    if not path.exists():
        raise UserError(f"--checkpoint {path}: there is no such file or run directory")
    if path.is_file():
        return path
    folders = [path, path / "checkpoints"]
    if (path / CONFIG_FILE).is_file():
        folders.append(checkpoint_folder(load_settings(file=path / CONFIG_FILE), path))
    files = [file for folder in folders for file in folder.glob("*.pt") if re.search(r"_(final|step_\d+)$", file.stem)]
    if not files:
        raise UserError(f"--checkpoint {path}: no checkpoint (*_final.pt or *_step_*.pt) in it or in its checkpoints/")
    return max(files, key=lambda file: (_steps_of(file), file.stem.endswith("_final")))


def _steps_of(checkpoint: Path) -> int:
    match = re.search(r"_step_(\d+)$", checkpoint.stem)
    return int(match[1]) if match else int(load_checkpoint(checkpoint)["learner"]["steps_global"])


def latest_run(folder: Path = RUNS_FOLDER) -> Path:
    """The run directory below `folder` that was begun or resumed last and has a checkpoint."""
    for run in runs_below(folder):
        if any(run.glob("checkpoints/*.pt")):
            return run
    raise UserError(f"no run with a checkpoint below {folder}/; give --checkpoint PATH or train first")
