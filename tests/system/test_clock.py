"""Phases and the stopwatch, on a fake clock; stops of a real process."""

import os
import signal
import subprocess
import sys
import time

import pytest

from rlcluster.system import clock as clock_module
from rlcluster.system.clock import (
    SLICE_SECONDS,
    STOPPED_SECONDS,
    PhaseTimer,
    StopDetector,
    Stopwatch,
    wait_while_running,
)


class HandClock:
    """Moves only on demand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = HandClock()
    monkeypatch.setattr(clock_module, "run_clock", clock)
    return clock


# PhaseTimer


def test_a_phase_takes_the_time_between_its_start_and_its_end(clock):
    timer = PhaseTimer()
    clock.advance(1)
    with timer("rollout"):
        clock.advance(2)
    clock.advance(4)
    assert timer.seconds("rollout") == 2


def test_a_phase_inside_another_is_counted_once(clock):
    timer = PhaseTimer()
    with timer("learn"):
        clock.advance(1)
        with timer("sync"):
            clock.advance(2)
        clock.advance(4)
        with timer("sync"):
            clock.advance(8)
        clock.advance(16)
    assert timer.seconds("learn") == 1 + 4 + 16
    assert timer.seconds("sync") == 2 + 8


def test_a_phase_inside_itself_is_counted_once(clock):
    timer = PhaseTimer()
    with timer("sync"):
        clock.advance(1)
        with timer("sync"):
            clock.advance(2)
        clock.advance(4)
    assert timer.seconds("sync") == 7


def test_a_repeated_phase_accumulates(clock):
    timer = PhaseTimer()
    for seconds in (1, 2, 4):
        with timer("learn"):
            clock.advance(seconds)
        clock.advance(100)
    assert timer.seconds("learn") == 7


def test_a_phase_that_never_ran_took_no_time(clock):
    assert PhaseTimer().seconds("sync") == 0.0


def test_a_phase_that_ends_with_an_error_is_recorded_and_closed(clock):
    timer = PhaseTimer()
    with timer("learn"):
        with pytest.raises(ZeroDivisionError), timer("sync"):
            clock.advance(1)
            raise ZeroDivisionError
        clock.advance(2)
    assert timer.seconds("sync") == 1
    assert timer.seconds("learn") == 2


def test_reset_starts_over(clock):
    timer = PhaseTimer()
    with timer("learn"):
        clock.advance(1)
    timer.reset()
    assert timer.seconds("learn") == 0.0
    clock.advance(2)
    with timer("learn"):
        clock.advance(4)
    assert timer.seconds("learn") == 4


# Stopwatch


def test_a_stopwatch_counts_from_its_construction(clock):
    stopwatch = Stopwatch()
    assert stopwatch.seconds() == 0.0
    clock.advance(3)
    assert stopwatch.seconds() == 3.0


def test_the_stopwatch_of_a_resumed_run_continues_where_the_run_stopped(clock):
    stopwatch = Stopwatch(seconds_before=60.0)
    assert stopwatch.seconds() == 60.0
    clock.advance(3)
    assert stopwatch.seconds() == 63.0


# Stops


def test_a_gap_in_which_the_process_did_nothing_does_not_count():
    detector = StopDetector(now=100.0, cpu_seconds=7.0)
    assert detector.running_time(100.5, 7.5) == 100.5
    assert detector.running_time(3700.5, 8.0) == 100.5  # stopped for an hour
    assert detector.running_time(3701.0, 8.5) == 101.0
    assert detector.running_time(3801.0, 8.5) == 101.0  # and again


def test_short_gaps_count_because_a_busy_machine_makes_them_too():
    detector = StopDetector(now=0.0, cpu_seconds=0.0)
    assert detector.running_time(STOPPED_SECONDS, 0.0) == STOPPED_SECONDS


def test_a_process_that_computes_without_looking_at_the_clock_is_not_stopped():
    detector = StopDetector(now=0.0, cpu_seconds=0.0)
    assert detector.running_time(60.0, 60.0) == 60.0


WATCHED = """
import sys
from rlcluster.system.clock import Stopwatch
stopwatch = Stopwatch()
print(flush=True)
for line in sys.stdin:
    print(stopwatch.seconds(), flush=True)
"""


@pytest.mark.slow
def test_the_stopwatch_of_a_real_process_stands_still_while_it_is_stopped():
    begun = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", WATCHED], stdin=-1, stdout=-1, text=True) as process:
        process.stdout.readline()
        os.kill(process.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(STOPPED_SECONDS + 2)
        stop_seconds = time.monotonic() - stopped
        os.kill(process.pid, signal.SIGCONT)
        output, _ = process.communicate("\n")
    ran_at_most = time.monotonic() - begun - stop_seconds
    assert 0 <= float(output) <= ran_at_most + 2, "the stop counts; a signal arrives within 2 s"


# Time-outs


def test_a_wait_ends_when_it_is_answered():
    answers = iter([False, False, True])
    assert wait_while_running(lambda seconds: next(answers), 60.0)


def test_a_wait_times_out_after_the_time_in_which_this_process_ran(monkeypatch):
    clock = HandClock()
    monkeypatch.setattr(time, "monotonic", clock)
    slices = []

    def wait(seconds):
        slices.append(seconds)
        clock.advance(3600.0 if len(slices) == 2 else seconds)  # stopped for an hour in the second slice
        return False

    assert not wait_while_running(wait, 3.0)
    assert slices == [SLICE_SECONDS] * 5  # the second one counts twice: 0.5 + 1 + 3 * 0.5
