"""`rlcluster watch RUN ...`: what runs of other processes, or of other machines, are doing. It only reads their
directories, so it works wherever these are mounted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rlcluster.monitor.history import History, Snapshot
from rlcluster.monitor.screen import Screen, symbols_of
from rlcluster.monitor.table import table
from rlcluster.monitor.view import BLOCKS, Symbols, view
from rlcluster.runs.budget import Budget
from rlcluster.runs.config import read_run_settings
from rlcluster.runs.files import RUNS_FOLDER, runs_below
from rlcluster.runs.metrics import MetricsTail, find_metrics
from rlcluster.runs.status import RunState, last_saved, read_written_state
from rlcluster.system.console import clock_text, say, warn
from rlcluster.system.errors import UserError
from rlcluster.system.signals import StopRequest

POLL_SECONDS = 1.0
PLAIN_LINE_SECONDS = 10.0  # between views without a terminal
SILENT_SECONDS, SILENT_UPDATES = 30.0, 5  # a run that has not logged for this long, and this many updates, is silent
PLAIN_WIDTH, PLAIN_HEIGHT = 120, 24


class WatchedRun:
    """One run directory, read as it grows."""

    def __init__(self, path: Path, title: str) -> None:
        settings = read_run_settings(path)
        self._path, self._settings, self._title = path, settings, title
        self._budget = Budget(settings.training)
        self._history, self._tail = History(title), MetricsTail(lambda: find_metrics(path, settings))
        self._seconds_per_update = 0.0

    def poll(self) -> Snapshot:
        """Reads what was logged since the last time."""
        records, has_restarted = self._tail.read()
        if has_restarted:
            self._history = History(self._title)
        for record in records:
            spent = record["steps_global"], record["elapsed_seconds"], record["update"]
            self._history.add(record, self._budget.progress(*spent))
            self._seconds_per_update = record.get("t_iter") or 0.0
        state = read_written_state(self._path)
        snapshot = self._history.snapshot(self._status(state), last_saved(self._path))
        if state is None or state.state == "running":
            return snapshot
        return snapshot.ended(state.state == "finished")

    @property
    def is_over(self) -> bool:
        """True once the run says that it has ended."""
        state = read_written_state(self._path)
        return state is not None and state.state != "running"

    def _status(self, state: RunState | None) -> str:
        if state is None:
            return "starting"
        if state.state != "running":
            return f"{state.state}: {state.reason}" if state.reason else state.state
        silence = self._tail.silent_seconds()
        limit = SILENT_SECONDS + SILENT_UPDATES * self._seconds_per_update
        return "running" if silence < limit else f"silent for {clock_text(silence)}"


def watch_command(paths: Sequence[Path], once: bool = False) -> int:
    """Shows the runs until all of them have ended, or until Ctrl-C; the runs do not notice."""
    paths = list(paths) or runs_below(RUNS_FOLDER)[:1]
    if not paths:
        raise UserError(f"watch: no run below {RUNS_FOLDER}/; give a run directory")
    runs = watched_runs(paths)
    if once or not sys.stdout.isatty():
        return _watch_plainly(runs, once)
    latest = [run.poll() for run in runs]

    def draw(width: int, height: int, symbols: Symbols) -> Sequence[str]:
        return drawn(latest, width, height, symbols)

    with StopRequest() as stop, Screen(draw):
        while not stop.requested and not all(run.is_over for run in runs):
            time.sleep(POLL_SECONDS)
            latest[:] = [run.poll() for run in runs]
    return 0


def watched_runs(paths: Sequence[Path]) -> list[WatchedRun]:
    """The runs of `paths`; of several, also those of suites among them. What else a shell's * finds is skipped."""
    if len(paths) == 1:
        return [WatchedRun(paths[0], paths[0].resolve().name)]
    runs: list[WatchedRun] = []
    skipped: list[Path] = []
    for path in paths:
        found = _runs_of(path)
        runs += found
        skipped += [] if found else [path]
    listed = ", ".join(map(str, skipped))
    if not runs:
        raise UserError(f"watch: neither runs nor suites with runs: {listed}; give run directories")
    if skipped:
        warn(f"skipped, neither runs nor suites with runs: {listed}")
    return runs


def _runs_of(path: Path) -> list[WatchedRun]:
    """A run alone, or the runs of a suite."""
    name = path.resolve().name
    try:
        return [WatchedRun(path, name)]
    except UserError:
        return [WatchedRun(run, f"{name}/{run.name}") for run in sorted(runs_below(path / RUNS_FOLDER))]


def drawn(snapshots: Sequence[Snapshot], width: int, height: int, symbols: Symbols = BLOCKS) -> list[str]:
    """One run in full, several as a table."""
    if len(snapshots) == 1:
        return view(snapshots[0], width, height, symbols)
    lines = table(snapshots, width, symbols)
    if len(lines) <= height:
        return lines
    shown = max(2, height - 1)
    return [*lines[:shown], f"and {len(lines) - shown} more; a higher terminal shows them"[:width]]


def _watch_plainly(runs: Sequence[WatchedRun], once: bool) -> int:
    symbols = symbols_of(sys.stdout)
    with StopRequest() as stop:
        while True:
            is_last = once or stop.requested or all(run.is_over for run in runs)
            say("\n".join(drawn([run.poll() for run in runs], PLAIN_WIDTH, PLAIN_HEIGHT, symbols)))
            if is_last:
                return 0
            until = time.perf_counter() + PLAIN_LINE_SECONDS
            while time.perf_counter() < until and not stop.requested and not all(run.is_over for run in runs):
                time.sleep(POLL_SECONDS)
