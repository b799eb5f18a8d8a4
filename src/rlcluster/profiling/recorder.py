"""Records one process of a profiled run: its phases, the time of each layer in our kernels, and its memory."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlcluster.networks.kernels.library import Trunk
from rlcluster.networks.policy import Policy
from rlcluster.system.machine import BYTES_PER_GB, memory_gb
from rlcluster.system.phases import Recording, clock

TRACED_DEPTH = 2  # phases up to this depth are in the trace for the whole time
MAX_EVENTS = 400_000  # of all processes in the trace; the deeper phases end earlier where there are more
MIN_EVENTS = 500  # of each
MEMORY_SECONDS = 0.5  # between two samples
SHARED_MEMORY = Path("/dev/shm")


class ProcessName(NamedTuple):
    """Who is recorded."""

    rank: int
    helper: str | None = None  # "actor 1"
    threads: int = 1
    num_processes: int = 1  # of the run, to share the trace among them


class Recorder:
    """Between `start` and `stop` this process is profiled."""

    def __init__(self, name: ProcessName, policy: Policy | None) -> None:
        self._name, self._kernels = name, None if policy is None else _kernels_of(policy)
        self._memory = MemorySampler()

    def start(self) -> None:
        if self._kernels is not None:
            self._kernels.time_layers(True)
        self._memory.start()
        clock.start()

    def stop(self) -> dict[str, Any]:
        """What was recorded, as plain values: `analysis.ProcessProfile` reads them."""
        recording = clock.stop()
        layers = None
        if self._kernels is not None:
            layers = self._kernels.layer_seconds()
            self._kernels.time_layers(False)
        limit = max(MIN_EVENTS, MAX_EVENTS // self._name.num_processes)
        return {
            **self._name._asdict(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "begin": recording.begin,
            "end": recording.end,
            **_phases(recording, limit),
            "layers": layers,
            "memory": self._memory.stop(),
        }


def _kernels_of(policy: Policy) -> Trunk | None:
    return next((trunk.kernels for trunk in policy.trunks), None)


def _phases(recording: Recording, limit: int) -> dict[str, Any]:
    """Sums for each path; the phases themselves for the trace; and all collectives."""
    numbers, starts, ends = (np.array(part) for part in (recording.numbers, recording.starts, recording.ends))
    amounts, count = np.array(recording.amounts, np.float64), len(recording.paths)
    depths = np.array([len(path) for path in recording.paths])
    is_sync = np.array([path[-1:] == ("sync",) for path in recording.paths])
    chosen = (depths[numbers] <= TRACED_DEPTH) | (np.arange(len(numbers)) < limit) if len(numbers) else []
    synced = is_sync[numbers] if len(numbers) else []
    columns = numbers[chosen].tolist(), _microseconds(recording, starts[chosen]), _microseconds(recording, ends[chosen])
    return {
        "paths": [list(path) for path in recording.paths],
        "counts": np.bincount(numbers, minlength=count).tolist(),
        "seconds": np.bincount(numbers, ends - starts, minlength=count).tolist(),
        "amounts": np.bincount(numbers, amounts, minlength=count).tolist(),
        "events": [list(row) for row in zip(*columns, strict=True)],
        "syncs": [list(row) for row in zip(starts[synced].tolist(), ends[synced].tolist(), strict=True)],
    }


def _microseconds(recording: Recording, times: Any) -> list[float]:
    return np.round(1e6 * (times - recording.begin), 1).tolist()  # type: ignore[no-any-return]


class MemorySampler:
    """The memory of this process over time, sampled by a thread: its private pages, which Linux counts anyway, plus its
    part of shared pages. That part (PSS minus private) is taken once, at the end: summing it up takes Linux
    milliseconds, tens of them for a large process.
    """

    def __init__(self) -> None:
        self._samples: list[tuple[float, float, float]] = []  # time, GB of this process, GB in /dev/shm
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> list[tuple[float, float, float]]:
        self._over.set()
        assert self._thread is not None, "start comes first"
        self._thread.join()
        shared = proportional_memory_gb() - private_memory_gb()
        return [(at, private + shared, in_files) for at, private, in_files in self._samples]

    def _sample(self) -> None:
        while True:
            self._samples.append((time.perf_counter(), private_memory_gb(), shared_memory_gb()))
            if self._over.wait(MEMORY_SECONDS):
                return


def private_memory_gb() -> float:
    """Resident pages that no file or shared memory backs; elsewhere than on Linux all resident memory."""
    try:
        _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    except OSError:
        return memory_gb()
    return (int(resident) - int(shared)) * resource.getpagesize() / BYTES_PER_GB


def proportional_memory_gb() -> float:
    """Resident memory, with a page that n processes share counted as 1/n (PSS); elsewhere than on Linux, all of it."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return memory_gb()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / BYTES_PER_GB


def shared_memory_gb() -> float:
    """What all processes of this machine hold in /dev/shm; 0 where there is none."""
    if not SHARED_MEMORY.is_dir():
        return 0.0
    usage = os.statvfs(SHARED_MEMORY)
    return (usage.f_blocks - usage.f_bfree) * usage.f_frsize / BYTES_PER_GB
