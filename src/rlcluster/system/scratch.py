"""A folder for one command that only this user can read, removed with it; at the latest when the next one starts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "rlcluster-scratch-"
YOUNG_SECONDS = 60.0  # its owner may not have locked it yet


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Also removes those of processes that were killed."""
    remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(folder)
        finally:
            os.close(lock)


def remove_abandoned() -> None:
    """Folders of processes that were killed: the lock of a folder ends with its owner."""
    with contextlib.suppress(OSError):  # there is no folder for temporary files
        for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    with contextlib.suppress(OSError):  # another user's, or just removed
        if folder.stat().st_uid == os.getuid() and _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    if time.time() - folder.stat().st_mtime < YOUNG_SECONDS:
        return False
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
