"""Phases and the stopwatch, on a fake clock."""

import time

import pytest

from rlcluster.system.clock import PhaseTimer, Stopwatch


class HandClock:
    """Replaces time.perf_counter; moves only on demand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = HandClock()
    monkeypatch.setattr(time, "perf_counter", clock)
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
