"""Runs that take turns: each trains only during its turn and is stopped (SIGSTOP) in between, so that a slow minute of
the machine affects them all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from rlcluster.experiments.commands import failure_text
from rlcluster.runs.files import metrics_file
from rlcluster.runs.metrics import read_metrics
from rlcluster.settings.schema import Settings
from rlcluster.system.errors import EXIT_RUN_FAILED, UserError
from rlcluster.system.signals import StopRequest

POLL_SECONDS = 0.02
# A stopped run would wait for ever if this process were killed, so it dies with it.
START = (
    "import sys; from rlcluster.system.processes import die_with_parent; die_with_parent(int(sys.argv[1])); "
    "from rlcluster.cli import main; sys.exit(main(sys.argv[2:]))"
)


class Interrupted(Exception):  # noqa: N818 - no error: the user has asked for it
    """A signal arrived during a turn, or the time was over."""


class Processes(Protocol):
    """Those of one run."""

    def signal(self, number: int) -> None: ...

    def failure(self) -> str | None:
        """Why it has ended, in one line; None while it runs."""

    def close(self) -> None:
        """Ends them; may be called again."""


class LocalProcesses:
    """`rlcluster train` on this machine: one process for each set of environment variables."""

    def __init__(self, arguments: Sequence[str], variables: Sequence[Mapping[str, str]] = ({},)) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in `close`
        command = [sys.executable, "-c", START, str(os.getpid()), "train", *arguments]
        self._processes = [
            subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,
                env={**os.environ, **own},
            )
            for own in variables
        ]

    def signal(self, number: int) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself: `failure` says so
                os.killpg(process.pid, number)

    def failure(self) -> str | None:
        ended = next((process for process in self._processes if process.poll() is not None), None)
        if ended is None:
            return None
        self._errors.seek(0)
        return failure_text(ended.returncode, self._errors.read())

    def close(self) -> None:
        if self._errors.closed:
            return
        self.signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()
        self._errors.close()


class PausedRun:
    """A run, stopped except during its turns. Its directory is on this machine."""

    def __init__(self, path: Path, settings: Settings, processes: Processes, stop: StopRequest) -> None:
        self._metrics, self._processes, self._stop = metrics_file(path, settings), processes, stop
        self._updates, self._steps, self._seconds_since_record = 0, 0, 0.0
        self.turn_seconds = 0.0  # of the last turn

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the run; may be called again."""
        self._processes.close()

    def turn(self, deadline: float) -> float:
        """Runs until the next update is logged; returns its steps per second. Raises Interrupted at the deadline, by
        time.perf_counter.
        """
        start, steps_before = time.perf_counter(), self._steps
        self._processes.signal(signal.SIGCONT)
        self._wait_for_record(deadline)
        recorded = time.perf_counter()
        self._processes.signal(signal.SIGSTOP)
        seconds = self._seconds_since_record + recorded - start
        self._seconds_since_record = time.perf_counter() - recorded
        self.turn_seconds = time.perf_counter() - start
        return (self._steps - steps_before) / seconds

    def _wait_for_record(self, deadline: float) -> None:
        size = self._metrics.stat().st_size if self._metrics.exists() else 0
        before = self._updates
        while self._updates == before:
            time.sleep(POLL_SECONDS)
            if self._stop.requested or time.perf_counter() > deadline:
                raise Interrupted
            reason = self._processes.failure()
            if reason is not None:
                raise UserError(f"tune: a run failed: {reason}", EXIT_RUN_FAILED)
            if self._metrics.exists() and self._metrics.stat().st_size > size:
                records = read_metrics(self._metrics)
                if records:
                    self._updates, self._steps = len(records), int(records[-1]["steps_global"])
