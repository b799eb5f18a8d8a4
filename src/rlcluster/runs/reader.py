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

from rlcluster.plan import Plan
from rlcluster.runs.config import read_run_settings
from rlcluster.runs.evaluations import Evaluation, clips_of, read_evaluation
from rlcluster.runs.files import SUMMARY_FILE, read_json
from rlcluster.runs.machines import machine_warnings, read_machines
from rlcluster.runs.metrics import Column, Metrics, find_metrics, metrics_warnings, number, read_metrics_file
from rlcluster.runs.plan_file import read_plan
from rlcluster.runs.status import RunState, read_state
from rlcluster.runs.summary import Processes, make_summary, processes_without_plan, totals_of
from rlcluster.settings.games import game_name, procgen_game
from rlcluster.settings.schema import EnvSettings, Settings

NOT_THE_TASK = ("name", "num_envs", "seed")

STALE_EVALUATION = 0.95  # warn of an evaluation whose checkpoint is from before this share of the run


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
        changed = {key: value for key, value in env if key not in NOT_THE_TASK and value != getattr(default, key)}
        if procgen_game(env.name) is None:  # the other settings are the Procgen engine's
            changed = {key: changed[key] for key in ("frame_stack", "kwargs", "wrappers") if key in changed}
        return self.game + (f" ({', '.join(f'{key}={value}' for key, value in changed.items())})" if changed else "")

    @property
    def is_finished(self) -> bool:
        """True too of a run that does not say how it ended."""
        return self.state is None or self.state.state == "finished"

    @property
    def failure(self) -> str | None:
        """Why the run failed; None if it did not."""
        if self.state is None or self.state.state != "failed":
            return None
        return f"after {int(self.metrics['update'][-1])} updates: {self.state.reason}"

    @property
    def cores(self) -> int:
        """Cores that the run has kept busy, in its last part."""
        return int(self.summary["num_cores"])

    @property
    def core_hours(self) -> Column:
        """[K] of each update."""
        return self.metrics["elapsed_seconds"] * self.cores / 3600


def read_run(path: Path) -> RecordedRun:
    """Raises a UserError, in one line, if `path` is not a run or has logged nothing."""
    settings = read_run_settings(path)
    warnings: list[str] = []
    metrics = read_metrics_file(find_metrics(path, settings))
    state = read_state(path)
    machines = read_machines(path, warnings)
    plan, written = read_plan(path, warnings), read_json(path / SUMMARY_FILE, warnings) or {}
    is_of_the_end = number(written.get("total_updates")) >= metrics["update"][-1]  # else of an earlier part of the run
    summary = _summary(settings, plan, machines[-1] if machines else {}, metrics, written if is_of_the_end else {})
    warnings += [*_state_warnings(state, metrics), *metrics_warnings(metrics), *machine_warnings(machines)]
    evaluation = read_evaluation(path, settings.env.name, warnings)
    if evaluation is not None and evaluation.steps_global < STALE_EVALUATION * summary["total_timesteps"]:
        warnings.append(f"its evaluation is of a checkpoint at {evaluation.steps_global:,} steps")
    return RecordedRun(path, settings, state, machines, metrics, summary, evaluation, clips_of(path), warnings)


def _summary(
    settings: Settings, plan: Plan | None, machine: Mapping[str, Any], metrics: Metrics, written: Mapping[str, Any]
) -> dict[str, Any]:
    """From the log and the plan, and from what the run has written itself as far as that is plausible."""
    processes = processes_without_plan(settings, machine, written) if plan is None else Processes.of(plan)
    derived = make_summary(settings, processes, totals_of(metrics))
    return derived | {key: value for key, value in written.items() if _is_plausible(value, derived.get(key))}


def read_summary(path: Path) -> dict[str, Any]:
    """The summary as the run has written it at its end; empty if it has never come to one."""
    if not (path / SUMMARY_FILE).exists():
        return {}
    summary: dict[str, Any] = json.loads((path / SUMMARY_FILE).read_text())
    return summary


def _state_warnings(state: RunState | None, metrics: Metrics) -> list[str]:
    update = int(metrics["update"][-1])
    if state is None:
        return ["it does not say how it ended"]
    if state.state == "running":
        return [f"it is still running: the metrics are those of its first {update} updates"]
    if state.state == "preempted":
        return [f"it was stopped ({state.reason}) after {update} updates and has not been resumed"]
    return []


def _is_plausible(value: object, derived: object) -> bool:
    """A number where the metrics give one; any plain value elsewhere."""
    if isinstance(derived, int | float):
        return not math.isnan(number(value))
    return value is None or isinstance(value, str | int | float)
