"""The memory of this process, the background load on its cores, and the machine facts recorded with every run.

No heavy imports at module level: thread limits must be set before those libraries load.
"""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from rlcluster.system import cores
from rlcluster.system.launcher import launched

BYTES_PER_GB = 1024**3
CGROUP_V1_MEMORY = ("memory.limit_in_bytes", "memory.usage_in_bytes")


class Memory(NamedTuple):
    """Resident memory, in GB."""

    memory_gb: float  # now
    peak_memory_gb: float  # so far


def memory() -> Memory:
    """The resident memory of this process."""
    return Memory(memory_gb(), peak_memory_gb())


def memory_gb() -> float:
    """Resident memory of this process now, in GB."""
    import psutil

    return float(psutil.Process().memory_info().rss) / BYTES_PER_GB


def peak_memory_gb() -> float:
    """Peak resident memory of this process, in GB."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage also counts what the parent held before exec
        kilobytes = next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(kilobytes) * 1024 / BYTES_PER_GB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024
    return peak * unit / BYTES_PER_GB


def memory_available_gb(cgroup_root: Path = cores.CGROUP_ROOT) -> float:
    """Free memory of the machine, or of its cgroup if that is less."""
    import psutil

    limits = [_cgroup_memory(folder) for folder in cores.own_cgroups(cgroup_root, "memory")]
    free = [float(psutil.virtual_memory().available), *(limit for limit in limits if limit is not None)]
    return max(0.0, min(free)) / BYTES_PER_GB


def _cgroup_memory(folder: Path) -> float | None:
    """Bytes that a cgroup (v2 or v1) may still take; None if it has no limit. Files that it has read, and that the
    system drops when memory is short, count as free.
    """
    names = ("memory.max", "memory.current") if (folder / "memory.max").is_file() else CGROUP_V1_MEMORY
    try:
        limit, used = (int((folder / name).read_text()) for name in names)
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return limit - used + int(statistics.get("total_inactive_file", statistics.get("inactive_file", 0)))
    except (OSError, ValueError):
        return None  # no limit ("max"), or no such file


class BackgroundLoad:
    """The load on this process's cores during a run that is not the run's own: other processes, and steal time on a
    virtual machine.
    """

    def __init__(self) -> None:
        self._begin = self._now()

    def share(self) -> float | None:
        """The average share of the cores since construction; None where the OS does not report it."""
        now = self._now()
        seconds, busy, own = (after - before for after, before in zip(now, self._begin, strict=True))
        num_cores = len(cores.affinity()) or os.cpu_count() or 1
        return min(1.0, max(0.0, busy - own) / (seconds * num_cores)) if seconds > 0 and busy > 0 else None

    def _now(self) -> tuple[float, float, float]:
        """Seconds so far: wall clock, busy or stolen core time, and CPU time of this run's processes."""
        import psutil

        kinds, own = ("user", "nice", "system", "irq", "softirq", "steal"), cores.affinity()
        times = [one for core, one in enumerate(psutil.cpu_times(percpu=True)) if not own or core in own]
        busy = sum(getattr(one, kind, 0.0) for one in times for kind in kinds)
        return time.perf_counter(), busy, sum(map(_cpu_seconds, _own_processes()))


def _own_processes() -> list[Any]:
    """This process and its descendants; for a rank, its parent and the parent's other ranks as well."""
    import psutil

    root = psutil.Process()
    if multiprocessing.parent_process() is not None or launched() is not None:
        root = root.parent() or root
    return [root, *root.children(recursive=True)]


def _cpu_seconds(process: Any) -> float:
    import psutil

    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0  # it has just ended, and its time now counts for its parent
    return float(times.user + times.system + times.children_user + times.children_system)


def facts(num_threads: int) -> dict[str, Any]:
    """The hardware and software of a run. No environment variables, no host or user names."""
    import gymnasium
    import numpy
    import psutil
    import torch

    import rlcluster

    return {
        "cpu_model": cpu_model(),
        "cores_allowed": cores.allowed(),
        "cores_physical": psutil.cpu_count(logical=False),
        "cores_logical": psutil.cpu_count(logical=True),
        "num_threads": num_threads,
        "memory_total_gb": round(psutil.virtual_memory().total / BYTES_PER_GB, 2),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": {
            "rlcluster": rlcluster.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "gymnasium": gymnasium.__version__,
            "procgen-mirror": _version("procgen-mirror"),
        },
        "git_commit": git_commit(),
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux: the platform module knows less
    return platform.processor() or platform.machine()


def git_commit() -> str | None:
    """The commit of the source this package runs from; None outside a git checkout."""
    folder = Path(__file__).resolve().parent
    # Installed in a virtual environment inside another project's checkout, this file is not tracked there.
    is_tracked = ["ls-files", "--error-unmatch", Path(__file__).name]
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        for arguments in (is_tracked, describe):
            command = ["git", "-C", str(folder), *arguments]
            result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None
