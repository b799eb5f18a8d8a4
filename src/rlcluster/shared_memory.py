"""Memory that several processes have mapped: a file in shared memory, or in a folder of the user's choice where that is
too small. Once all have opened it, its name is removed: the space is free again when the last of them has ended,
however it ended.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from rlcluster.errors import EXIT_STORAGE, UserError

SHARED_MEMORY = Path("/dev/shm")


def reserve(num_bytes: int, folder: Path | None = None) -> Path:
    """A new file of this size, all zeros. The space is reserved: a write into a file system that is full would end the
    process without a word.
    """
    place = folder or (SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir()))
    try:
        file, name = tempfile.mkstemp(prefix="rlcluster-", dir=place)
    except OSError as error:
        raise UserError(f"{place}: {error.strerror}; choose another folder for the rollouts", EXIT_STORAGE) from None
    try:
        os.posix_fallocate(file, 0, num_bytes)
    except OSError:
        Path(name).unlink()
        free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
        raise UserError(
            f"{place} has {free / 1e6:,.0f} MB free, but {num_bytes / 1e6:,.0f} MB are needed; use fewer environments "
            "or steps, or another folder for the rollouts",
            EXIT_STORAGE,
        ) from None
    finally:
        os.close(file)
    return Path(name)


def map_file(path: Path, num_bytes: int) -> Tensor:
    """The bytes of a reserved file: what one process writes into them, the others see."""
    return torch.from_file(str(path), shared=True, size=num_bytes, dtype=torch.uint8)
