"""A run on disk as its readers see it: settings, status, machine, metrics, evaluations. Nothing here changes a file.

Whatever a run may look like while it runs or after it was killed is read as far as possible; `warnings` say what a
reader has to know of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlcluster.runs.config import read_run_settings
from rlcluster.runs.evaluations import Evaluation, clips_of, read_evaluation
from rlcluster.runs.files import SUMMARY_FILE, read_json
from rlcluster.runs.machines import machine_warnings, read_machines
from rlcluster.runs.metrics import Column, Metrics, find_metrics, metrics_warnings, number, read_metrics_file
from rlcluster.runs.status import RunState, read_state
from rlcluster.settings.games import game_name, procgen_game
from rlcluster.settings.schema import EnvSettings, Settings

NOT_THE_TASK = ("name", "num_envs", "seed")

WINDOW = 100  # episodes in a moving average: `episode_reward_recent`, and the rewards of the summary
FINAL_FPS_UPDATES = 10  # the final fps is taken over the last updates of the run
STALE_EVALUATION = 0.95  # an evaluation of a checkpoint before this share of the run is told


class RecordedRun(NamedTuple):
    """What is known of one run."""

    path: Path
    settings: Settings
    state: RunState | None
    machines: Sequence[Mapping[str, Any]]  # the first one, and those it was resumed on if they differ
    metrics: Metrics
    summary: Mapping[str, Any]  # as in benchmark_metrics.json; from the metrics where that is missing or older
    evaluation: Evaluation | None
    clips: Sequence[Path]
    warnings: Sequence[str]

    @property
    def machine(self) -> Mapping[str, Any]:
        """The first one; empty where none is recorded."""
        return self.machines[0] if self.machines else {}

    @property
    def game(self) -> str:
        return game_name(self.settings.env.name)

    @property
    def task(self) -> str:
        """The game, and in what its environment differs from the default: runs of one task can be compared."""
        env, default = self.settings.env, EnvSettings(name=self.settings.env.name)
        if procgen_game(env.name) is None:
            return self.game
        changed = {key: value for key, value in env if key not in NOT_THE_TASK and value != getattr(default, key)}
        return self.game + (f" ({', '.join(f'{key}={value}' for key, value in changed.items())})" if changed else "")

    @property
    def is_finished(self) -> bool:
        """True too of a run that does not say how it ended."""
        return self.state is None or self.state.state == "finished"

    @property
    def cores(self) -> int:
        """Cores that the run has kept, in its last part: those of its learners, and of its actors where there is room
        for them.
        """
        return cores_used(self.summary, self.machines[-1].get("cores_allowed") if self.machines else None)

    @property
    def core_hours(self) -> Column:
        """[K] of each update."""
        return self.metrics["elapsed_seconds"] * self.cores / 3600


def read_run(path: Path) -> RecordedRun:
    """Raises a UserError, in one line, for what is no run or has nothing to show."""
    settings = read_run_settings(path)
    warnings: list[str] = []
    metrics = read_metrics_file(find_metrics(path, settings))
    state = read_state(path)
    machines = read_machines(path, warnings)
    summary = summary_of(metrics, settings, machines[-1] if machines else {})
    written = read_json(path / SUMMARY_FILE, warnings) or {}
    if number(written.get("total_updates")) >= metrics["update"][-1]:  # else it is of an earlier part of the run
        summary |= {key: value for key, value in written.items() if _is_plausible(value, summary.get(key))}
    warnings += [*_state_warnings(state, metrics), *metrics_warnings(metrics), *machine_warnings(machines)]
    evaluation = read_evaluation(path, settings.env.name, warnings)
    if evaluation is not None and evaluation.steps_global < STALE_EVALUATION * summary["total_timesteps"]:
        warnings.append(f"its evaluation is of a checkpoint at {evaluation.steps_global:,} steps")
    return RecordedRun(path, settings, state, machines, metrics, summary, evaluation, clips_of(path), warnings)


def read_summary(path: Path) -> dict[str, Any]:
    """The summary as the run has written it at its end."""
    summary: dict[str, Any] = json.loads((path / SUMMARY_FILE).read_text())
    return summary


def summary_of(metrics: Metrics, settings: Settings, machine: Mapping[str, Any]) -> dict[str, Any]:
    """What benchmark_metrics.json would say, from the metrics alone: of a run that is running or was killed."""
    steps, seconds = metrics["steps_global"], metrics["elapsed_seconds"]
    recent = metrics["episode_reward_recent"]
    is_full = np.cumsum(metrics["episode_count"]) >= WINDOW
    is_full[-1] = True  # with fewer episodes, what there is
    steps_before = steps[-FINAL_FPS_UPDATES - 1] if len(metrics) > FINAL_FPS_UPDATES else 0.0
    final_seconds = float(np.nansum(metrics["t_iter"][-FINAL_FPS_UPDATES:]))
    average_fps = float(steps[-1] / seconds[-1]) if seconds[-1] > 0 else None
    return {
        "algorithm": settings.algorithm,
        "mode": settings.mode,
        "env": settings.env.name,
        "network": settings.policy.network,
        "num_envs": settings.env.num_envs,
        "world_size": settings.given_ranks or 1,
        "num_workers": settings.given_processes or 1,
        "num_threads": settings.hardware.num_threads or machine.get("num_threads") or 1,
        "duration_seconds": float(seconds[-1]),
        "total_timesteps": int(steps[-1]),
        "total_updates": int(metrics["update"][-1]),
        "average_fps": average_fps,
        "final_fps": float(steps[-1] - steps_before) / final_seconds if final_seconds > 0 else None,
        "initial_reward": _first_known(recent[is_full]),
        "final_reward": _first_known(recent[::-1]),
        "best_reward": _first_known(np.sort(recent[is_full & ~np.isnan(recent)])[::-1]),
        "peak_memory_gb": _first_known(np.sort(metrics["peak_memory_gb"])[::-1]),
        "timesteps_per_hour": average_fps and average_fps * 3600,
    }


def cores_used(summary: Mapping[str, Any], cores_allowed: int | None) -> int:
    """Learners times their threads, and a core for each actor of IMPALA; on one machine no more than it gave."""
    learners = summary["num_workers"] if summary["algorithm"] == "a3c" else summary["world_size"]
    cores = learners * summary["num_threads"]
    if summary["algorithm"] == "impala" and summary["mode"] != "sequential":
        cores += summary["num_workers"]
    if summary["mode"] != "distributed" and cores_allowed:
        cores = min(cores, cores_allowed)
    return int(cores)


def _first_known(values: Column) -> float | None:
    numbers = values[~np.isnan(values)]
    return float(numbers[0]) if len(numbers) else None


def _state_warnings(state: RunState | None, metrics: Metrics) -> list[str]:
    update = int(metrics["update"][-1])
    if state is None:
        return ["it does not say how it ended"]
    if state.state == "running":
        return [f"it is still running: the metrics are those of its first {update} updates"]
    if state.state == "preempted":
        return [f"it was stopped ({state.reason}) after {update} updates and has not been resumed"]
    if state.state == "failed":
        return [f"it failed after {update} updates: {state.reason}"]
    return []


def _is_plausible(value: object, derived: object) -> bool:
    """A number where the metrics give one; any plain value elsewhere."""
    if isinstance(derived, int | float):
        return not math.isnan(number(value))
    return value is None or isinstance(value, str | int | float)
