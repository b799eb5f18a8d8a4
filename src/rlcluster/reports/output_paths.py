"""Checks of the files that a command will write, before any work is done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rlcluster.system.atomic_file import StorageError, temporary_name
from rlcluster.system.errors import EXIT_STORAGE, UserError


def check_output_file(flag: str, path: Path, suffixes: Sequence[str] = ()) -> None:
    """The suffix is one of `suffixes`, if any are given, and the file can be written: tried with another next to it."""
    if suffixes and path.suffix not in suffixes:
        raise UserError(f"{flag} {path}: the name should end in {', '.join(suffixes)}")
    if not path.resolve().parent.is_dir():
        raise UserError(f"{flag} {path}: no such directory: {path.resolve().parent}", EXIT_STORAGE)
    if path.is_dir():
        raise UserError(f"{flag} {path}: is a directory; give the name of a file", EXIT_STORAGE)
    try:
        trial = temporary_name(path)
        trial.touch()
        trial.unlink()
        if path.exists():
            path.open("ab").close()
    except OSError as error:
        raise StorageError(f"{flag} {path}", error) from None


def check_outside_runs(flag: str, path: Path, runs: Iterable[Path]) -> None:
    """Reports never modify a run."""
    for run in runs:
        if path.resolve().is_relative_to(run.resolve()):
            raise UserError(f"{flag} {path}: is inside the run {run}; choose a directory outside the runs")
