"""What `rlcluster tune` has found on this machine is remembered; `train` mentions it where it is faster."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rlcluster
from rlcluster import plan
from rlcluster.experiments.candidates import name_of
from rlcluster.settings.schema import Settings
from rlcluster.system import cores, machine
from rlcluster.system.cache import read_cache, write_cache

CACHE_NAME = "tuned.json"
TIE = 0.98  # of the best speed: as fast


def remember(settings: Settings, file: Path, best: str, rates: Mapping[str, float]) -> None:
    """`rates` are the steps per second of all candidates, by name."""
    entry = {
        "made": time.strftime("%Y-%m-%d"),
        "file": str(file.resolve()),
        "name": best,
        "steps_per_second": rates[best],
        "rates": dict(rates),
    }
    write_cache(CACHE_NAME, {**read_cache(CACHE_NAME), _identity(settings): entry})


def hint(settings: Settings) -> str | None:
    """One line if a tuned setting of such runs on this machine is faster than the given one."""
    known = read_cache(CACHE_NAME).get(_identity(settings))
    chosen = plan.forecast(settings, cores.observe()) if isinstance(known, dict) else None
    if not isinstance(known, dict) or chosen is None:
        return None
    given = known.get("rates", {}).get(name_of(chosen))
    if not given or given >= TIE * known["steps_per_second"]:
        return None
    ratio = known["steps_per_second"] / given
    what = f"{known['name']} was {ratio:.2f} times as fast"
    return f"tuned on this machine ({known['made']}): {what}; --config {known['file']}"


def _identity(settings: Settings) -> str:
    """Machine, network, algorithm, version, and what an update computes."""
    parts: list[Any] = [machine.cpu_model(), cores.observe().physical, rlcluster.__version__, settings.algorithm]
    parts += [settings.policy.network, settings.env.name, settings.env.num_envs, settings.training.n_steps]
    parts += [settings.batch_size, settings.n_epochs]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
