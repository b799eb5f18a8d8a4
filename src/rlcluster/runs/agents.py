"""Trained agents that come with the package, by name: `rlcluster evaluate ppo_fast_coinrun`. Each is a checkpoint with
the parameters alone, which can be evaluated and begun with, but not resumed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlcluster.runs.checkpoint import Checkpoint

FOLDER = Path(__file__).parents[1] / "agents"


def agent_names() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob("*.pt"))


def agent_file(path: Path) -> Path | None:
    """The agent of this name, if `path` is no more than a name."""
    return FOLDER / f"{path}.pt" if str(path) in agent_names() else None


def agent_content(checkpoint: Checkpoint) -> dict[str, Any]:
    """What an agent keeps of a checkpoint."""
    counters = {"updates": checkpoint.updates, "steps_global": checkpoint.steps_global}
    return {
        "settings": checkpoint.content["settings"],
        "learner": {"parameters": checkpoint.parameters(), **counters},
    }
