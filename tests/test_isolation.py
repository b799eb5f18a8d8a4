"""Tests leave nothing behind: neither processes nor changes of their own process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import torch

from rlcluster.system.signals import hold_signals

from conftest import background, end, same_process

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print(child.pid, flush=True)
time.sleep(1000)
"""


def test_a_process_of_a_failed_test_is_ended_with_all_that_it_has_started() -> None:
    process = background([sys.executable, "-c", PARENT], stdin=subprocess.PIPE)
    assert process.stdout is not None
    child = psutil.Process(int(process.stdout.readline()))
    child.suspend()
    end(process)
    assert process.returncode == -signal.SIGKILL
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_what_a_test_changes_in_its_process_is_restored() -> None:
    def state() -> list[object]:
        mask = os.umask(0)
        os.umask(mask)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        handler, threads = signal.getsignal(signal.SIGTERM), torch.get_num_threads()
        return [mask, blocked, handler, threads, os.sched_getaffinity(0), Path.cwd(), dict(os.environ)]

    before = state()
    with same_process():
        os.umask(0o077)
        hold_signals()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        torch.set_num_threads(torch.get_num_threads() + 1)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        os.chdir(tempfile.gettempdir())
        os.environ["OMP_NUM_THREADS"] = "7"
        os.environ.pop("PATH")
        assert [one != other for one, other in zip(state(), before, strict=True)].count(True) >= 6  # of one core: no 7
    assert state() == before
