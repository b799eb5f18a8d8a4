"""The files of a run: their names, their places, and the folders they lie in.

RUN/config.yaml  plan.json  machine.json  run_state.json  benchmark_metrics.json  evaluation*.json  *.mp4
RUN/profile.html  profile.json  trace.json  flame.svg  prediction.json  (with --profile; after `rlcluster plan`)
RUN/checkpoints/ppo_sequential_step_*.pt  *_final.pt  *_best.pt         (or output.checkpoint_dir)
RUN/logs/PPO_Sequential/metrics.jsonl  evaluations.jsonl  loggers.json (or output.log_dir)
RUN/events.out.tfevents.*  evaluation/events.out.tfevents.*            (or output.log_dir)
RUN/jobs/*.log  ID/job.sh  ID/job.json  ID/history.txt  ID/rank-0000.log        of `rlcluster submit`; also of a suite

No other room knows these names: all reading and writing goes through functions of this one.
"""

from __future__ import annotations

import json
import math
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

from rlcluster.settings.games import procgen_game
from rlcluster.settings.schema import Settings
from rlcluster.system.atomic_file import StorageError
from rlcluster.system.errors import UserError

RUNS_FOLDER = Path("runs")
MOST_IN_A_SECOND = 1000  # runs that are named by the time
CHECKPOINT_FOLDER, LOG_FOLDER, JOB_FOLDER = "checkpoints", "logs", "jobs"

CONFIG_FILE = "config.yaml"
MACHINE_FILE = "machine.json"
PLAN_FILE = "plan.json"
STATE_FILE = "run_state.json"
SUMMARY_FILE = "benchmark_metrics.json"
PREDICTION_FILE = "prediction.json"  # of `rlcluster plan`, with the outcome
PROFILE_FILE, PROFILE_PAGE, TRACE_FILE = "profile.json", "profile.html", "trace.json"  # of a profiled run
FLAME_FILE = "flame.svg"  # of `rlcluster profile --flame`
METRICS_FILE = "metrics.jsonl"
INTERIM_FILE = "evaluations.jsonl"  # evaluations during training
LOGGERS_FILE = "loggers.json"  # what Weights & Biases and MLflow call the run
EVENT_FILE, EVENT_FILES = "events.out.tfevents.{}", "events.out.tfevents.*"
EVALUATION_EVENTS_FOLDER = "evaluation"
EVALUATION_FILE, EVALUATION_FILES = "evaluation.json", "evaluation*.json"  # of `rlcluster evaluate --json RUN/...`
JOB_SCRIPT_FILE, JOB_RECORD_FILE, JOB_HISTORY_FILE = "job.sh", "job.json", "history.txt"  # the last: by the script
CLIP_FILE, CLIP_FILES = "play.mp4", "*.mp4"  # of `rlcluster evaluate --video RUN/...`


class RunFiles(NamedTuple):
    """The folders of one run."""

    path: Path
    checkpoints: Path
    logs: Path  # of its mode
    events: Path  # TensorBoard names a run by the folder of its events

    @classmethod
    def of(cls, settings: Settings) -> RunFiles:
        """Where a run with these settings is written."""
        path = Path(settings.output.output_dir or default_path(settings))
        events = Path(settings.output.log_dir or path)
        return cls(path, checkpoint_folder(path, settings), metrics_file(path, settings).parent, events)

    def make(self, settings: Settings, *folders: Path) -> None:
        """Makes some of the folders; an error names the setting that decides where the folder is."""
        given = {self.checkpoints: "checkpoint_dir", self.logs: "log_dir"}
        for folder in folders:
            name = given.get(folder, "output_dir")
            value = getattr(settings.output, name)
            make_folder(f"output.output_dir={self.path}" if value is None else f"output.{name}={value}", folder)


def default_path(settings: Settings) -> Path:
    """runs/ppo_sequential_coinrun_20260131-235959"""
    name = procgen_game(settings.env.name) or re.sub(r"\W+", "-", settings.env.name)
    return new_path(f"{settings.run_name}_{name}")


def new_path(name: str) -> Path:
    """runs/NAME_20260131-235959, or with -2, -3, ... where another has been made in the same second."""
    first = RUNS_FOLDER / f"{name}_{time.strftime('%Y%m%d-%H%M%S')}"
    paths = (first, *(first.with_name(f"{first.name}-{number}") for number in range(2, MOST_IN_A_SECOND)))
    return next((path for path in paths if not path.exists()), first)


def checkpoint_folder(path: Path, settings: Settings) -> Path:
    return Path(settings.output.checkpoint_dir or path / CHECKPOINT_FOLDER)


def metrics_file(path: Path, settings: Settings) -> Path:
    return Path(settings.output.log_dir or path / LOG_FOLDER) / settings.log_name / METRICS_FILE


def runs_below(folder: Path = RUNS_FOLDER) -> list[Path]:
    """The run directories of a folder, the one that was begun or resumed last first."""
    return sorted(
        (file.parent for file in folder.glob(f"*/{CONFIG_FILE}")),
        key=lambda run: (run / CONFIG_FILE).stat().st_mtime,
        reverse=True,
    )


def refuse_occupied(path: Path, remedy: str) -> None:
    """What is there stays as it is: an output directory is new or empty, except for what its submission has left."""
    left = (JOB_FOLDER, PREDICTION_FILE)
    try:
        is_occupied = path.exists() and (not path.is_dir() or any(entry.name not in left for entry in path.iterdir()))
    except OSError as error:  # a folder above it, or it itself, may not be looked into
        raise StorageError(f"output.output_dir={path}", error) from None
    if is_occupied:
        raise UserError(f"output.output_dir={path} exists; {remedy}")


def make_folders(path: Path, *folders: Path) -> None:
    """The folders of the output directory `path`."""
    for folder in folders:
        make_folder(f"output.output_dir={path}", folder)


def make_folder(setting: str, folder: Path) -> None:
    """`setting` is what errors blame: the one that names the folder, and its value."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(setting if str(folder) in setting else f"{setting}: {folder}", error) from None


def read_json(path: Path, warnings: list[str]) -> dict[str, Any] | None:
    """None where there is no such file, or no JSON object in it: then a warning is added. Numbers in it are finite: NaN
    is no value, nor is 1e999.
    """
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None, parse_float=_finite)
    except (OSError, ValueError, RecursionError):
        data = None
    if isinstance(data, dict):
        return data
    warnings.append(f"its {path.name} is not readable and was skipped")
    return None


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None
