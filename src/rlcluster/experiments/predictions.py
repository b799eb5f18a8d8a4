"""Forecasts of `rlcluster plan` are remembered; a run that was forecast records how it came out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rlcluster.experiments.forecast import Forecast
from rlcluster.experiments.speed import digest, helpers_of, work_of
from rlcluster.runs.config import read_run_settings
from rlcluster.runs.prediction_file import read_prediction, write_prediction
from rlcluster.settings.schema import Settings
from rlcluster.system import machine
from rlcluster.system.cache import read_cache, write_cache
from rlcluster.system.console import counted

CACHE_NAME = "predictions.json"
MAX_KEPT = 200


class Processes(NamedTuple):
    """What a launcher or the machine may decide."""

    ranks: int
    nodes: int
    cores: int  # that all ranks together keep busy


def remember(settings: Settings, network: str, forecasts: list[Forecast]) -> None:
    """`network` is the policy's, as the run has chosen it. A job is submitted before it is chosen, so the forecast is
    found under the given settings too.
    """
    kept = read_cache(CACHE_NAME)
    chosen = settings.model_copy(update={"policy": settings.policy.model_copy(update={"network": network})})
    for one in forecasts:
        processes = Processes(one.ranks, one.nodes, one.cores)
        run = identity(chosen, processes)
        made = {"made": time.strftime("%Y-%m-%d %H:%M"), "run": run, **one._asdict()}
        kept |= {_key(identity(settings, processes)): made, _key(run): made}
    write_cache(CACHE_NAME, dict(list(kept.items())[-MAX_KEPT:]))


def record_forecast(path: Path, settings: Settings, processes: Processes) -> None:
    """At a submission: writes the forecast of such a run, if one was made on this machine, into its directory. The
    machine that trains may be of another kind, and not have the user's cache.
    """
    made = _find(identity(settings, processes))
    if made is not None:
        write_prediction(path, made)


def record_outcome(path: Path, summary: Mapping[str, Any], nodes: int) -> None:
    """Writes prediction and outcome into the run directory, if a forecast of such a run was made: here, or where its
    job was submitted.
    """
    settings, rate = read_run_settings(path), summary.get("average_fps")
    processes = Processes(int(summary.get("world_size") or 1), nodes, int(summary.get("num_cores") or 1))
    made = _submitted(path, settings, processes) or _find(identity(settings, processes))
    if made is None or not rate:
        return
    outcome = {**made, "outcome_steps_per_second": rate, "outcome_memory_gb": summary.get("peak_memory_gb")}
    write_prediction(path, outcome)
    kept = read_cache(CACHE_NAME)
    kept[f"{made['run']} of {path.resolve()}"] = outcome  # apart from the forecast: a new one does not replace it
    write_cache(CACHE_NAME, dict(list(kept.items())[-MAX_KEPT:]))


def _submitted(path: Path, settings: Settings, processes: Processes) -> dict[str, Any] | None:
    """The forecast in the run directory. Its cores are those that the job asked for: a scheduler that counts hardware
    threads gives half as many.
    """
    made = read_prediction(path)
    if made is None or made.get("run") != identity(settings, processes._replace(cores=int(made.get("cores", 0)))):
        return None
    return made


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


def identity(settings: Settings, processes: Processes) -> str:
    """Of runs whose speed is the same on the same machine: work, and how it is divided."""
    return digest({**work_of(settings), "helpers": helpers_of(settings), **processes._asdict()})


def _find(run: str) -> dict[str, Any] | None:
    made = read_cache(CACHE_NAME).get(_key(run))
    return made if isinstance(made, dict) else None


def _key(run: str) -> str:
    """Of a forecast that was made on a machine of this kind."""
    return f"{run} on {machine.cpu_model()}"
