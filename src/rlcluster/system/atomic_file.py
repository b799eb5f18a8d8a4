"""Atomic file writes."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from rlcluster.system.errors import EXIT_STORAGE, UserError


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Temporary file, fsync, rename: readers see either the old content or the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise UserError(
            f"{path} cannot be written ({error.strerror}); free some space or choose another directory, then --resume",
            EXIT_STORAGE,
        ) from None


def write_json(path: Path, data: object) -> None:
    """Indented for people. NaN raises a ValueError: JSON has none."""
    write_atomically(path, (json.dumps(data, indent=2, allow_nan=False) + "\n").encode())
