"""Heartbeats and the time-outs that they reset."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rlcluster.environments.construction import with_progress
from rlcluster.system import heartbeat
from rlcluster.system.heartbeat import CALLS, MAKING, Beat, EnvironmentCalls, InactivityTimer, watched_calls
from rlcluster.system.signals import StopRequest

ALIVE, STUCK, STUCK_MAKING = Beat(is_stuck=False), Beat(is_stuck=True, call="step"), Beat(is_stuck=True, call=MAKING)


def timer(timeout_seconds: float | None = 6.0, has_beats: bool = True) -> InactivityTimer:
    """Of processes that have all started."""
    one = InactivityTimer(3, timeout_seconds, poll_seconds=0.5, has_beats=has_beats)
    for number in range(3):
        one.heard(number, ALIVE)
    return one


def test_a_process_that_is_silent_for_longer_than_the_time_out_has_failed() -> None:
    one = timer()
    for _ in range(12):
        assert one.advance(0.5, [0, 1, 2]) == []
        one.heard(0, ALIVE)
        one.heard(2, ALIVE)
    assert one.advance(0.5, [0, 1, 2]) == [1]
    assert one.reason([1]) == "it did not answer for parallel.timeout_seconds=6; raise it if that is too short"


def test_processes_whose_environments_hang_have_all_failed_though_they_beat() -> None:
    one = timer()
    for _ in range(12):
        assert one.advance(0.5, [0, 1, 2]) == []
        for number in range(3):
            one.heard(number, STUCK)
    assert one.advance(0.5, [0, 1, 2]) == [0, 1, 2]
    assert one.reason([0, 1, 2]).startswith("an environment did not finish its step for parallel.timeout_seconds=6;")


def test_a_step_that_ends_in_time_is_no_hang() -> None:
    one = timer()
    for _ in range(10):
        one.advance(0.5, [0])
        one.heard(0, STUCK)
    one.heard(0, ALIVE)
    assert [one.advance(0.5, [0]) for _ in range(12)] == [[]] * 12


def test_time_in_which_the_listener_was_stopped_does_not_count() -> None:
    one = timer()
    assert [one.advance(3600.0, [0]) for _ in range(6)] == [[]] * 6  # a second each
    assert one.advance(3600.0, [0]) == [0]


def test_a_process_has_a_minute_to_start_however_short_the_time_out() -> None:
    one = InactivityTimer(2, 6.0, poll_seconds=0.5, has_beats=True)
    one.heard(1, ALIVE)
    for _ in range(120):
        assert one.advance(0.5, [0, 1]) == []
        one.heard(1, ALIVE)
    assert one.advance(0.5, [0, 1]) == [0]
    assert one.reason([0]) == "it did not answer for 60 s after its start"


def test_an_environment_has_a_minute_to_be_made_however_short_the_time_out() -> None:
    one = timer(6.0)
    for _ in range(120):
        assert one.advance(0.5, [0, 1]) == []
        one.heard(0, STUCK_MAKING)
        one.heard(1, ALIVE)
    assert one.advance(0.5, [0, 1]) == [0]
    assert one.reason([0]) == "an environment was not ready for 60 s; raise parallel.timeout_seconds=6 above that"


def test_making_many_environments_is_no_silence_as_long_as_each_is_ready_in_time() -> None:
    one = timer(6.0)
    for _ in range(1000):
        one.heard(0, Beat(is_stuck=False, call=MAKING))
        assert one.advance(1.0, [0]) == []


def test_without_a_time_out_nobody_fails() -> None:
    one = timer(None)
    assert one.advance(1.0, [0, 1]) == []
    with StopRequest(ignores_second_signal=True):
        signal.raise_signal(signal.SIGTERM)
        assert [one.advance(1.0, [0, 1]) for _ in range(20)] == [[]] * 20


def test_after_a_signal_a_silent_process_is_not_waited_for_long() -> None:
    one, without_beats = timer(120.0), timer(120.0, has_beats=False)
    with StopRequest(ignores_second_signal=True):
        signal.raise_signal(signal.SIGTERM)
        for _ in range(20):
            assert one.advance(0.5, [1]) == []
            assert without_beats.advance(0.5, [1]) == []
        assert one.advance(0.5, [1]) == [1]
        assert without_beats.advance(0.5, [1]) == [], "work may take longer than a heartbeat"
        assert one.reason([1]).startswith("it did not answer for 10 s after the signal to stop")


def test_after_a_signal_a_step_may_end_in_the_usual_time() -> None:
    """Ctrl-C during a step of half a minute: the process is not stopped, and will save."""
    one = timer(40.0)
    with StopRequest(ignores_second_signal=True):
        signal.raise_signal(signal.SIGTERM)
        for _ in range(80):
            assert one.advance(0.5, [1]) == []
            one.heard(1, STUCK)
        assert one.advance(0.5, [1]) == [1]
        assert one.reason([1]).startswith("an environment did not finish its step for parallel.timeout_seconds=40")


class Pipe:
    """Takes a few heartbeats, then breaks."""

    def __init__(self, calls: EnvironmentCalls) -> None:
        self.calls, self.call, self.beats = calls, calls("step"), list[Beat]()

    def send(self, message: Any) -> None:
        self.beats.append(message)
        number = len(self.beats)
        if number == 1:
            self.call.__enter__()
        if number == 4:
            self.call.__exit__(None, None, None)
        if number == 6:
            raise ConnectionError


def test_a_heartbeat_says_that_one_step_has_been_running_since_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = EnvironmentCalls()
    monkeypatch.setattr(heartbeat, "CALLS", calls)
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.0)
    pipe = Pipe(calls)
    heartbeat.beat(pipe, threading.Lock())
    assert [beat.is_stuck for beat in pipe.beats] == [False, False, True, True, False, False]


def test_a_heartbeat_says_which_call_is_running_and_that_a_further_environment_is_no_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.0)
    seen: list[Beat] = []

    class Sender:
        """Takes two heartbeats at a time; the process makes another environment after the first of them."""

        def send(self, message: Any) -> None:
            seen.append(message)
            if len(seen) % 2 == 0:
                raise ConnectionError
            next(things, None)

    things = with_progress(range(2))
    for call in (MAKING, MAKING, "step"):
        with CALLS(call):
            heartbeat.beat(Sender(), threading.Lock())
    heartbeat.beat(Sender(), threading.Lock())
    assert [one.call for one in seen] == [MAKING] * 4 + ["step"] * 2 + [""] * 2
    assert [one.is_stuck for one in seen] == [False] * 5 + [True] + [False] * 2


@pytest.mark.parametrize(
    ("beats", "hangs"),
    [
        ([ALIVE, *[STUCK] * 6] * 3, False),
        ([ALIVE, *[STUCK] * 7], True),
        ([ALIVE] * 100, False),
        ([ALIVE, *[STUCK_MAKING] * 60], False),
        ([ALIVE, *[STUCK_MAKING] * 61], True),
    ],
)
def test_a_process_that_watches_its_own_calls_finds_the_one_that_exceeds_the_time_out(
    beats: list[Beat], hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A beat is a second, and the time-out is six; for making an environment a minute."""
    is_over, reasons = threading.Event(), list[str]()

    def given() -> Iterator[Beat]:
        yield from beats
        is_over.set()

    def on_hang(reason: str) -> None:
        reasons.append(reason)
        is_over.set()

    monkeypatch.setattr(heartbeat, "_beats", given)
    with watched_calls(6.0, on_hang):
        assert is_over.wait(60)
    assert len(reasons) == hangs
