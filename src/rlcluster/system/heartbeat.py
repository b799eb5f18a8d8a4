"""Heartbeats: a process tells the one that watches it that it runs, and whether its main thread gets anywhere.

A thread sends them, so a process that computes for minutes is not taken for dead. But a thread also beats for a main
thread that never returns from a call into an environment; so each heartbeat says whether such a call has been running
since the last one, and which: making an environment may take longer than a step.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rlcluster.system.clock import running_seconds
from rlcluster.system.signals import requested_signal

BEAT_SECONDS = 1.0
START_SECONDS = 60.0  # at least, to its first message and to make one environment: a machine may be busy
STOP_TIMEOUT_SECONDS = 10.0  # once the run is to stop: a signal must not wait for a process that is itself stopped


class Beat(NamedTuple):
    """One heartbeat."""

    is_stuck: bool  # the same call into an environment has been running since the last heartbeat
    call: str = ""  # the call that is running; empty outside of environments


MAKING = "make"  # the call that makes environments, and resets them for the first time


class EnvironmentCalls:
    """Marks the calls into environments, the one kind of foreign code in a process: `with CALLS("step"): ...`. They are
    not nested.
    """

    def __init__(self) -> None:
        self.progress, self.running = 0, ""

    @contextlib.contextmanager
    def __call__(self, call: str) -> Iterator[None]:
        self.progress, self.running = self.progress + 1, call
        try:
            yield
        finally:
            self.running = ""

    def advance(self) -> None:
        """The call comes to its next environment: each has the whole time-out."""
        self.progress += 1


CALLS = EnvironmentCalls()  # of this process


def beat(sender: Any, sending: threading.Lock) -> None:
    """Sends heartbeats for as long as this process runs."""
    with contextlib.suppress(ConnectionError):  # the parent has died, and so will this process
        for one in _beats():
            with sending:
                sender.send(one)


def _beats() -> Iterator[Beat]:
    """One now, and another every second."""
    seen = 0
    while True:
        progress, call = CALLS.progress, CALLS.running
        yield Beat(bool(call) and progress == seen, call)
        seen = progress
        time.sleep(BEAT_SECONDS)


@contextlib.contextmanager
def watched_calls(timeout_seconds: float, on_hang: Callable[[str], None]) -> Iterator[None]:
    """For a process whose heartbeats nobody hears: its own thread calls `on_hang` with the reason of a time-out."""
    is_over = threading.Event()

    def watch() -> None:
        timer = InactivityTimer(1, timeout_seconds, BEAT_SECONDS)
        for one in _beats():
            if is_over.is_set():
                return
            timer.heard(0, one)
            if one.is_stuck and timer.advance(BEAT_SECONDS, [0]):
                on_hang(timer.reason([0]))
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


class InactivityTimer:
    """How long each of a set of processes has been silent while this one listened. Time in which this one was busy or
    stopped (Ctrl-Z) does not count.
    """

    def __init__(self, size: int, timeout_seconds: float | None, poll_seconds: float, has_beats: bool = False) -> None:
        """With `has_beats` the time-out is short once the run is to stop: heartbeats do not wait for work. Without a
        `timeout_seconds` nobody times out.
        """
        self._timeout = math.inf if timeout_seconds is None else timeout_seconds
        self._seconds, self._poll_seconds = [0.0] * size, poll_seconds
        self._is_stuck, self._has_started, self._has_beats = [False] * size, [False] * size, has_beats
        self._calls = [""] * size

    def heard(self, number: int, message: Any) -> None:
        """The process has sent a message. A heartbeat of one that is stuck does not count."""
        self._has_started[number] = True
        self._is_stuck[number] = isinstance(message, Beat) and message.is_stuck
        self._calls[number] = message.call if isinstance(message, Beat) else ""
        if not self._is_stuck[number]:
            self._seconds[number] = 0.0

    def advance(self, seconds: float, numbers: Sequence[int]) -> list[int]:
        """Adds `seconds` of silence to the processes `numbers`; returns those that have timed out. If one has, others
        that have missed their heartbeats for nearly as long have the same cause.
        """
        if math.isinf(self._timeout):
            return []
        for number in numbers:
            self._seconds[number] += running_seconds(seconds, self._poll_seconds)
        limits = {number: self._limit(number) for number in numbers}
        if all(self._seconds[number] <= limit for number, limit in limits.items()):
            return []
        grace = min(2 * BEAT_SECONDS, min(limits.values()) / 2) if self._has_beats else 0.0
        return [number for number, limit in limits.items() if self._seconds[number] > limit - grace]

    def reason(self, silent: Sequence[int]) -> str:
        """Why processes that have timed out count as failed."""
        limit = max(map(self._limit, silent))
        stuck = [self._calls[number] for number in silent if self._is_stuck[number]]
        if MAKING in stuck:
            what = "an environment was not ready"
        elif stuck:
            what = f"an environment did not finish its {stuck[0]}"
        else:
            what = "it did not answer"
        if not all(self._has_started[number] for number in silent):
            return f"{what} for {limit:g} s after its start"
        if limit < self._timeout:
            return f"{what} for {limit:g} s after the signal to stop; not saved since the last checkpoint"
        if limit > self._timeout:
            return f"{what} for {limit:g} s; raise parallel.timeout_seconds={self._timeout:g} above that"
        return f"{what} for parallel.timeout_seconds={limit:g}; raise it if that is too short"

    def _limit(self, number: int) -> float:
        """How long this process may be silent. Whatever the time-out, it may take a minute to start. Once the run is to
        stop, it is not waited for long, unless an environment keeps it from stopping.
        """
        if not self._has_started[number] or self._calls[number] == MAKING:
            return max(self._timeout, START_SECONDS)
        if self._has_beats and not self._is_stuck[number] and requested_signal() is not None:
            return min(self._timeout, STOP_TIMEOUT_SECONDS)
        return self._timeout
