"""What `rlcluster tune` has found on this machine is remembered; `train` mentions it where it is faster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import rlcluster
from rlcluster.experiments.candidates import name_of
from rlcluster.experiments.speed import digest, work_of
from rlcluster.plan import Plan
from rlcluster.settings.schema import Settings
from rlcluster.system import cores, machine
from rlcluster.system.cache import read_cache, write_cache

CACHE_NAME = "tuned.json"
TIE = 0.98  # of the best speed: as fast
TUNED = ("hardware.num_threads", "hardware.chunk_size", "parallel.pin_workers")  # besides the processes


class Tried(NamedTuple):
    """A candidate."""

    name: str
    way: str  # that it uses the cores
    steps_per_second: float


def way_of(settings: Settings, plan: Plan) -> str:
    """How a run uses the cores: what `tune` decides, with defaults resolved."""
    parts = [name_of(plan), f"chunks {settings.hardware.chunk_size or 'default'}"]
    if plan.mode != "sequential":
        parts.append(f"pinned {settings.parallel.pin_workers}")
    return ", ".join(parts)


def remember(settings: Settings, file: Path, best: str, tried: Sequence[Tried]) -> None:
    """`settings` with the network that the runs have chosen; `best` is a name."""
    entry = {
        "made": time.strftime("%Y-%m-%d"),
        "file": str(file.resolve()),
        "name": best,
        "steps_per_second": next(one.steps_per_second for one in tried if one.name == best),
        "tried": [one._asdict() for one in tried],
    }
    write_cache(CACHE_NAME, {**read_cache(CACHE_NAME), _identity(settings): entry})


def hint(settings: Settings, plan: Plan) -> str | None:
    """One line if a tuned setting of such runs on this machine is faster than what this run does."""
    known = read_cache(CACHE_NAME).get(_identity(settings))
    if not isinstance(known, dict):
        return None
    way = way_of(settings, plan)
    given = next((one["steps_per_second"] for one in known.get("tried", []) if one["way"] == way), None)
    if not given or given >= TIE * known["steps_per_second"]:
        return None
    ratio = known["steps_per_second"] / given
    what = f"{known['name']} was {ratio:.2f} times as fast"
    return f"tuned on this machine ({known['made']}): {what}; --config {known['file']}"


def _identity(settings: Settings) -> str:
    """Machine, version, and what an update computes; checkpoints and loggers are none of it."""
    work = {k: v for k, v in work_of(settings).items() if k not in TUNED and not k.startswith("output.")}
    parts: dict[str, Any] = {"processor": machine.cpu_model(), "cores": cores.observe().physical}
    return digest({**work, **parts, "version": rlcluster.__version__})
