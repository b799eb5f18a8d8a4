"""A run on disk as its readers see it: settings, state, machine, metrics, evaluations. Nothing here changes a file.

Whatever a run may look like while it runs or after it was killed is read as far as it goes; `remarks` say what a reader
has to know of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlcluster.runs.status import RUNS_FOLDER, RunState, read_state
from rlcluster.settings.games import game_name, procgen_game
from rlcluster.settings.loading import load_settings
from rlcluster.settings.schema import CONFIG_FILE, EnvSettings, Settings
from rlcluster.system.console import counted
from rlcluster.system.errors import UserError

MACHINE_FILE = "machine.json"
SUMMARY_FILE = "benchmark_metrics.json"
METRICS_FILE = "metrics.jsonl"
EVALUATION_FILES = "evaluation*.json"  # what `rlcluster evaluate --json RUN/evaluation.json` leaves
CLIP_FILES = "*.mp4"  # what `rlcluster evaluate --video RUN/play.mp4` leaves

NOT_THE_TASK = ("name", "num_envs", "seed")

WINDOW = 100  # episodes in a moving average: `episode_reward_recent`, and the rewards of the summary
FINAL_FPS_UPDATES = 10  # the final fps is taken over the last updates of the run
STALE_EVALUATION = 0.95  # an evaluation of a checkpoint before this share of the run is told
COLUMNS = (
    *("update", "steps_global", "world_size", "elapsed_seconds"),
    *("fps", "t_iter", "t_rollout", "t_learn", "t_sync", "learner_idle"),
    *("policy_loss", "value_loss", "entropy", "memory_gb", "peak_memory_gb"),
    *("episode_count", "episode_reward_mean", "episode_reward_std", "episode_length_mean", "episode_reward_recent"),
)

Column = NDArray[np.float64]


@dataclass(frozen=True)
class Metrics:
    """A log as columns [K], a line for each update; NaN where an update has no value."""

    columns: Mapping[str, Column]
    num_broken: int  # lines that could not be read

    def __len__(self) -> int:
        return len(self.columns["update"])

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]


class Evaluation(NamedTuple):
    """The latest evaluation of a run. `results` has an entry for "train" and "test" levels, as far as played."""

    steps_global: int
    deterministic: bool
    results: Mapping[str, Mapping[str, Any]]

    @property
    def gap(self) -> float | None:
        """The generalisation gap: training levels less unseen ones."""
        if "train" not in self.results or "test" not in self.results:
            return None
        return float(self.results["train"]["reward_mean"] - self.results["test"]["reward_mean"])


class RecordedRun(NamedTuple):
    """What is known of one run."""

    path: Path
    settings: Settings
    state: RunState | None
    machine: Mapping[str, Any]
    metrics: Metrics
    summary: Mapping[str, Any]  # as in benchmark_metrics.json; from the metrics where that is missing or older
    evaluation: Evaluation | None
    clips: Sequence[Path]
    remarks: Sequence[str]

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
        """Cores that the run has kept: those of its learners, and of its actors where there is room for them."""
        return cores_used(self.summary, self.machine.get("cores_allowed"))

    @property
    def core_hours(self) -> Column:
        """[K] of each update."""
        return self.metrics["elapsed_seconds"] * self.cores / 3600


def read_run(path: Path) -> RecordedRun:
    """Raises a UserError, in one line, for what is no run or has nothing to show."""
    settings = read_run_settings(path)
    remarks: list[str] = []
    metrics = read_metrics_file(_metrics_file(path, settings))
    state = read_state(path)
    machine = _read_json(path / MACHINE_FILE, remarks) or {}
    summary = summary_of(metrics, settings, machine)
    written = _read_json(path / SUMMARY_FILE, remarks) or {}
    if _number(written.get("total_updates")) >= metrics["update"][-1]:  # else it is of an earlier part of the run
        summary |= {key: value for key, value in written.items() if _is_plausible(value, summary.get(key))}
    remarks += [*_state_remarks(state, metrics), *_metrics_remarks(metrics)]
    evaluation = _read_evaluation(path, settings.env.name, remarks)
    if evaluation is not None and evaluation.steps_global < STALE_EVALUATION * summary["total_timesteps"]:
        remarks.append(f"its evaluation is of a checkpoint at {evaluation.steps_global:,} steps")
    return RecordedRun(
        path, settings, state, machine, metrics, summary, evaluation, sorted(path.glob(CLIP_FILES)), remarks
    )


def read_metrics_file(path: Path) -> Metrics:
    """The columns of one metrics.jsonl. A run that was killed may have left a broken line."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; the run has logged nothing yet, or it is not a run")
    records, num_broken = [], 0
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    for line in text.splitlines():
        record = _record(line)
        if record is None:
            num_broken += 1
        else:
            records.append(record)
    if not records:
        raise UserError(f"{path}: not one update is logged in it; let the run finish its first update")
    columns = {name: np.array([_number(record.get(name)) for record in records]) for name in COLUMNS}
    columns["update"] = np.where(np.isnan(columns["update"]), np.arange(1, len(records) + 1), columns["update"])
    columns["episode_count"] = np.nan_to_num(columns["episode_count"])
    if np.isnan(columns["elapsed_seconds"]).any():
        columns["elapsed_seconds"] = np.cumsum(np.nan_to_num(columns["t_iter"]))
    return Metrics(columns, num_broken)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics file as they are, until the first broken line."""
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def summary_of(metrics: Metrics, settings: Settings, machine: Mapping[str, Any]) -> dict[str, Any]:
    """What benchmark_metrics.json would say, from the metrics alone: of a run that goes on or was killed."""
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
        "initial_reward": _first_number(recent[is_full]),
        "final_reward": _first_number(recent[::-1]),
        "best_reward": _first_number(np.sort(recent[is_full & ~np.isnan(recent)])[::-1]),
        "peak_memory_gb": _first_number(np.sort(metrics["peak_memory_gb"])[::-1]),
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


def runs_below(folder: Path = RUNS_FOLDER) -> list[Path]:
    """The run directories of a folder, the one that was begun or resumed last first."""
    return sorted(
        (file.parent for file in folder.glob(f"*/{CONFIG_FILE}")),
        key=lambda run: (run / CONFIG_FILE).stat().st_mtime,
        reverse=True,
    )


def read_run_settings(path: Path) -> Settings:
    """The settings of a run; raises a UserError, in one line, for what is no run."""
    if not path.exists():
        raise UserError(f"{path}: there is no such run directory")
    if not (path / CONFIG_FILE).is_file():
        raise UserError(f"{path}: is not a run directory (no {CONFIG_FILE} in it)")
    try:
        return load_settings(file=path / CONFIG_FILE)
    except UserError as error:
        raise UserError(f"{path}: is not a run of this version: {' '.join(str(error).split())}") from None


def _metrics_file(path: Path, settings: Settings) -> Path:
    file = Path(settings.output.log_dir or path / "logs") / settings.log_name / METRICS_FILE
    return file if file.exists() else next(iter(sorted(path.glob(f"logs/*/{METRICS_FILE}"))), file)


def _record(line: str) -> dict[str, Any] | None:
    """One update, if the line tells of one: how many steps, and when."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or math.isnan(_number(record.get("steps_global"))):
        return None
    has_time = any(not math.isnan(_number(record.get(name))) for name in ("elapsed_seconds", "t_iter"))
    return record if has_time else None


def _number(value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else math.nan  # type: ignore[arg-type]


def _first_number(values: Column) -> float | None:
    numbers = values[~np.isnan(values)]
    return float(numbers[0]) if len(numbers) else None


def _state_remarks(state: RunState | None, metrics: Metrics) -> list[str]:
    update = int(metrics["update"][-1])
    if state is None:
        return ["it does not say how it ended"]
    if state.state == "running":
        return [f"it is still running: the figures are those of its first {update} updates"]
    if state.state == "preempted":
        return [f"it was stopped ({state.reason}) after {update} updates and has not been resumed"]
    if state.state == "failed":
        return [f"it failed after {update} updates: {state.reason}"]
    return []


def _metrics_remarks(metrics: Metrics) -> list[str]:
    remarks = []
    if metrics.num_broken:
        remarks.append(f"not readable, and passed over: {counted(metrics.num_broken, 'line')} of its metrics")
    if np.isnan(metrics["episode_reward_mean"][metrics["episode_count"] > 0]).any():
        remarks.append("some of its rewards are not numbers; those updates count for nothing in the curves")
    sizes = np.unique(metrics["world_size"][~np.isnan(metrics["world_size"])])
    if len(sizes) > 1:
        listed = " and ".join(f"{size:.0f}" for size in sizes)
        remarks.append(f"it has run with {listed} ranks in turn: its cores are those of its last part")
    return remarks


def _is_plausible(value: object, derived: object) -> bool:
    """A number where the metrics give one; any plain value elsewhere."""
    if isinstance(derived, int | float):
        return not math.isnan(_number(value))
    return value is None or isinstance(value, str | int | float)


def _read_json(path: Path, remarks: list[str]) -> dict[str, Any] | None:
    """None where there is no such file, or nothing sound in it: then a remark says so."""
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)  # NaN is no value
    except (OSError, ValueError):
        data = None
    if isinstance(data, dict):
        return data
    remarks.append(f"its {path.name} is not readable and was passed over")
    return None


def _read_evaluation(path: Path, env_name: str, remarks: list[str]) -> Evaluation | None:
    """Of the furthest checkpoint; of those, with sampled actions. Levels from several files come together, the newest
    file of each; evaluations in other environments are none of this run's scores.
    """
    found: dict[tuple[int, bool], Evaluation] = {}
    for file in sorted(path.glob(EVALUATION_FILES), key=lambda file: file.stat().st_mtime):
        data = _read_json(file, remarks)
        if data is None or game_name(str(data.get("env", env_name))) != game_name(env_name):
            continue
        if not _is_evaluation(data):
            remarks.append(f"its {file.name} is no evaluation and was passed over")
            continue
        key = int(data["steps_global"]), bool(data["deterministic"])
        before = found[key].results if key in found else {}
        found[key] = Evaluation(*key, {**before, **data["results"]})
    return max(found.values(), key=lambda one: (one.steps_global, not one.deterministic), default=None)


def _is_evaluation(data: Mapping[str, Any]) -> bool:
    results = data.get("results")
    if not isinstance(results, dict) or not results or math.isnan(_number(data.get("steps_global"))):
        return False
    needed = ("reward_mean", "episodes")
    sound = [
        isinstance(one, dict) and not any(math.isnan(_number(one.get(key))) for key in needed)
        for one in results.values()
    ]
    return "deterministic" in data and all(sound)
