"""The summary of a run: what benchmark_metrics.json says, written at its end or derived from its log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rlcluster.plan import Plan
from rlcluster.runs.fields import WINDOW
from rlcluster.runs.metrics import Column, Metrics, number
from rlcluster.settings.schema import Settings

FINAL_FPS_UPDATES = 10  # the final fps is taken over the last updates of the run


class Totals(NamedTuple):
    """What a run has done so far."""

    steps: int
    updates: int
    episodes: int  # that finished
    seconds: float
    final_fps: float | None  # over the last FINAL_FPS_UPDATES
    initial_reward: float | None  # means over WINDOW episodes, or all if there are fewer: the first, last, best
    final_reward: float | None
    best_reward: float | None
    peak_memory_gb: float | None


class Processes(NamedTuple):
    """What has done it."""

    world_size: int  # ranks
    num_workers: int  # processes that act, over all ranks
    num_threads: int  # of a process that learns
    num_cores: int  # that they keep busy

    @classmethod
    def of(cls, plan: Plan) -> Processes:
        return cls(plan.world_size, plan.num_acting, plan.learner_threads, plan.num_cores)


class Measured(NamedTuple):
    """What only the run itself knows; a summary that is derived from the log is without it."""

    kernels: str  # the instruction set of our convolutions, or torch
    background_load: float | None  # on its cores, since the run was begun or resumed


def make_summary(
    settings: Settings, processes: Processes, totals: Totals, measured: Measured | None = None
) -> dict[str, Any]:
    average_fps = totals.steps / totals.seconds if totals.seconds > 0 else None
    return {
        "algorithm": settings.algorithm,
        "mode": settings.mode,
        "env": settings.env.name,
        "network": settings.policy.network,
        "num_envs": settings.env.num_envs,
        **processes._asdict(),
        "duration_seconds": totals.seconds,
        "total_timesteps": totals.steps,
        "total_updates": totals.updates,
        "total_episodes": totals.episodes,
        "average_fps": average_fps,
        "final_fps": totals.final_fps,
        "initial_reward": totals.initial_reward,
        "final_reward": totals.final_reward,
        "best_reward": totals.best_reward,
        "peak_memory_gb": totals.peak_memory_gb,
        "timesteps_per_hour": average_fps and average_fps * 3600,
        **(measured._asdict() if measured is not None else {}),
    }


def totals_of(metrics: Metrics) -> Totals:
    """From the log alone: of a run that is running or was killed."""
    steps, recent = metrics["steps_global"], metrics["episode_reward_recent"]
    is_full = np.cumsum(metrics["episode_count"]) >= WINDOW
    is_full[-1] = True  # with fewer episodes, what there is
    steps_before = steps[-FINAL_FPS_UPDATES - 1] if len(metrics) > FINAL_FPS_UPDATES else 0.0
    final_seconds = float(np.nansum(metrics["t_iter"][-FINAL_FPS_UPDATES:]))
    return Totals(
        steps=int(steps[-1]),
        updates=int(metrics["update"][-1]),
        episodes=int(np.nansum(metrics["episode_count"])),
        seconds=float(metrics["elapsed_seconds"][-1]),
        final_fps=float(steps[-1] - steps_before) / final_seconds if final_seconds > 0 else None,
        initial_reward=_first_known(recent[is_full]),
        final_reward=_first_known(recent[::-1]),
        best_reward=_first_known(np.sort(recent[is_full & ~np.isnan(recent)])[::-1]),
        peak_memory_gb=_first_known(np.sort(metrics["peak_memory_gb"])[::-1]),
    )


def processes_without_plan(settings: Settings, machine: Mapping[str, Any], written: Mapping[str, Any]) -> Processes:
    """Of a run that an earlier version made: from the summary that it wrote, as far as there is one."""
    world_size = _count(written, "world_size") or settings.given_ranks or 1
    num_workers = _count(written, "num_workers") or settings.given_processes or 1
    given = _count(written, "num_threads") or settings.hardware.num_threads
    threads, allowed = given or _count(machine, "num_threads") or 1, _count(machine, "cores_allowed")
    helpers = settings.traits.helpers
    cores = (num_workers if helpers == "workers" else world_size) * threads
    if helpers == "actors" and settings.mode != "sequential":
        cores += num_workers
    if settings.mode != "distributed" and allowed is not None:
        cores = min(cores, allowed)
    return Processes(world_size, num_workers, threads, cores)


def _count(data: Mapping[str, Any], name: str) -> int | None:
    """None if it is not a number of at least 1."""
    value = number(data.get(name))
    return int(value) if value >= 1 else None


def _first_known(values: Column) -> float | None:
    numbers = values[~np.isnan(values)]
    return float(numbers[0]) if len(numbers) else None
