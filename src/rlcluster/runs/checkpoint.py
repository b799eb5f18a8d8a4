"""One checkpoint on disk: tensors, numbers and text only, with a hash of its content, written atomically.

torch is imported where tensors are read or written: readers of runs do without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import pickle
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rlcluster.settings.earlier import complete
from rlcluster.settings.schema import Settings
from rlcluster.system.atomic_file import write_atomically
from rlcluster.system.errors import UserError

FORMAT = "rlcluster checkpoint 1"
READING_ERRORS = (LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError, yaml.YAMLError)


class CheckpointError(UserError):
    """A file that is not a whole checkpoint of ours, or that cannot be read now."""

    def __init__(
        self, path: Path, reason: str, is_damaged: bool = True, remedy: str = "give another checkpoint of the run"
    ) -> None:
        super().__init__(f"{path}: {reason}; {remedy}")
        self.path, self.cause, self.is_damaged = path, reason, is_damaged

    def on_resume(self) -> CheckpointError:
        """The same for a run that is resumed, which chooses its checkpoint itself."""
        remedy = "move it away, and --resume takes the one before"
        return CheckpointError(self.path, self.cause, self.is_damaged, remedy)


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Writes all or nothing: a kill or a full disk at any moment leaves the old file, or none, in place."""
    write_atomically(path, checkpoint_bytes(content))


def checkpoint_bytes(content: dict[str, Any]) -> memoryview:
    """A whole checkpoint file in memory."""
    import torch

    buffer = io.BytesIO()
    torch.save({"format": FORMAT, "sha256": content_hash(content), "content": content}, buffer)
    return buffer.getbuffer()


class Checkpoint(NamedTuple):
    """A whole checkpoint: its content matches its hash. That it also fits a run is for its reader to find out."""

    path: Path
    content: dict[str, Any]

    @property
    def settings(self) -> Settings:
        """Of the run that it was saved in."""
        with self.reading():
            return Settings.model_validate(complete(yaml.safe_load(self.content["settings"])))

    @property
    def steps_global(self) -> int:
        return self._count("steps_global")

    @property
    def updates(self) -> int:
        return self._count("updates")

    def parameters(self) -> dict[str, Any]:
        """Of the policy, by name. They are finite: training stops before a step that would make them otherwise."""
        with self.reading():
            parameters: dict[str, Any] = dict(self.content["learner"]["parameters"])
            unusable = [name for name, value in parameters.items() if not bool(value.isfinite().all())]
        if unusable:
            reason = f"holds parameters that are NaN or infinite ({', '.join(unusable)})"
            raise CheckpointError(self.path, reason, is_damaged=False)
        return parameters

    def _count(self, name: str) -> int:
        with self.reading():
            value: int = self.content["learner"][name]
            if not is_count(value):
                raise ValueError(f"learner.{name} is {value!r}")
            return value

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Around whatever uses the content: what it lacks, or holds in another form, is a CheckpointError."""
        try:
            yield
        except READING_ERRORS as error:
            what = textwrap.shorten(f"{type(error).__name__}: {error}", 200)
            reason = f"was written by another version of rlcluster, or for other settings ({what})"
            raise CheckpointError(self.path, reason, is_damaged=False) from None


def is_count(value: Any) -> bool:
    """A whole number as we write them: of updates, steps or episodes."""
    return type(value) is int and 0 <= value < 2**63


def load_checkpoint(path: Path, data: bytes | None = None) -> Checkpoint:
    """Reads `path`, or `data` where it is already in memory; raises a CheckpointError for a damaged, foreign or
    malicious one.

    The file is read first and parsed then: torch reports some cut files by the same exceptions as a broken disk.
    """
    if data is None:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise CheckpointError(path, f"cannot be read ({error.strerror or error})", is_damaged=False) from None
        except MemoryError:
            raise _too_large(path) from None
    loaded = _parsed(path, data)
    if not isinstance(loaded, dict) or loaded.get("format") != FORMAT or not isinstance(loaded.get("content"), dict):
        raise CheckpointError(path, "is not a checkpoint of rlcluster")
    content: dict[str, Any] = loaded["content"]
    try:
        is_whole = content_hash(content) == loaded.get("sha256")
    except (TypeError, RuntimeError, RecursionError):
        is_whole = False  # something that we never write
    if not is_whole:
        raise CheckpointError(path, "is damaged (its content does not match its hash)")
    return Checkpoint(path, content)


def _parsed(path: Path, data: bytes) -> Any:
    import torch

    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise CheckpointError(path, "is not a whole checkpoint of tensors, numbers and text alone") from None
    except Exception as error:  # noqa: BLE001 - a damaged or hostile file can raise anything
        is_about_memory = isinstance(error, MemoryError) or "allocate memory" in str(error)
        if is_about_memory and _is_whole_archive(data):
            raise _too_large(path) from None
        raise CheckpointError(path, f"is not a whole checkpoint ({type(error).__name__})") from None


def _is_whole_archive(data: bytes) -> bool:
    """By its check sums: a damaged one may ask for any amount of memory."""
    try:
        return zipfile.ZipFile(io.BytesIO(data)).testzip() is None
    except (zipfile.BadZipFile, EOFError, ValueError, OSError, MemoryError):
        return False


def _too_large(path: Path) -> CheckpointError:
    return CheckpointError(path, "does not fit into memory", is_damaged=False)


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
