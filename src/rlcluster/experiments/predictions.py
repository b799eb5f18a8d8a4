"""Forecasts of `rlcluster plan` are remembered; a run that was forecast records how it came out."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from rlcluster.experiments.forecast import Forecast
from rlcluster.runs.config import read_run_settings
from rlcluster.runs.prediction_file import write_prediction
from rlcluster.settings.schema import Settings
from rlcluster.system import machine
from rlcluster.system.cache import read_cache, write_cache
from rlcluster.system.console import counted

CACHE_NAME = "predictions.json"
MAX_KEPT = 200


def remember(settings: Settings, network: str, forecasts: list[Forecast]) -> None:
    """`network` is the policy's, as the run has chosen it."""
    kept = read_cache(CACHE_NAME)
    for one in forecasts:
        made = {"made": time.strftime("%Y-%m-%d %H:%M"), **one._asdict()}
        kept[identity(settings, network, one.ranks, one.nodes)] = made
    write_cache(CACHE_NAME, dict(list(kept.items())[-MAX_KEPT:]))


def record_outcome(path: Path, summary: Mapping[str, Any], nodes: int) -> None:
    """Writes prediction and outcome into the run directory, if a forecast of such a run was made."""
    settings, kept = read_run_settings(path), read_cache(CACHE_NAME)
    key = identity(settings, str(settings.policy.network), int(summary.get("world_size") or 1), nodes)
    rate, made = summary.get("average_fps"), kept.get(key)
    if not isinstance(made, dict) or not rate:
        return
    outcome = {**made, "outcome_steps_per_second": rate, "outcome_memory_gb": summary.get("peak_memory_gb")}
    write_prediction(path, outcome)
    kept[f"{key} of {path.resolve()}"] = outcome  # apart from the forecast: a new one does not replace it
    write_cache(CACHE_NAME, dict(list(kept.items())[-MAX_KEPT:]))


def track_record() -> str | None:
    """How good the last forecasts were; None if no run has followed one."""
    known = [one for one in read_cache(CACHE_NAME).values() if one.get("outcome_steps_per_second")]
    if not known:
        return None
    text = (
        f"{counted(len(known), 'earlier forecast')} had an outcome: steps/s were off by {_typical(known, _speed_error)}"
    )
    with_memory = [one for one in known if one.get("outcome_memory_gb")]
    return f"{text}, memory by {_typical(with_memory, _memory_error)} (median)" if with_memory else f"{text} (median)"


def _typical(known: list[dict[str, Any]], error: Callable[[dict[str, Any]], float]) -> str:
    return f"{median(abs(error(one)) for one in known):.0%}"


def _speed_error(one: dict[str, Any]) -> float:
    return float(one["steps_per_second"] / one["outcome_steps_per_second"] - 1)


def _memory_error(one: dict[str, Any]) -> float:
    """Of all nodes."""
    return float(one["memory_gb_per_node"] * one["nodes"] / one["outcome_memory_gb"] - 1)


def identity(settings: Settings, network: str, ranks: int, nodes: int) -> str:
    """Of runs whose speed is the same: machine, work and processes."""
    env, training = settings.env, settings.training
    parts: list[Any] = [machine.cpu_model(), settings.algorithm, network, settings.hardware.kernels, ranks, nodes]
    parts += [env.name, env.distribution_mode, env.num_envs, training.n_steps, settings.batch_size, settings.n_epochs]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
