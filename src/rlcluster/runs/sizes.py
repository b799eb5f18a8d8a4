"""How much of the disk a run takes."""

from __future__ import annotations

from pathlib import Path

from rlcluster.runs.files import checkpoint_folder, metrics_file
from rlcluster.settings.schema import Settings


def checkpoint_bytes(path: Path, settings: Settings) -> int:
    """Of the largest checkpoint."""
    return max((file.stat().st_size for file in checkpoint_folder(path, settings).glob("*.pt")), default=0)


def log_bytes(path: Path, settings: Settings) -> int:
    """Of metrics and TensorBoard's events."""
    return sum(file.stat().st_size for file in metrics_file(path, settings).parent.iterdir())
