"""Signals while the main thread is blocked in a call that lets no Python handler run, such as a collective."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys

import pytest

from rlcluster.system.signals import StopRequest, requested_signal

from conftest import background

STUCK = """
import ctypes, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests run under nohup
from rlcluster.system.signals import StopRequest
with StopRequest(ignores_second_signal=sys.argv[1] == "ignores") as stop:
    stop.deadline_seconds = float(sys.argv[2]) or None
    print("ready", flush=True)
    for _ in range(60):
        ctypes.CDLL(None).usleep(1_000_000)  # a signal interrupts it, unlike a collective: hence the loop
"""


def start_stuck(kind: str, deadline: float) -> subprocess.Popen[str]:
    process = background([sys.executable, "-c", STUCK, kind, str(deadline)])
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_run_that_misses_its_deadline_exits_with_an_error() -> None:
    process = start_stuck("ignores", 0.5)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 71
    assert stderr == "rlcluster: error: the run did not stop before its deadline; not saved\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_exits_at_once(number: signal.Signals) -> None:
    process = start_stuck("exits", 0)
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    process.stderr.readline()
    assert "finishing this update" in process.stderr.readline()
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == 128 + number


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_what_terminals_and_schedulers_send_stops_the_run_and_may_be_repeated(number: signal.Signals) -> None:
    """SIGTERM after it is still the first of those that people insist with; the second exits."""
    process = start_stuck("exits", 0)
    assert process.stderr is not None
    process.send_signal(number)
    assert process.stderr.readline() == "\n"
    assert process.stderr.readline() == f"{number.name}: finishing this update, then saving.\n"
    process.send_signal(number)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.0)
    while process.poll() is None:  # two that arrive while it does not run are one
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
    assert process.returncode == 143


def test_a_process_that_nohup_has_started_stays_when_the_terminal_closes() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.requested
            assert requested_signal() is None
            signal.raise_signal(signal.SIGUSR1)
            assert requested_signal() is not None
        assert requested_signal() is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_previous_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert signal.getsignal(signal.SIGTERM) != before
        signal.raise_signal(signal.SIGTERM)
        assert stop.signal_number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before
    assert signal.set_wakeup_fd(-1) == -1
