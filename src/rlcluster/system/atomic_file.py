"""Files: atomic writes, errors with their remedy, and who may change them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path

from rlcluster.system.errors import EXIT_STORAGE, UserError

REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some space"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit of open files (ulimit -n)"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "choose a folder that you can write"),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR), "choose a folder that exists"),
    errno.EISDIR: "choose another name",
    errno.ENAMETOOLONG: "choose a shorter name",
}


class StorageError(UserError):
    """`what`, a file or folder or the setting that names it, cannot be written: the cause, and the remedy for it."""

    def __init__(self, what: str, error: OSError, advice: str = "") -> None:
        self.what, self.error = what, error
        remedy = REMEDIES.get(error.errno or 0, "check the disk, or choose another folder")
        reason = error.strerror or type(error).__name__
        super().__init__(f"{what} cannot be written ({reason}); {remedy}{advice}", EXIT_STORAGE)


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Temporary file, fsync, rename: readers see either the old content or the new."""
    temporary = temporary_name(path)
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise StorageError(str(path), error) from None


def temporary_name(path: Path) -> Path:
    """In the same folder, where it can be renamed to `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def write_json(path: Path, data: object) -> None:
    """Indented for people. NaN raises a ValueError: JSON has none."""
    write_atomically(path, (json.dumps(data, indent=2, allow_nan=False) + "\n").encode())


def keep_files_from_strangers() -> None:
    """Where everybody may write the files that this process and its children make, only the user may from now on. A
    mask that shares them with a group (002) stays as it is.
    """
    mask = os.umask(0o022)
    if mask & 0o002:
        os.umask(mask)
    else:
        os.umask(mask | 0o022)
