"""The cores that a process may use, its thread counts, and core pinning.

No heavy imports at module level: thread limits must be set before those libraries load.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rlcluster.system.console import warn
from rlcluster.system.launcher import is_slurm_task

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
CGROUP_ROOT = Path("/sys/fs/cgroup")
JOB_CORES_VARIABLE = "RLCLUSTER_CORES"  # exported by the script of a PBS job

# How many iterations an OpenMP thread spins at a barrier before it sleeps (10,000: about 20 microseconds). The default
# of libgomp assumes an idle machine: with one other busy process on 2 cores, 2 threads fell from 545 samples/s to 38
# (impala, forward and backward). With this limit they keep 122, and lose nothing on an idle machine.
SPIN_VARIABLE, SPIN_COUNT = "GOMP_SPINCOUNT", "10000"

_affinity_given: frozenset[int] | None = None  # this process's affinity before `pin_to` narrowed it


class Core(NamedTuple):
    """One hardware thread."""

    number: int
    first_sibling: int  # the lowest-numbered hardware thread of its physical core
    socket: int = 0


class Cores(NamedTuple):
    """The part of a machine that one process may use."""

    allowed: int  # the minimum of affinity, cgroup quota and what the job asked for; at least 1
    affinity: tuple[Core, ...]  # first threads of physical cores first; empty where the OS does not report it
    together: int | None = None  # a rank of srun: allowed for all with its affinity, as Slurm limits each; else None

    @property
    def physical(self) -> int:
        """Physical cores: hyper-threads add little to convolutions."""
        return max(1, min(self.allowed, len({core.first_sibling for core in self.affinity}) or 1))

    @property
    def physical_together(self) -> int:
        """Of all processes with this affinity."""
        return self._replace(allowed=self.together or self.allowed).physical

    @property
    def is_partly_allowed(self) -> bool:
        """True where a quota or a scheduler allows fewer cores than the affinity has. Which ones is left to the system:
        another job on the machine may have the same affinity.
        """
        return self.physical_together < len({core.first_sibling for core in self.affinity})

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(core.number for core in self.affinity)


def observe(cgroup_root: Path = CGROUP_ROOT) -> Cores:
    """The cores of this process, as before any pinning."""
    every = (Core(number, first_sibling(number), socket_of(number)) for number in affinity())
    together = _allowed_together(cgroup_root) if is_slurm_task() else None
    return Cores(allowed(cgroup_root), tuple(sorted(every, key=_first_threads_first)), together)


def allowed(cgroup_root: Path = CGROUP_ROOT) -> int:
    """Cores this process may use: the minimum of affinity, cgroup quota and what the job asked for; at least 1."""
    return int(min(_allowed_together(cgroup_root), _limit_in("SLURM_CPUS_PER_TASK")))


def _allowed_together(cgroup_root: Path) -> int:
    """Affinity, cgroup quota and what a job of PBS asked for on this host, which its ranks may share."""
    limits = [len(affinity()) or os.cpu_count() or 1, _limit_in(JOB_CORES_VARIABLE)]
    quota = cgroup_quota(cgroup_root)
    if quota is not None:
        limits.append(int(quota))
    return max(1, int(min(limits)))


def _limit_in(variable: str) -> float:
    """A number of cores; infinity where the variable has none."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() and int(text) > 0 else math.inf


def affinity() -> frozenset[int]:
    """This process's affinity before any pinning; empty where the OS does not report it."""
    if not hasattr(os, "sched_getaffinity"):
        return frozenset()
    return _affinity_given or frozenset(os.sched_getaffinity(0))


def cgroup_quota(root: Path = CGROUP_ROOT) -> float | None:
    """The smallest CPU quota from this process's cgroup up to the root, in cores; None if unlimited."""
    quotas = [_quota_of(folder) for folder in own_cgroups(root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def pin_to(numbers: Sequence[int]) -> None:
    """Pins this process to these cores, a subset of its affinity; if there are none, to all that it was given."""
    global _affinity_given  # noqa: PLW0603 - a process has one affinity, and pinning loses the original
    if numbers or _affinity_given is not None:
        _affinity_given = affinity()
        os.sched_setaffinity(0, numbers or _affinity_given)


def limit_threads(num_threads: int, is_final: bool = True) -> None:
    """Limits the threads of torch (intra- and inter-op), OpenMP, MKL and OpenBLAS.

    Takes full effect only if called before torch and numpy are imported, as the command line does. Torch takes the
    number of inter-op threads once: it waits for the final call.
    """
    for variable in THREAD_VARIABLES:
        os.environ[variable] = str(num_threads)
    os.environ.setdefault(SPIN_VARIABLE, SPIN_COUNT)
    import torch

    torch.set_num_threads(num_threads)
    if is_final and torch.get_num_interop_threads() != num_threads:
        try:
            torch.set_num_interop_threads(num_threads)
        except RuntimeError:
            if torch.get_num_interop_threads() < num_threads:
                return  # fewer do no harm: nothing here runs on them
            warn(
                f"torch had already started {torch.get_num_interop_threads()} inter-op threads before "
                f"num_threads={num_threads} was set; call train() earlier in the process"
            )


def first_sibling(core: int) -> int:
    """The lowest-numbered hardware thread of the same physical core."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
    except OSError:
        return core
    return int(text.replace("-", ",").split(",")[0])


def socket_of(core: int) -> int:
    """The number of the processor package; 0 where the OS does not report it."""
    try:
        return int(Path(f"/sys/devices/system/cpu/cpu{core}/topology/physical_package_id").read_text())
    except (OSError, ValueError):
        return 0


def _first_threads_first(core: Core) -> tuple[bool, int]:
    return core.first_sibling != core.number, core.number


def number_ranges(numbers: Sequence[int]) -> str:
    """`8-15`, `0-3,8`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def own_cgroups(root: Path, controller: str = "cpu") -> list[Path]:
    """The directories of this process's cgroups, v2 and v1 of a controller, each with its parents up to the root."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
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
