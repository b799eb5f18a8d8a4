"""Runs `rlcluster` as a child process; passes a stop signal on exactly once, so that the child can save."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rlcluster.system.console import say
from rlcluster.system.signals import StopRequest

POLL_SECONDS = 0.2
ERROR_PREFIX = "rlcluster: error: "


def rlcluster_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rlcluster", *arguments]


def run_to_completion(
    command: list[str], stop: StopRequest, log: Path | None = None, on_poll: Callable[[], None] = lambda: None
) -> tuple[int, str]:
    """Returns exit code and stderr; appends stdout to `log`. The child has its own process group, so Ctrl-C reaches it
    only through us, and only once: a second signal would keep it from saving.
    """
    with contextlib.ExitStack() as files:
        stdout = subprocess.DEVNULL if log is None else files.enter_context(log.open("ab"))
        process = files.enter_context(
            subprocess.Popen(
                command, stdout=stdout, stderr=subprocess.PIPE, text=True, errors="replace", process_group=0
            )
        )
        is_signal_forwarded = False
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, errors = process.communicate(timeout=POLL_SECONDS)
                return process.returncode, errors
            on_poll()
            if stop.signal_number is not None and not is_signal_forwarded:
                is_signal_forwarded = True
                process.send_signal(stop.signal_number)
                say("\nstopping this run, then writing the results", stream=sys.stderr)


def failure_text(exit_code: int, errors: str) -> str:
    """Why a command failed, in one line."""
    if ERROR_PREFIX in errors:
        return error_line(errors)
    cause = f"killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exit code {exit_code}"
    last = error_line(errors)
    return f"{cause}; last output: {last}" if last else cause


def error_line(errors: str) -> str:
    """The error message of a failed run in one line: its first line and, for a traceback, the last."""
    message = errors.partition(ERROR_PREFIX)[2] or errors
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return " ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))
