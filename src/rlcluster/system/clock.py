"""Timing of a run and of the phases of its updates. Time in which this process was stopped (Ctrl-Z) counts neither for
its duration nor for its time-outs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlcluster.system.phases import clock

SLICE_SECONDS = 0.5
STOPPED_SECONDS = 5.0  # a gap between two ticks that no busy machine makes; shorter stops count as time of the run


def running_seconds(seconds: float, planned_seconds: float) -> float:
    """The part of a wait in which this process ran. No clock tells it: one that was planned to be short and took long
    was interrupted, by Ctrl-Z above all.
    """
    return min(seconds, 2 * planned_seconds)


def wait_while_running(wait: Callable[[float], bool], timeout_seconds: float) -> bool:
    """Calls `wait(seconds)` in short slices until it returns True; False after `timeout_seconds` in which this process
    ran. Time in which it was stopped does not count: a run that is continued after an hour has not timed out.
    """
    waited = 0.0
    while waited < timeout_seconds:
        planned, start = min(SLICE_SECONDS, timeout_seconds - waited), time.monotonic()
        if wait(planned):
            return True
        waited += running_seconds(time.monotonic() - start, planned)
    return False


class StopDetector:
    """Finds the time in which this process was stopped, from readings of its clocks at short intervals."""

    def __init__(self, now: float, cpu_seconds: float) -> None:
        self._read_at, self._cpu_seconds, self._stopped_seconds = now, cpu_seconds, 0.0

    def running_time(self, now: float, cpu_seconds: float) -> float:
        """`now` less all stops. A process that computed during a long gap was not stopped: it kept its other threads
        from reading the clock.
        """
        gap, busy = now - self._read_at, cpu_seconds - self._cpu_seconds
        if gap > STOPPED_SECONDS and busy < gap / 2:
            self._stopped_seconds += gap
        self._read_at, self._cpu_seconds = now, cpu_seconds
        return now - self._stopped_seconds


class RunningClock:
    """A clock that stands still while this process is stopped. From the first reading on, a thread reads it too."""

    def __init__(self) -> None:
        self._lock, self._detector = threading.Lock(), StopDetector(0.0, 0.0)
        self._ticker: threading.Thread | None = None

    def __call__(self) -> float:
        """Seconds since an arbitrary moment."""
        with self._lock:
            if self._ticker is None:
                self._detector = StopDetector(time.perf_counter(), time.process_time())
                self._ticker = threading.Thread(target=self._tick, daemon=True)
                self._ticker.start()
            return self._detector.running_time(time.perf_counter(), time.process_time())

    def _tick(self) -> None:
        while True:
            time.sleep(SLICE_SECONDS)
            self()


run_clock = RunningClock()  # of this process


class Stopwatch:
    """Seconds since construction in which this process ran, plus the `seconds_before` that a resumed run had already
    taken.
    """

    def __init__(self, seconds_before: float = 0.0) -> None:
        self._start = run_clock() - seconds_before

    def seconds(self) -> float:
        return run_clock() - self._start


class PhaseTimer:
    """Seconds spent in each phase of one update. Nested phases are not counted twice."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = run_clock()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        self._book()
        self._open.append(phase)
        try:
            with clock(phase):
                yield
        finally:
            self._book()
            self._open.pop()

    def seconds(self, phase: str) -> float:
        return self._seconds.get(phase, 0.0)

    def reset(self) -> None:
        self._seconds.clear()

    def _book(self) -> None:
        """Adds the time since the last change of phase to the innermost open phase."""
        now = run_clock()
        if self._open:
            phase = self._open[-1]
            self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._since
        self._since = now
