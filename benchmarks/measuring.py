"""Shared by the benchmarks: commands in their own processes, interleaved runs, and the background load on them."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil

POLL_SECONDS = 0.02


class Turn(NamedTuple):
    """A few updates of a run, timed while the other runs were stopped."""

    fps: float
    sync_share: float  # share of the update time spent in synchronisation
    idle_share: float  # share of time the learner waits for actors; 0 without actors
    peak_memory_gb: float
    others: float  # cores kept busy by other processes; should be 0.0


class PausedRun:
    """`rlcluster train`, which runs only during its turns and is stopped (SIGSTOP) in between.

    So runs can be interleaved every few updates: a slow minute of the machine affects them all.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._folder = folder
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in __exit__)
        command = [sys.executable, "-m", "rlcluster", "train", *arguments, "--output-dir", str(folder)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=self._errors, start_new_session=True
        )
        self._records: list[dict[str, Any]] = []
        self._size_read = 0
        self._seconds_since_record = 0.0
        self.turn(1)  # warm-up

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._errors.close()

    def turn(self, updates: int) -> Turn:
        before, others_before = self._records, self._seconds_of_others()
        start = time.perf_counter()
        os.killpg(self._process.pid, signal.SIGCONT)
        self._wait_for(len(before) + updates)
        recorded_at = time.perf_counter()
        os.killpg(self._process.pid, signal.SIGSTOP)
        others = (self._seconds_of_others() - others_before) / (recorded_at - start)
        seconds = self._seconds_since_record + recorded_at - start
        self._seconds_since_record = time.perf_counter() - recorded_at
        steps = self._records[-1]["steps_global"] - (before[-1]["steps_global"] if before else 0)
        new = self._records[len(before) :]
        sync = sum(record["t_sync"] for record in new)
        idle = sum(record.get("learner_idle", 0.0) for record in new) / len(new)
        return Turn(steps / seconds, sync / seconds, idle, new[-1]["peak_memory_gb"], max(0.0, others))

    def _seconds_of_others(self) -> float:
        """CPU seconds of the whole machine so far, minus those of this run's processes."""
        first = psutil.Process(self._process.pid)
        own = [process.cpu_times() for process in (first, *first.children(recursive=True))]
        return _seconds_of_all() - sum(times.user + times.system for times in own)

    def _wait_for(self, updates: int) -> None:
        """Waits until the log has at least this many records."""
        while len(self._records) < updates:
            time.sleep(POLL_SECONDS)
            if self._process.poll() is not None:
                self._errors.seek(0)
                sys.exit(f"{self._errors.read()}{self._process.args}: ended with {self._process.returncode}")
            for metrics in self._folder.glob("logs/*/metrics.jsonl"):
                if metrics.stat().st_size > self._size_read:
                    self._size_read = metrics.stat().st_size
                    self._records = records_of(metrics)


def measure_training(*arguments: str) -> float:
    """The fps of `rlcluster train` with these arguments, first update excluded; the run directory is removed."""
    with tempfile.TemporaryDirectory() as folder:
        run([sys.executable, "-m", "rlcluster", "train", *arguments, "--output-dir", f"{folder}/run"])
        (metrics,) = Path(folder, "run", "logs").glob("*/metrics.jsonl")
        first, *_, last = records_of(metrics)
    return float((last["steps_global"] - first["steps_global"]) / (last["elapsed_seconds"] - first["elapsed_seconds"]))


def records_of(metrics: Path) -> list[dict[str, Any]]:
    """All complete lines of a log."""
    return [json.loads(line) for line in metrics.read_text().splitlines(keepends=True) if line.endswith("\n")]


def run(command: list[str], variables: dict[str, str] | None = None) -> str:
    """The command's output; exits with the command's errors if it fails."""
    environment = {**os.environ, **(variables or {})}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{result.stderr}{' '.join(command)}: failed with exit code {result.returncode}")
    return result.stdout


def seconds_of_others() -> float:
    """CPU seconds of the whole machine so far, minus those of this process and its finished children."""
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return _seconds_of_all() - sum(usage.ru_utime + usage.ru_stime for usage in own)


def _seconds_of_all() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)
