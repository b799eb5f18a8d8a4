"""Errors for the user to fix: one clear line and an exit code, never a traceback."""

from __future__ import annotations

import errno
import os
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EXIT_USAGE = 2
EXIT_RUN_FAILED = 1
EXIT_TIMEOUT = 71
EXIT_STORAGE = 74
EXIT_SAVED = 75  # before a time limit: saved, and to be started again


class UserError(Exception):
    """Says what is wrong, with the values, and what to do about it."""

    def __init__(self, message: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class RankError(UserError):
    """A rank has failed, and with it the run. `failed_rank` is its number, if known."""

    def __init__(self, message: str, exit_code: int, failed_rank: int | None) -> None:
        super().__init__(message, exit_code)
        self.failed_rank = failed_rank
        self.reason: str | None = None  # if it is not the first line of the message


class ReportedError(Exception):
    """Ends this process because another one has raised, which reports it to the user. Its message is the reason."""


def reason_of(error: BaseException) -> str:
    """One line for the status of a run: an error for the user as it is, any other with its type."""
    known = explained(error) or error
    if isinstance(known, RankError) and known.reason is not None:
        return known.reason
    text = next(iter(str(known).splitlines()), "")
    name = "" if isinstance(known, UserError | ReportedError) else type(known).__name__
    return ": ".join(filter(None, (name, text))) or type(known).__name__


@contextmanager
def fault_of(what: str, remedy: str = "fix it") -> Iterator[None]:
    """Around the user's own code that a run needs before it can begin: whatever it raises is an error in one line that
    begins with `what`.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        if _memory_shortage(error) is not None:
            raise  # no fault of that code
        raise UserError(f"{what}: {_raised(error)}; {remedy}") from None


def _raised(error: BaseException) -> str:
    """`ValueError: no such level (levels.py, line 7)`: the error in one line, with the place that raised it: in the
    user's code, or else in that of a package.
    """
    reason = " ".join(str(error).split())
    theirs = [one for one in traceback.extract_tb(error.__traceback__) if not _is_in(one.filename, OURS)]
    users = [one for one in theirs if not any(_is_in(one.filename, folder) for folder in INSTALLED)]
    where = next((f" ({one.filename}, line {one.lineno})" for one in reversed(users or theirs)), "")
    return f"{type(error).__name__}{': ' if reason else ''}{reason}{where}"


OURS = Path(__file__).parents[1]
INSTALLED = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]


def _is_in(file: str, folder: Path) -> bool:
    """What has no file, such as `<frozen importlib>`, is everywhere."""
    return file.startswith("<") or Path(file).is_relative_to(folder)


REFUSALS = (errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ELOOP)  # of files, by the system


def explained(error: BaseException) -> UserError | None:
    """The error for the user where the system refused memory or a file; None for any other, which is a bug."""
    if isinstance(error, OSError) and error.errno in REFUSALS and error.filename is not None:
        remedy = "give another path, or change who may use it"
        return UserError(f"{os.fsdecode(error.filename)}: {error.strerror}; {remedy}", EXIT_STORAGE)
    return _memory_shortage(error)


def _memory_shortage(error: BaseException) -> UserError | None:
    is_refused_by_torch = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    is_refused_by_system = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if not (isinstance(error, MemoryError) or is_refused_by_torch or is_refused_by_system):
        return None
    reason = " ".join(str(error).split()) or "no memory left"
    return UserError(
        f"out of memory ({reason}); free some, or train with fewer environments (--num-envs) or steps (--n-steps), a "
        "smaller network (--network, --hidden-sizes), or rollouts on disk (--rollout-dir)",
        EXIT_RUN_FAILED,
    )
