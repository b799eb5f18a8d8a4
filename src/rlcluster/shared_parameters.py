"""The learner's parameters for actors in other processes: two copies and two numbers, no lock.

The learner says which version it begins, writes it into copy (version mod 2), and then announces it. An actor takes the
announced copy and looks again: if a version two further on has been begun meanwhile, its copy was being overwritten,
and it takes the new one. So nobody waits for anybody, and nobody acts with half of one version and half of another.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from rlcluster.shared_memory import map_file, reserve

HEADER_BYTES = 64  # a cache line: begun, announced


def reserve_parameters(size: int) -> Path:
    """A file for `size` parameters."""
    return reserve(_num_bytes(size))


class SharedParameters:
    """One process's view of them."""

    def __init__(self, path: Path, size: int) -> None:
        memory = map_file(path, _num_bytes(size))
        header = memory[:HEADER_BYTES].view(torch.int64)
        self._begun, self._announced = header[:1], header[1:2]
        self._copies = memory[HEADER_BYTES:].view(torch.float32).view(2, size)

    @property
    def version(self) -> int:
        """The newest whole one; 0 before the first."""
        return int(self._announced)

    def publish(self, parameters: Tensor) -> int:
        """The learner's next version; returns its number."""
        version = self.version + 1
        self._begun.fill_(version)
        self._copies[version % 2].copy_(parameters)
        self._announced.fill_(version)
        return version

    def take(self, parameters: Tensor) -> int:
        """Copies the newest version into `parameters`; returns its number."""
        while True:
            version = self.version
            parameters.copy_(self._copies[version % 2])
            if int(self._begun) < version + 2:
                return version


def _num_bytes(size: int) -> int:
    return HEADER_BYTES + 2 * size * torch.float32.itemsize
