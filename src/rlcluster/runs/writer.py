"""One run on disk as its writer sees it: settings, machine facts, log, checkpoints, summary, status."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from rlcluster.plan import Plan
from rlcluster.runs.checkpoint import Checkpoint, save_checkpoint
from rlcluster.runs.checkpoints import (
    Check,
    best_name,
    checkpoint_name,
    checkpoints_in,
    newest_checkpoint,
    refuse_without_checkpoint,
    step_checkpoints,
)
from rlcluster.runs.config import is_run, read_run_settings, write_run_settings
from rlcluster.runs.files import EVENT_FILES, LOGGERS_FILE, METRICS_FILE, SUMMARY_FILE, RunFiles, refuse_occupied
from rlcluster.runs.log import RunLog
from rlcluster.runs.loggers import LogStart, refuse_missing_loggers
from rlcluster.runs.machines import record_machine
from rlcluster.runs.plan_file import read_plan, write_plan
from rlcluster.runs.profile_files import write_profile
from rlcluster.runs.status import RunState, StateName, acquire_lock, read_state, refuse_locked, write_state
from rlcluster.settings.loading import flatten
from rlcluster.settings.resume import resume_differences
from rlcluster.settings.schema import Settings
from rlcluster.system.atomic_file import StorageError, write_atomically, write_json
from rlcluster.system.errors import RankError, UserError, reason_of


class RunDirectory:
    """The writer's side of a run, which one process at a time holds. Made by `create`, `resume` or `restart`."""

    def __init__(
        self,
        settings: Settings,
        files: RunFiles,
        lock: int,
        log: RunLog,
        state: RunState,
        restored: dict[str, Any] | None,
    ) -> None:
        self.settings, self.path, self.restored = settings, files.path, restored
        self._checkpoints, self._lock, self._log, self._state = files.checkpoints, lock, log, state
        self._untrained: Made | None = None  # while nothing but a beginning is on the disk

    @classmethod
    def create(cls, settings: Settings, restarts: int = 0) -> Self:
        """A new run; what already lies in its folders is refused."""
        files = RunFiles.of(settings)
        _refuse_existing(files, settings.algorithm)
        return cls._begin(settings, files, restarts)

    @classmethod
    def resume(cls, settings: Settings, restarts: int = 0, check: Check | None = None) -> Self:
        """The run from its last usable checkpoint, which must have the same settings and pass `check`."""
        files = RunFiles.of(settings)
        files.make(settings, files.path, files.checkpoints)
        with _lock_of(files.path) as lock:
            newest = newest_checkpoint(files.checkpoints, settings.algorithm, _checks(settings, check))
            _rename_logs_of_another_mode(files)
            _remove_half_written(files)
            _move_events_of_earlier_versions(files)
            return cls._open(settings, files, lock, restarts, newest)

    @classmethod
    def restart(cls, settings: Settings, restarts: int, check: Check | None = None) -> Self:
        """After a failure, without a user: resumes from a checkpoint of our own, or begins again where there is none.
        A run that another process started is refused, as by `create`.
        """
        files = RunFiles.of(settings)
        if not _was_started_by_our_parent(files.path):
            return cls.create(settings, restarts)
        if checkpoints_in(files.checkpoints, settings.algorithm):
            return cls.resume(settings, restarts, check)
        return cls._begin(settings, files, restarts)

    @classmethod
    def begin_again(cls, settings: Settings) -> Self:
        """A new run in a directory that may hold the remains of one without a checkpoint."""
        return cls._begin(settings, RunFiles.of(settings), 0)

    @classmethod
    def _begin(cls, settings: Settings, files: RunFiles, restarts: int) -> Self:
        made = Made(files, [folder for one in files for folder in (one, *one.parents) if not folder.exists()])
        files.make(settings, files.path, files.checkpoints)
        with _lock_of(files.path) as lock, _removed_after_an_error(made):
            run = cls._open(settings, files, lock, restarts, None)
            run._untrained = made
            return run

    @classmethod
    def _open(
        cls, settings: Settings, files: RunFiles, lock: int, restarts: int, checkpoint: Checkpoint | None
    ) -> Self:
        """The run at its checkpoint, or, if that is None, at its beginning."""
        update, steps_global = (checkpoint.updates, checkpoint.steps_global) if checkpoint is not None else (0, 0)
        files.make(settings, files.logs, files.events)
        write_run_settings(files.path, settings)
        start = LogStart(files.path, files.logs, files.events, flatten(settings.to_dict()), steps_global)
        log = RunLog(start, update, settings.output.loggers)
        state = RunState("running", steps_global, update, restarts=restarts, parent=os.getppid())
        write_state(files.path, state)
        return cls(settings, files, lock, log, state, checkpoint.content if checkpoint is not None else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._log.close(self._state.state if error is None else "failed")
            if self._untrained is not None and (isinstance(error, UserError) or self._state.state == "preempted"):
                self._untrained.remove()
            elif error is not None:
                self._fail(error)
        except StorageError as other:
            error = other
        finally:
            os.close(self._lock)
        if isinstance(error, StorageError):
            raise StorageError(error.what, error.error, self._advice_to_continue()) from None

    def _advice_to_continue(self) -> str:
        if checkpoints_in(self._checkpoints, self.settings.algorithm):
            return ", then continue with --resume"
        place = " in another --output-dir" if self._untrained is None else ""
        return f", then start again{place}: nothing is saved yet"

    def write_machine_facts(self, facts: dict[str, Any]) -> None:
        """Of the machine that begins or resumes the run; the facts of the first one are kept."""
        update = self.restored["learner"]["updates"] if self.restored is not None else 0
        record_machine(self.path, facts, update)

    def write_plan(self, plan: Plan) -> None:
        write_plan(self.path, plan)

    def read_plan(self) -> Plan | None:
        """Of the part of the run before this one; None where it is unknown."""
        return read_plan(self.path, [])

    def log(self, record: dict[str, Any]) -> None:
        """One JSON object per update, and the same in TensorBoard."""
        self._untrained = None
        self._log.add(record)

    def log_evaluation(self, result: dict[str, Any]) -> None:
        """An evaluation during training."""
        self._log.add_evaluation(result)

    def evaluations(self) -> list[dict[str, Any]]:
        """Those during training so far, also of earlier parts of the run."""
        return self._log.evaluations()

    def save_best(self, content: bytes) -> Path:
        """Keeps the checkpoint with the best evaluation."""
        path = self._checkpoints / best_name(self.settings.run_name)
        write_atomically(path, content)
        return path

    def save(self, content: dict[str, Any], final: bool = False) -> Path:
        """Writes a checkpoint, then drops the oldest periodic ones."""
        self._untrained = None
        self._log.sync()  # metrics first: a checkpoint is never ahead of them
        update, steps_global = content["learner"]["updates"], content["learner"]["steps_global"]
        path = self._checkpoints / checkpoint_name(self.settings.run_name, None if final else steps_global)
        save_checkpoint(path, content)
        self._state = self._state._replace(update=update, steps_global=steps_global)
        write_state(self.path, self._state)
        periodic = step_checkpoints(self._checkpoints, self.settings.algorithm)
        for old in periodic[: -self.settings.output.keep_checkpoints]:
            old.unlink(missing_ok=True)
        return path

    def write_summary(self, summary: dict[str, Any]) -> None:
        write_json(self.path / SUMMARY_FILE, summary)

    def write_profile(self, page: str, figures: dict[str, Any], trace: dict[str, Any]) -> None:
        write_profile(self.path, page, figures, trace)

    def conclude(self, state: StateName, reason: str | None = None) -> None:
        """Records how the run has ended."""
        self._state = self._state._replace(state=state, reason=reason)
        write_state(self.path, self._state)

    def _fail(self, error: BaseException) -> None:
        failed_rank = error.failed_rank if isinstance(error, RankError) else None
        self._state = self._state._replace(failed_rank=failed_rank)
        with contextlib.suppress(UserError):  # a disk that is full is already on its way to the user
            self.conclude("failed", reason_of(error))


class Made(NamedTuple):
    """What the beginning of a run has made. Nothing is left of it if the start is refused, or stopped before there is
    anything to keep: it can be tried again as it was. Only under the lock of the run: another process may have begun
    it.
    """

    files: RunFiles
    folders: list[Path]  # that did not exist

    def remove(self) -> None:
        """As far as it can be: the reason for it is on its way to the user."""
        path, logs = self.files.path, self.files.logs
        for content in (logs / METRICS_FILE, logs / LOGGERS_FILE, *path.iterdir()):  # without a run, there are none
            shutil.rmtree(content, ignore_errors=True)
            with contextlib.suppress(OSError):  # it was a folder, or the disk is gone
                content.unlink()
        for folder in sorted(set(self.folders), key=lambda folder: len(folder.parts), reverse=True):
            if folder in self.files:
                shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # there is something else in it
                folder.rmdir()


class SilentRun:
    """What ranks other than the first hold of a run: they write nothing."""

    def __init__(self, path: Path, restored: dict[str, Any] | None) -> None:
        self.path, self.restored = path, restored

    def log(self, record: dict[str, Any]) -> None:
        pass

    def log_evaluation(self, result: dict[str, Any]) -> None:
        pass

    def evaluations(self) -> list[dict[str, Any]]:
        return []

    def save_best(self, content: bytes) -> Path | None:
        return None

    def save(self, content: dict[str, Any], final: bool = False) -> Path | None:
        return None

    def write_summary(self, summary: dict[str, Any]) -> None:
        pass

    def write_profile(self, page: str, figures: dict[str, Any], trace: dict[str, Any]) -> None:
        pass

    def conclude(self, state: StateName, reason: str | None = None) -> None:
        pass


def open_run(
    settings: Settings, resume: bool, restarts: int, check: Check | None = None, in_job: bool = False
) -> RunDirectory:
    """What the user asks for decides; `restarts` counts how often these ranks were started again after a failure.
    `check` refuses a checkpoint that the run cannot be restored from. A scheduler's job begins again where an earlier
    start has left no checkpoint.
    """
    if resume:
        return RunDirectory.resume(settings, restarts, check)
    if in_job and restarts == 0:
        return RunDirectory.begin_again(settings)
    return RunDirectory.restart(settings, restarts, check) if restarts > 0 else RunDirectory.create(settings)


def refuse_unusable(settings: Settings, resume: bool, begins_again: bool) -> None:
    """Raises what `open_run` would for a directory that is locked, occupied or has no checkpoint; changes nothing."""
    refuse_missing_loggers(settings.output.loggers)
    files = RunFiles.of(settings)
    refuse_locked(files.path)
    if resume:
        refuse_without_checkpoint(files.checkpoints, settings.algorithm)
    elif not begins_again:
        _refuse_existing(files, settings.algorithm)


@contextlib.contextmanager
def _removed_after_an_error(made: Made) -> Iterator[None]:
    try:
        yield
    except BaseException:
        made.remove()
        raise


@contextlib.contextmanager
def _lock_of(path: Path) -> Iterator[int]:
    """The lock of a run: kept after a success, for the run directory releases it; released after an error."""
    lock = acquire_lock(path)
    try:
        yield lock
    except BaseException:
        os.close(lock)
        raise


def _was_started_by_our_parent(path: Path) -> bool:
    """True if the process that started this one has started the last writer of the run too: then this is a restart."""
    state = read_state(path)
    return state is not None and state.parent == os.getppid()


def _refuse_existing(files: RunFiles, algorithm: str) -> None:
    remedy = _remedy(files, algorithm)
    refuse_occupied(files.path, remedy)
    if checkpoints_in(files.checkpoints, algorithm):
        raise UserError(f"output.checkpoint_dir={files.checkpoints} holds checkpoints of a run; {remedy}")
    if (files.logs / METRICS_FILE).exists():
        raise UserError(f"output.log_dir={files.logs} holds the metrics of a run; {remedy}")


def _remedy(files: RunFiles, algorithm: str) -> str:
    """Never --resume where that would be refused."""
    if checkpoints_in(files.checkpoints, algorithm):
        return "continue it with --resume, or choose another --output-dir"
    if is_run(files.path):
        return "it has no checkpoint to resume from: remove it, or choose another --output-dir"
    return "it is not a run: choose another --output-dir"


def _checks(settings: Settings, check: Check | None) -> Check:
    """Settings first: a checkpoint of others does not fit anyway, and the differences say why."""

    def refuse(checkpoint: Checkpoint) -> None:
        differences = resume_differences(checkpoint.settings, settings)
        if differences:
            raise UserError(f"--resume: the checkpoint is of other settings: {'; '.join(differences)}")
        _ = checkpoint.updates, checkpoint.steps_global  # raises if it has none
        if check is not None:
            check(checkpoint)

    return refuse


def _rename_logs_of_another_mode(files: RunFiles) -> None:
    """A run that is resumed in another mode keeps one log, under the new mode's name."""
    if not is_run(files.path):
        return
    before = files.logs.with_name(read_run_settings(files.path).log_name)
    if before.is_dir() and not files.logs.exists():
        before.rename(files.logs)


def _move_events_of_earlier_versions(files: RunFiles) -> None:
    """They kept TensorBoard's events next to the metrics: a resumed run has one curve, not two."""
    for file in files.logs.glob(EVENT_FILES):
        file.rename(files.events / file.name)


def _remove_half_written(files: RunFiles) -> None:
    """Temporary files of a process that was killed while it saved."""
    for folder in files:
        for file in folder.glob(".*.tmp"):
            file.unlink(missing_ok=True)
