"""Signals while the main thread is blocked in a call that lets no Python handler run, such as a collective."""

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
        ctypes.CDLL(None).usleep(1_000_000)  # a signal interrupts it, unlike a collective: hence the loop
"""


def start_stuck(kind: str, deadline: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK, kind, str(deadline)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
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


def test_the_previous_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert signal.getsignal(signal.SIGTERM) != before
        signal.raise_signal(signal.SIGTERM)
        assert stop.signal_number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before
    assert signal.set_wakeup_fd(-1) == -1
