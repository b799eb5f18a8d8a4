"""The machines of a run: the facts of the first one, and under `resumed_on` those of later ones that differ.

{"cpu_model": ..., "cores_allowed": ..., ..., "resumed_on": [{"from_update": 120, "cpu_model": ..., ...}]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlcluster.runs.files import MACHINE_FILE, read_json
from rlcluster.system.atomic_file import write_json

LATER, FROM_UPDATE = "resumed_on", "from_update"


def record_machine(run: Path, facts: Mapping[str, Any], update: int) -> None:
    """Records the machine that runs from `update` on (0: the run begins on it). Drops machines whose updates all came
    after the checkpoint.
    """
    kept = [machine for machine in read_machines(run, []) if machine.get(FROM_UPDATE, 0) < update]
    if not kept:
        kept = [facts]
    elif {**kept[-1], FROM_UPDATE: update} != {**facts, FROM_UPDATE: update}:
        kept.append({FROM_UPDATE: update, **facts})
    first, *later = kept
    write_json(run / MACHINE_FILE, {**first, LATER: later} if later else first)


def read_machines(run: Path, warnings: list[str]) -> list[Mapping[str, Any]]:
    """The first one first; none where nothing is recorded."""
    data = read_json(run / MACHINE_FILE, warnings)
    if not data:
        return []
    listed = data.pop(LATER, [])
    later = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return [data, *(machine for machine in later if isinstance(machine.get(FROM_UPDATE), int))]


def machine_warnings(machines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where a run was resumed on another processor or number of cores."""
    return [
        f"it was resumed on another machine at update {later[FROM_UPDATE]}, so its speeds are of two: "
        f"{before}, then {after}"
        for earlier, later in pairwise(machines)
        if (before := machine_text(earlier)) != (after := machine_text(later))
    ]


def machine_text(machine: Mapping[str, Any]) -> str:
    return f"{machine.get('cpu_model')}, {machine.get('cores_allowed')} cores allowed"
