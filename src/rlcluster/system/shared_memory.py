"""Memory that several processes have mapped: a file in shared memory, or in a folder of the user's choice where that is
too small. It has no name that could be left behind: its space is free again when the last process has ended, however
it ended.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from rlcluster.system.errors import EXIT_STORAGE, UserError

SHARED_MEMORY = Path("/dev/shm")
CACHE_LINE_BYTES = 64  # a cache line, and more than any type needs to be aligned to


def round_up_to_cache_line(num_bytes: int) -> int:
    """The bytes, and what fills them up to a whole number of cache lines."""
    return -(-num_bytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES


class SharedFile:
    """A new file, all zeros, to be mapped by processes that this one starts while it is open.

    Its space is reserved: a write into a file system that is full would end the process without a word.
    """

    def __init__(self, num_bytes: int, remedy: str, folder: Path | None = None) -> None:
        """`remedy` is what an error advises."""
        name_of_place = "shared memory" if folder is None else f"hardware.rollout_dir={folder}"
        place = folder or (SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir()))
        try:
            self._file, name = tempfile.mkstemp(prefix="rlcluster-", dir=place)
        except OSError as error:
            raise UserError(f"{name_of_place}: {error.strerror}; {remedy}", EXIT_STORAGE) from None
        self.path = Path(name)
        if sys.platform == "linux":
            self.path.unlink()
            self.path = Path(f"/proc/{os.getpid()}/fd/{self._file}")
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, 0, num_bytes)
            else:  # macOS
                os.ftruncate(self._file, num_bytes)
        except OSError as error:
            self.close()
            free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
            raise UserError(
                f"{name_of_place} ({place}): {error.strerror}: {free / 1e6:,.0f} MB free, {num_bytes / 1e6:,.0f} MB "
                f"needed; {remedy}",
                EXIT_STORAGE,
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """When all have mapped it."""
        if sys.platform != "linux":
            self.path.unlink()
        os.close(self._file)


def map_file(path: Path, num_bytes: int) -> Tensor:
    """The bytes of a SharedFile: what one process writes into them, the others see."""
    return torch.from_file(str(path), shared=True, size=num_bytes, dtype=torch.uint8)
