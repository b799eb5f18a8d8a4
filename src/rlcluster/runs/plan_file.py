"""The plan of a run on disk: its processes, with the environments, threads and cores of each."""

from __future__ import annotations

from pathlib import Path

from rlcluster.plan import Plan
from rlcluster.runs.files import PLAN_FILE, read_json
from rlcluster.system.atomic_file import write_json


def write_plan(path: Path, plan: Plan) -> None:
    """Of the part of the run that begins or resumes now."""
    write_json(path / PLAN_FILE, plan.to_dict())


def read_plan(path: Path, warnings: list[str]) -> Plan | None:
    """None for a run of an earlier version, which has no plan, and, with a warning, for an unreadable file."""
    data = read_json(path / PLAN_FILE, warnings)
    if data is None:
        return None
    try:
        return Plan.from_dict(data)
    except (KeyError, TypeError, ValueError):
        warnings.append(f"its {PLAN_FILE} is not readable and was skipped")
        return None
