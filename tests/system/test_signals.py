"""Signals while the main thread is inside a call that lets no Python handler run, as in an exchange with ranks."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from rlcluster.system.signals import StopRequest

STUCK = """
import ctypes, sys
from rlcluster.system.signals import StopRequest
with StopRequest(ignores_second_signal=sys.argv[1] == "ignores") as stop:
    stop.deadline_seconds = float(sys.argv[2]) or None
    print("ready", flush=True)
    for _ in range(60):
        ctypes.CDLL(None).usleep(1_000_000)  # returns early for a signal, as no exchange does: so it goes on
"""


def start_stuck(kind: str, deadline: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK, kind, str(deadline)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_run_that_does_not_stop_in_time_is_ended_and_says_so() -> None:
    process = start_stuck("ignores", 0.5)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 71
    assert stderr == "rlcluster: error: asked to stop, but the run did not in time; left unsaved\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_leaves_at_once(number: signal.Signals) -> None:
    process = start_stuck("exits", 0)
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    process.stderr.readline()
    assert "finishing this update" in process.stderr.readline()
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == 128 + number


def test_signals_are_given_back_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert signal.getsignal(signal.SIGTERM) != before
        signal.raise_signal(signal.SIGTERM)
        assert stop.signal_number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before
    assert signal.set_wakeup_fd(-1) == -1
