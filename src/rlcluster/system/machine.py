"""What this process may use: cores, threads and memory; and the facts that belong beside every figure of speed.

Heavy libraries are not imported here at module level: the thread settings must come before they start.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlcluster.system.console import warn
from rlcluster.system.launcher import launched

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
CGROUP_ROOT = Path("/sys/fs/cgroup")
BYTES_PER_GB = 1024**3

# How long an OpenMP thread spins for its fellows before it sleeps, in turns (10,000 are some 20 microseconds). The
# default of libgomp is for an idle machine: with one other busy process on 2 cores, 2 threads of ours fell from 545 to
# 38 samples/s (impala, forward and backward); with this limit they keep 122, and an idle machine shows no loss.
SPIN_VARIABLE, SPIN_COUNT = "GOMP_SPINCOUNT", "10000"

_affinity_given: frozenset[int] | None = None  # the affinity of this process before `pin` narrowed it


def cores_allowed(cgroup_root: Path = CGROUP_ROOT) -> int:
    """Cores this process may use: the least of affinity, cgroup quota and the scheduler's share; at least 1."""
    limits = [_affinity_cores()]
    quota = cgroup_quota(cgroup_root)
    if quota is not None:
        limits.append(int(quota))
    slurm = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if slurm.isdigit() and int(slurm) > 0:
        limits.append(int(slurm))
    return max(1, min(limits))


def cgroup_quota(root: Path = CGROUP_ROOT) -> float | None:
    """The smallest CPU quota on the way from this process's cgroup to the root, in cores; None if unlimited."""
    quotas = [_quota_of(folder) for folder in _own_cgroups(root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def num_threads(setting: int | None, num_workers: int = 1) -> int:
    """The threads of each worker that `hardware.num_threads` means. null: all cores this process may use for one
    worker, the physical ones shared out for several.
    """
    if setting is not None:
        return setting
    return cores_allowed() if num_workers == 1 else max(1, default_workers() // num_workers)


def default_workers() -> int:
    """A worker for each physical core this process may use: a second thread of a core adds little to convolutions."""
    order = core_order()
    siblings = {_first_sibling(core) for core in order}
    return max(1, min(cores_allowed(), len(siblings) or 1))


def core_order() -> list[int]:
    """The cores of this process's affinity, the first thread of each physical core before the second ones."""
    return sorted(_affinity(), key=lambda core: (_first_sibling(core) != core, core))


def own_cores() -> list[int]:
    """The cores that this process is tied to, in `core_order`; none where the system cannot tie it."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    own = os.sched_getaffinity(0)
    return [core for core in core_order() if core in own]


def pin_to(cores: Sequence[int]) -> None:
    """Ties this process to these cores: those of `own_cores`, or some of them; none leave it as it is."""
    global _affinity_given  # noqa: PLW0603 - the process has one affinity, and what it was before is lost otherwise
    if cores:
        _affinity_given = _affinity_given or frozenset(core_order())
        os.sched_setaffinity(0, cores)


def pin(rank: int, num_workers: int, num_threads: int) -> None:
    """Ties this process to its share of the cores, if together the workers claim all physical ones: another run beside
    a smaller one would be tied to the same cores. Does nothing where there are too few, or on other systems.
    """
    order, num_cores, num_physical = core_order(), num_workers * num_threads, default_workers()
    if num_cores > num_physical:  # then a worker has both threads of its cores
        order = sorted(order, key=lambda core: (_first_sibling(core), core))
    if num_physical <= num_cores <= len(order):
        pin_to(order[rank * num_threads : (rank + 1) * num_threads])


def _first_sibling(core: int) -> int:
    """The lowest number among the hardware threads of this core's physical core."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
    except OSError:
        return core
    return int(text.replace("-", ",").split(",")[0])


def limit_threads(num_threads: int) -> None:
    """Sets the threads of torch (intra- and inter-op), OpenMP, MKL and OpenBLAS alike.

    Takes full effect when called before torch and numpy are imported, as the command line does.
    """
    for variable in THREAD_VARIABLES:
        os.environ[variable] = str(num_threads)
    os.environ.setdefault(SPIN_VARIABLE, SPIN_COUNT)
    import torch

    torch.set_num_threads(num_threads)
    if torch.get_num_interop_threads() != num_threads:
        try:
            torch.set_num_interop_threads(num_threads)
        except RuntimeError:
            warn(
                f"torch has started work with {torch.get_num_interop_threads()} inter-op threads before "
                f"num_threads={num_threads} was set; call train() earlier in the process"
            )


class Memory(NamedTuple):
    """Resident memory, in GB."""

    memory_gb: float  # now
    peak_memory_gb: float  # so far


def memory() -> Memory:
    """Of this process."""
    return Memory(memory_gb(), peak_memory_gb())


def memory_gb() -> float:
    """Resident memory of this process now, in GB."""
    import psutil

    return float(psutil.Process().memory_info().rss) / BYTES_PER_GB


def peak_memory_gb() -> float:
    """Largest resident memory of this process so far, in GB."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the process that started us held before exec
        kilobytes = next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(kilobytes) * 1024 / BYTES_PER_GB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024
    return peak * unit / BYTES_PER_GB


def memory_available_gb(cgroup_root: Path = CGROUP_ROOT) -> float:
    """What the machine has free, or less where the cgroup allows less."""
    import psutil

    free = [float(psutil.virtual_memory().available)]
    for folder in _own_cgroups(cgroup_root):
        try:
            free.append(int((folder / "memory.max").read_text()) - int((folder / "memory.current").read_text()))
        except (OSError, ValueError):
            continue  # no limit here ("max"), or no such file
    return max(0.0, min(free)) / BYTES_PER_GB


class OtherWork:
    """What others do with the cores of this process while a run goes on: other processes of the machine, and what the
    host of a virtual machine withholds.
    """

    def __init__(self) -> None:
        self._begin = self._now()

    def share(self) -> float | None:
        """Of the cores, on average since this was made; None where the system does not tell."""
        now = self._now()
        seconds, busy, own = (after - before for after, before in zip(now, self._begin, strict=True))
        cores = _affinity_cores()
        return min(1.0, max(0.0, busy - own) / (seconds * cores)) if seconds > 0 and busy > 0 else None

    def _now(self) -> tuple[float, float, float]:
        """Seconds of the clock, of the cores that were busy or withheld, and of the processes of this run."""
        import psutil

        kinds, own = ("user", "nice", "system", "irq", "softirq", "steal"), _affinity()
        times = [one for core, one in enumerate(psutil.cpu_times(percpu=True)) if not own or core in own]
        busy = sum(getattr(one, kind, 0.0) for one in times for kind in kinds)
        return time.perf_counter(), busy, sum(map(_cpu_seconds, _own_processes()))


def _own_processes() -> list[Any]:
    """This process and those it has started; for a rank, its parent's other ranks as well."""
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
        return 0.0  # it has just ended: its parent has its time
    return float(times.user + times.system + times.children_user + times.children_system)


def facts(num_threads: int) -> dict[str, Any]:
    """The machine and the software of a run. No environment variables, no host or user names."""
    import gymnasium
    import numpy
    import psutil
    import torch

    import rlcluster

    return {
        "cpu_model": cpu_model(),
        "cores_allowed": cores_allowed(),
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


def cpu_flags() -> list[str]:
    """What the processor can do, in Linux's words; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    return next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), [])


def git_commit() -> str | None:
    """The commit of the source this package runs from; None when it is not a git checkout."""
    folder = Path(__file__).resolve().parent
    is_tracked = ["ls-files", "--error-unmatch", Path(__file__).name]  # an installed copy may lie in another's checkout
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        for arguments in (is_tracked, describe):
            command = ["git", "-C", str(folder), *arguments]
            result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None


def _affinity_cores() -> int:
    return len(_affinity()) or os.cpu_count() or 1


def _affinity() -> frozenset[int]:
    """The cores that this process was given; empty where the system does not tell."""
    if not hasattr(os, "sched_getaffinity"):
        return frozenset()
    return _affinity_given or frozenset(os.sched_getaffinity(0))


def _own_cgroups(root: Path) -> list[Path]:
    """The folders of this process's cgroups, v2 and v1, each with its parents up to the root."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / controllers if controllers else root
        folder = top / path.lstrip("/")
        folders += [folder, *(parent for parent in folder.parents if parent.is_relative_to(top))]
    return folders


def _quota_of(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError):
        return None
