"""One checkpoint on disk: tensors, numbers and text only, with a hash of its content, written atomically.

torch is imported where tensors are read or written: readers of runs do without it.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from rlcluster.settings.earlier import complete
from rlcluster.settings.schema import Settings
from rlcluster.system.atomic_file import write_atomically
from rlcluster.system.errors import UserError

FORMAT = "rlcluster checkpoint 1"


class CheckpointError(UserError):
    """A file that is not a whole checkpoint of ours, or that cannot be read now."""

    def __init__(self, path: Path, reason: str, is_damaged: bool = True) -> None:
        super().__init__(f"{path}: {reason}; give another checkpoint of the run")
        self.is_damaged = is_damaged


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Writes all or nothing: a kill or a full disk at any moment leaves the old file, or none, in place."""
    write_atomically(path, checkpoint_bytes(content))


def checkpoint_bytes(content: dict[str, Any]) -> memoryview:
    """A whole checkpoint file in memory."""
    import torch

    buffer = io.BytesIO()
    torch.save({"format": FORMAT, "sha256": content_hash(content), "content": content}, buffer)
    return buffer.getbuffer()


def load_checkpoint(path: Path, file: io.BytesIO | None = None) -> dict[str, Any]:
    """The content of a checkpoint, read from `path` or from `file`; raises a CheckpointError for a damaged, foreign or
    malicious one.
    """
    import torch

    try:
        loaded = torch.load(file or path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(path, f"cannot be read ({error.strerror or error})", is_damaged=False) from None
    except MemoryError:
        raise CheckpointError(path, "does not fit into memory", is_damaged=False) from None
    except pickle.UnpicklingError:
        raise CheckpointError(path, "is not a whole checkpoint of tensors, numbers and text alone") from None
    except Exception as error:  # noqa: BLE001 - a damaged or hostile file can raise anything
        raise CheckpointError(path, f"is not a whole checkpoint ({type(error).__name__})") from None
    if not isinstance(loaded, dict) or loaded.get("format") != FORMAT or not isinstance(loaded.get("content"), dict):
        raise CheckpointError(path, "is not a checkpoint of rlcluster")
    content: dict[str, Any] = loaded["content"]
    try:
        is_whole = content_hash(content) == loaded.get("sha256")
    except (TypeError, RuntimeError, RecursionError):
        is_whole = False  # something that we never write
    if not is_whole:
        raise CheckpointError(path, "is damaged (its content does not match its hash)")
    return content


def settings_of(content: dict[str, Any]) -> Settings:
    """The settings of the run that a checkpoint was saved in."""
    return Settings.model_validate(complete(yaml.safe_load(content["settings"])))


def content_hash(content: object) -> str:
    """SHA-256 over keys, types, shapes and values; independent of how they are laid out in a file."""
    digest = hashlib.sha256()
    for part in _canonical(content):
        digest.update(part)
    return digest.hexdigest()


def _canonical(value: object) -> Iterator[bytes | memoryview]:
    if isinstance(value, dict):
        yield b"{%d" % len(value)
        for key in sorted(value):
            yield from _canonical(key)
            yield from _canonical(value[key])
    elif isinstance(value, list | tuple):
        yield b"[%d" % len(value)
        for item in value:
            yield from _canonical(item)
    elif value is None or type(value) in (bool, int, float, str):  # no subclass: NumPy's would not load again
        yield f"{type(value).__name__} {value!r};".encode()
    else:
        yield from _canonical_tensor(value)


def _canonical_tensor(value: object) -> Iterator[bytes | memoryview]:
    import torch

    if not isinstance(value, torch.Tensor):
        raise TypeError(f"a checkpoint holds tensors, numbers and text, not {type(value).__name__}")
    yield f"tensor {value.dtype} {list(value.shape)} ".encode()
    yield value.detach().contiguous().view(-1).view(torch.uint8).numpy().data if value.numel() else b""
