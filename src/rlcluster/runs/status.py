"""An output directory: its name, its lock, and run_state.json: what has become of a run, for people, schedulers and
reports. The exit code of a launcher may lie.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from pathlib import Path
from typing import Literal, NamedTuple

from rlcluster.settings.games import procgen_game
from rlcluster.settings.schema import Settings
from rlcluster.system.atomic_file import write_json
from rlcluster.system.errors import EXIT_STORAGE, UserError

RUNS_FOLDER = Path("runs")
STATE_FILE = "run_state.json"

StateName = Literal["running", "preempted", "finished", "failed"]


class RunState(NamedTuple):
    """`preempted`: a signal stopped it, and it can be resumed. The step is that of the last checkpoint."""

    state: StateName
    steps_global: int = 0
    update: int = 0
    reason: str | None = None
    failed_rank: int | None = None
    restarts: int = 0  # how often it has gone on by itself after a failure
    parent: int = 0  # process that started the writer: the one that restarts it


def default_path(settings: Settings) -> Path:
    """runs/ppo_sequential_coinrun_20260131-235959"""
    name = procgen_game(settings.env.name) or re.sub(r"\W+", "-", settings.env.name)
    return RUNS_FOLDER / f"{settings.run_name}_{name}_{time.strftime('%Y%m%d-%H%M%S')}"


def write_state(run: Path, state: RunState) -> None:
    write_json(run / STATE_FILE, state._asdict())


def read_state(run: Path) -> RunState | None:
    """The state of a run; None where there is none. A run that says `running` while nobody writes it has failed."""
    try:
        state = RunState(**json.loads((run / STATE_FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    if state.state == "running" and not is_being_written(run):
        return state._replace(state="failed", reason="its process ended without a word")
    return state


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


def acquire_lock(path: Path) -> int:
    """Of an output directory; held until this process ends, however it ends, or closes it."""
    lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise UserError(f"output.output_dir={path} is being written by another process; wait for it") from None
    return lock


def refuse_occupied(path: Path, remedy: str) -> None:
    """What is there stays as it is: an output directory is new or empty."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"output.output_dir={path} exists; {remedy}")


def make_folders(path: Path, *folders: Path) -> None:
    """The folders of the output directory `path`."""
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"output.output_dir={path}: {error.strerror} ({error.filename})", EXIT_STORAGE) from None
