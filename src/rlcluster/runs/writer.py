"""One run on disk as its writer sees it: settings, machine facts, log, checkpoints, summary, status."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rlcluster.plan import Plan
from rlcluster.runs.checkpoint import save_checkpoint, settings_of
from rlcluster.runs.checkpoints import (
    checkpoint_name,
    checkpoints_in,
    newest_checkpoint,
    refuse_without_checkpoint,
    step_checkpoints,
)
from rlcluster.runs.config import is_run, read_run_settings, write_run_settings
from rlcluster.runs.files import METRICS_FILE, SUMMARY_FILE, RunFiles, make_folders, refuse_occupied
from rlcluster.runs.log import RunLog
from rlcluster.runs.machines import record_machine
from rlcluster.runs.plan_file import write_plan
from rlcluster.runs.status import RunState, StateName, acquire_lock, read_state, refuse_locked, write_state
from rlcluster.settings.resume import resume_differences
from rlcluster.settings.schema import Settings
from rlcluster.system.atomic_file import write_json
from rlcluster.system.errors import RankError, UserError


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

    @classmethod
    def create(cls, settings: Settings, restarts: int = 0) -> Self:
        """A new run; what already lies in its folders is refused."""
        files = RunFiles.of(settings)
        _refuse_existing(files, settings.algorithm)
        return cls._begin(settings, files, restarts)

    @classmethod
    def resume(cls, settings: Settings, restarts: int = 0) -> Self:
        """The run from its last usable checkpoint, which must have the same settings."""
        files = RunFiles.of(settings)
        make_folders(files.path, files.path, files.checkpoints)
        with _lock_of(files.path) as lock:
            restored = newest_checkpoint(files.checkpoints, settings.algorithm)
            _refuse_other_settings(restored, settings)
            _rename_logs_of_another_mode(files)
            _remove_half_written(files)
            return cls._open(settings, files, lock, restarts, restored)

    @classmethod
    def restart(cls, settings: Settings, restarts: int) -> Self:
        """After a failure, without a user: resumes from a checkpoint of our own, or begins again where there is none.
        A run that another process started is refused, as by `create`.
        """
        files = RunFiles.of(settings)
        if not _was_started_by_our_parent(files.path):
            return cls.create(settings, restarts)
        if checkpoints_in(files.checkpoints, settings.algorithm):
            return cls.resume(settings, restarts)
        return cls._begin(settings, files, restarts)

    @classmethod
    def _begin(cls, settings: Settings, files: RunFiles, restarts: int) -> Self:
        make_folders(files.path, files.path, files.checkpoints)
        with _lock_of(files.path) as lock:
            return cls._open(settings, files, lock, restarts, None)

    @classmethod
    def _open(
        cls, settings: Settings, files: RunFiles, lock: int, restarts: int, restored: dict[str, Any] | None
    ) -> Self:
        """The run at its checkpoint, or, if `restored` is None, at its beginning."""
        counters = restored["learner"] if restored is not None else {"updates": 0, "steps_global": 0}
        update, steps_global = counters["updates"], counters["steps_global"]
        make_folders(files.path, files.logs)
        write_run_settings(files.path, settings)
        log = RunLog(files.logs, update, steps_global)
        state = RunState("running", steps_global, update, restarts=restarts, parent=os.getppid())
        write_state(files.path, state)
        return cls(settings, files, lock, log, state, restored)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._log.close(quietly=error is not None)
            if error is not None:
                self._fail(error)
        finally:
            os.close(self._lock)

    def write_machine_facts(self, facts: dict[str, Any]) -> None:
        """Of the machine that begins or resumes the run; the facts of the first one are kept."""
        update = self.restored["learner"]["updates"] if self.restored is not None else 0
        record_machine(self.path, facts, update)

    def write_plan(self, plan: Plan) -> None:
        write_plan(self.path, plan)

    def log(self, record: dict[str, Any]) -> None:
        """One JSON object per update, and the same in TensorBoard."""
        self._log.add(record)

    def save(self, content: dict[str, Any], final: bool = False) -> Path:
        """Writes a checkpoint, then drops the oldest periodic ones."""
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

    def conclude(self, state: StateName, reason: str | None = None) -> None:
        """Records how the run has ended."""
        self._state = self._state._replace(state=state, reason=reason)
        write_state(self.path, self._state)

    def _fail(self, error: BaseException) -> None:
        failed_rank = error.failed_rank if isinstance(error, RankError) else None
        self._state = self._state._replace(failed_rank=failed_rank)
        with contextlib.suppress(UserError):  # a disk that is full is already on its way to the user
            lines = str(error).splitlines() or [type(error).__name__]
            self.conclude("failed", getattr(error, "reason", lines[0]))


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


def open_run(settings: Settings, resume: bool, restarts: int) -> RunDirectory:
    """What the user asks for decides; `restarts` counts how often these ranks were started again after a failure."""
    if resume:
        return RunDirectory.resume(settings, restarts)
    return RunDirectory.restart(settings, restarts) if restarts > 0 else RunDirectory.create(settings)


def refuse_unusable(settings: Settings, resume: bool, restarts: int) -> None:
    """Raises what `open_run` would for a directory that is locked, occupied or has no checkpoint; changes nothing."""
    files = RunFiles.of(settings)
    refuse_locked(files.path)
    if resume:
        refuse_without_checkpoint(files.checkpoints, settings.algorithm)
    elif restarts == 0:
        _refuse_existing(files, settings.algorithm)


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
    remedy = "continue it with --resume, or choose another --output-dir"
    refuse_occupied(files.path, remedy)
    if checkpoints_in(files.checkpoints, algorithm):
        raise UserError(f"output.checkpoint_dir={files.checkpoints} holds checkpoints of a run; {remedy}")
    if (files.logs / METRICS_FILE).exists():
        raise UserError(f"output.log_dir={files.logs} holds the metrics of a run; {remedy}")


def _refuse_other_settings(checkpoint: dict[str, Any], settings: Settings) -> None:
    differences = resume_differences(settings_of(checkpoint), settings)
    if differences:
        raise UserError(f"--resume: the checkpoint is of other settings: {'; '.join(differences)}")


def _rename_logs_of_another_mode(files: RunFiles) -> None:
    """A run that is resumed in another mode keeps one log, under the new mode's name."""
    if not is_run(files.path):
        return
    before = files.logs.with_name(read_run_settings(files.path).log_name)
    if before.is_dir() and not files.logs.exists():
        before.rename(files.logs)


def _remove_half_written(files: RunFiles) -> None:
    """Temporary files of a process that was killed while it saved."""
    for folder in files:
        for file in folder.glob(".*.tmp"):
            file.unlink(missing_ok=True)
