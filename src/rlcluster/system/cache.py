"""The user's cache folder: what is worth remembering between commands, and can be deleted at any time."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rlcluster.system.atomic_file import write_json
from rlcluster.system.console import warn
from rlcluster.system.errors import UserError


def cache_file(name: str) -> Path:
    """$XDG_CACHE_HOME/rlcluster/NAME, by default in ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "rlcluster" / name


def read_cache(name: str) -> dict[str, Any]:
    """Empty where there is none, or none that can be read."""
    try:
        data = json.loads(cache_file(name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def write_cache(name: str, data: dict[str, Any]) -> None:
    """A folder that cannot be written costs the memory, not the command."""
    path = cache_file(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, data)
    except (OSError, UserError) as error:
        warn(f"{path} cannot be written, so nothing is remembered: {error}")
