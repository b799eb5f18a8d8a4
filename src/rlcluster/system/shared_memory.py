"""Memory that several processes map: a file in /dev/shm, or in a directory of the user's choice if that is too small.
It is unlinked while in use: its space is freed when the last process ends, however it ends.
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

from rlcluster.system.atomic_file import StorageError
from rlcluster.system.errors import EXIT_STORAGE, UserError

SHARED_MEMORY = Path("/dev/shm")
CACHE_LINE_BYTES = 64  # also enough to align any dtype


def round_up_to_cache_line(num_bytes: int) -> int:
    """Rounds a size up to a whole number of cache lines."""
    return -(-num_bytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES


class SharedFile:
    """A new zero-filled file, mapped by processes that this one starts while it is open.

    Its space is reserved up front: writing to a mapping on a full file system kills the process (SIGBUS).
    """

    def __init__(self, num_bytes: int, remedy: str, folder: Path | None = None) -> None:
        """`remedy` is the advice in error messages."""
        description = "shared memory" if folder is None else f"hardware.rollout_dir={folder}"
        directory = folder or (SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir()))
        try:
            self._file, name = tempfile.mkstemp(prefix="rlcluster-", dir=directory)
        except OSError as error:
            raise StorageError(description, error) from None
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
            free = os.statvfs(directory).f_bavail * os.statvfs(directory).f_frsize
            raise UserError(
                f"{description} ({directory}): {error.strerror}: {free / 1e6:,.0f} MB free, {num_bytes / 1e6:,.0f} MB "
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
        """To be called once every process has mapped it."""
        if sys.platform != "linux":
            self.path.unlink()
        os.close(self._file)


def map_file(path: Path, num_bytes: int) -> Tensor:
    """The bytes of a SharedFile: each process sees what the others write."""
    return torch.from_file(str(path), shared=True, size=num_bytes, dtype=torch.uint8)
