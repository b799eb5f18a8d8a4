"""The profile of a run on disk: its page, its figures, and a trace for chrome://tracing or ui.perfetto.dev."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlcluster.runs.files import FLAME_FILE, PROFILE_FILE, PROFILE_PAGE, TRACE_FILE, read_json
from rlcluster.system.atomic_file import write_atomically, write_json


def write_profile(path: Path, page: str, figures: dict[str, Any], trace: dict[str, Any]) -> None:
    write_atomically(path / TRACE_FILE, json.dumps(trace, allow_nan=False, separators=(",", ":")).encode())
    write_json(path / PROFILE_FILE, figures)
    write_atomically(path / PROFILE_PAGE, page.encode())


def write_flame(path: Path, graph: str) -> Path:
    """The flame graph; returns its file."""
    write_atomically(path / FLAME_FILE, graph.encode())
    return path / FLAME_FILE


def profile_page(path: Path) -> Path:
    return path / PROFILE_PAGE


def read_profile(path: Path) -> dict[str, Any] | None:
    """The figures; None if the run has no profile."""
    return read_json(path / PROFILE_FILE, [])
