"""What `rlcluster plan` had forecast for a run, and how it came out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlcluster.runs.files import PREDICTION_FILE, read_json
from rlcluster.system.atomic_file import write_json


def write_prediction(path: Path, prediction: dict[str, Any]) -> None:
    write_json(path / PREDICTION_FILE, prediction)


def read_prediction(path: Path) -> dict[str, Any] | None:
    return read_json(path / PREDICTION_FILE, [])
