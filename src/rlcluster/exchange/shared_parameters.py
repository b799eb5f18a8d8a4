"""Parameters in shared memory, without locks: IMPALA's, which one learner writes and its actors read, and A3C's, which
all workers update.

SharedParameters is a double-buffered seqlock: two copies and two version numbers. The learner stores the version it
begins, writes copy (version mod 2), then announces it. An actor reads the announced copy, then checks: if the version
after the next has begun meanwhile, the copy may be torn, and the actor reads again. So the learner never waits, and no
actor acts with a mix of two versions. This relies on x86-64, where stores become visible in program order.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from rlcluster.system.errors import UserError
from rlcluster.system.shared_memory import SharedFile, map_file, round_up_to_cache_line

HEADER_BYTES = round_up_to_cache_line(2 * torch.int64.itemsize)  # begun, announced
REMEDY = "make it larger (that of a container: --shm-size), or use --mode sequential"


def parameters_file(size: int) -> SharedFile:
    """The file of SharedParameters with `size` parameters."""
    return SharedFile(_num_bytes(size), REMEDY)


class SharedParameters:
    """One process's view of the learner's published parameters."""

    def __init__(self, path: Path, size: int) -> None:
        require_store_order()
        memory = map_file(path, _num_bytes(size))
        header = memory[:HEADER_BYTES].view(torch.int64)
        self._begun, self._announced = header[:1], header[1:2]
        self._copies = memory[HEADER_BYTES:].view(torch.float32).view(2, size)

    @property
    def version(self) -> int:
        """The newest complete version; 0 before the first."""
        return int(self._announced)

    def publish(self, parameters: Tensor, version: int) -> None:
        """Publishes the next version, the last one plus 1 (or any number, before an actor takes one)."""
        self._begun.fill_(version)
        self._copies[version % 2].copy_(parameters)
        self._announced.fill_(version)

    def take(self, parameters: Tensor, version: int | None = None) -> int:
        """Copies a version into `parameters`, by default the newest; returns its number. A given `version` must be the
        newest or the one before it, and remain so during the copy.
        """
        while True:
            taken = self.version if version is None else version
            parameters.copy_(self._copies[taken % 2])
            if int(self._begun) < taken + 2:
                return taken
            if version is not None:
                raise ValueError(f"version {version} is overwritten: {int(self._begun)} has begun")


def require_store_order() -> None:
    """Raises a UserError where a reader could see a version's number before its values."""
    processor = platform.machine()
    if processor.lower() not in ("x86_64", "amd64"):
        raise UserError(
            "IMPALA's actors read the learner's parameters without a lock, which relies on the store order of x86-64; "
            f"this processor is {processor}; use --mode sequential"
        )


class HogwildShape(NamedTuple):
    """The layout of HogwildParameters: each worker's step count, the optimiser's, then one row per tensor."""

    size: int  # parameters
    num_workers: int
    statistics: tuple[str, ...]  # of the optimiser, for each parameter

    @property
    def steps_bytes(self) -> int:
        return round_up_to_cache_line(self.num_workers * torch.int64.itemsize)

    @property
    def header_bytes(self) -> int:
        return self.steps_bytes + round_up_to_cache_line(torch.float32.itemsize)

    @property
    def num_bytes(self) -> int:
        return _num_bytes(self.size, self.header_bytes, 1 + len(self.statistics))


class HogwildParameters:
    """The parameters and the optimiser's state that A3C's workers share, and each worker's step count.

    Updates are neither locked nor atomic (Hogwild, arXiv 1106.5730): concurrent ones may partly overwrite each other.
    """

    def __init__(self, path: Path, shape: HogwildShape) -> None:
        memory = map_file(path, shape.num_bytes)
        self.steps = memory[: shape.steps_bytes].view(torch.int64)[: shape.num_workers]  # by worker
        step = memory[shape.steps_bytes : shape.header_bytes].view(torch.float32)[0]
        self.parameters, *rows = memory[shape.header_bytes :].view(torch.float32).view(-1, shape.size)
        self.optimizer_state = {"step": step, **dict(zip(shape.statistics, rows, strict=True))}


def hogwild_file(shape: HogwildShape) -> SharedFile:
    return SharedFile(shape.num_bytes, REMEDY)


def _num_bytes(size: int, header: int = HEADER_BYTES, rows: int = 2) -> int:
    """The bytes of tensors of this size and of the header before them."""
    return header + rows * size * torch.float32.itemsize
