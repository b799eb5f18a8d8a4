"""The status of a run, for people, schedulers and reports, and the lock of its one writer. The exit code of a launcher
may lie; the status does not.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from rlcluster.runs.checkpoint import is_count
from rlcluster.runs.files import STATE_FILE, read_json
from rlcluster.system.atomic_file import write_json
from rlcluster.system.errors import UserError

StateName = Literal["running", "preempted", "finished", "failed"]


class RunState(NamedTuple):
    """`preempted`: a signal stopped it, and it can be resumed. The step is that of the last checkpoint."""

    state: StateName
    steps_global: int = 0
    update: int = 0
    reason: str | None = None
    failed_rank: int | None = None
    restarts: int = 0  # how often it was restarted after a failure
    parent: int = 0  # process that started the writer: the one that restarts it


def write_state(run: Path, state: RunState) -> None:
    write_json(run / STATE_FILE, state._asdict())


class Saved(NamedTuple):
    """The last checkpoint of a run."""

    steps_global: int
    age_seconds: float


def last_saved(run: Path) -> Saved | None:
    """None before the first checkpoint."""
    state = read_written_state(run)
    if state is None or state.steps_global == 0:
        return None
    return Saved(state.steps_global, max(0.0, time.time() - written_at(run)))


def written_at(run: Path) -> float:
    """When the status was written last, in seconds since the epoch."""
    return (run / STATE_FILE).stat().st_mtime


def read_written_state(run: Path) -> RunState | None:
    """The status as the run has written it, whoever holds its lock: locks of another machine may be invisible here."""
    try:
        state = RunState(**read_json(run / STATE_FILE, []) or {})
    except TypeError:
        return None
    return state if _is_possible(state) else None


def _is_possible(state: RunState) -> bool:
    """As a run writes it."""
    counts = (state.steps_global, state.update, state.restarts, state.parent)
    return (
        state.state in get_args(StateName)
        and all(map(is_count, counts))
        and isinstance(state.reason, str | None)
        and (state.failed_rank is None or is_count(state.failed_rank))
    )


def read_state(run: Path) -> RunState | None:
    """The status of a run; None where there is none. A run that says `running` while nobody writes it has failed."""
    state = read_written_state(run)
    if state is None:
        return None
    if state.state == "running" and not is_being_written(run):
        return state._replace(state="failed", reason="its process ended without reporting an error")
    return state


def record_failure(run: Path, reason: str, failed_rank: int | None) -> None:
    """For the process that started the writer, whose first rank may be dead. A run that another process has started
    stays as it is, and one that has ended before: then it was only the new start that failed.
    """
    state = read_state(run)
    if state is not None and state.parent == os.getpid() and state.state not in ("finished", "preempted"):
        write_state(run, state._replace(state="failed", reason=reason, failed_rank=failed_rank))


def record_own_failure(run: Path, reason: str, failed_rank: int | None) -> None:
    """For a thread of the writer, whose main thread cannot. Before it has begun to write, nothing is recorded."""
    state = read_state(run)
    if state is not None and (state.state, state.parent) == ("running", os.getppid()):
        write_state(run, state._replace(state="failed", reason=reason, failed_rank=failed_rank))


def is_being_written(run: Path) -> bool:
    """True while a process holds the lock of the run."""
    try:
        lock = os.open(run, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def acquire_lock(path: Path, shared: bool = False) -> int:
    """Of an output directory; held until this process ends, however it ends, or closes it. Several processes may hold
    a shared one.
    """
    lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise _locked(path) from None
    return lock


def refuse_locked(path: Path) -> None:
    """Raises what `acquire_lock` would, without taking the lock."""
    if is_being_written(path):
        raise _locked(path)


def _locked(path: Path) -> UserError:
    return UserError(f"output.output_dir={path} is being written by another process; wait for it")
