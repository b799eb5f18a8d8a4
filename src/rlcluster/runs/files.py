"""The files of a run: their names, their places, and the folders they lie in.

RUN/config.yaml  plan.json  machine.json  run_state.json  benchmark_metrics.json  evaluation*.json  *.mp4
RUN/checkpoints/ppo_sequential_step_*.pt  ppo_sequential_final.pt       (or output.checkpoint_dir)
RUN/logs/PPO_Sequential/metrics.jsonl  events.out.tfevents.*            (or output.log_dir)

No other room knows these names: all reading and writing goes through functions of this one.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

from rlcluster.settings.games import procgen_game
from rlcluster.settings.schema import Settings
from rlcluster.system.errors import EXIT_STORAGE, UserError

RUNS_FOLDER = Path("runs")
CHECKPOINT_FOLDER, LOG_FOLDER = "checkpoints", "logs"

CONFIG_FILE = "config.yaml"
MACHINE_FILE = "machine.json"
PLAN_FILE = "plan.json"
STATE_FILE = "run_state.json"
SUMMARY_FILE = "benchmark_metrics.json"
METRICS_FILE = "metrics.jsonl"
EVALUATION_FILE, EVALUATION_FILES = "evaluation.json", "evaluation*.json"  # of `rlcluster evaluate --json RUN/...`
CLIP_FILE, CLIP_FILES = "play.mp4", "*.mp4"  # of `rlcluster evaluate --video RUN/...`


class RunFiles(NamedTuple):
    """The folders of one run."""

    path: Path
    checkpoints: Path
    logs: Path  # of its mode

    @classmethod
    def of(cls, settings: Settings) -> RunFiles:
        """Where a run with these settings is written."""
        path = Path(settings.output.output_dir or default_path(settings))
        return cls(path, checkpoint_folder(path, settings), metrics_file(path, settings).parent)


def default_path(settings: Settings) -> Path:
    """runs/ppo_sequential_coinrun_20260131-235959"""
    name = procgen_game(settings.env.name) or re.sub(r"\W+", "-", settings.env.name)
    return RUNS_FOLDER / f"{settings.run_name}_{name}_{time.strftime('%Y%m%d-%H%M%S')}"


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
    """What is there stays as it is: an output directory is new or empty."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"output.output_dir={path} exists; {remedy}")


def make_folders(path: Path, *folders: Path) -> None:
    """The folders of the output directory `path`."""
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"output.output_dir={path}: {error.strerror} ({error.filename})", EXIT_STORAGE) from None


def read_json(path: Path, warnings: list[str]) -> dict[str, Any] | None:
    """None where there is no such file, or no JSON object in it: then a warning is added."""
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)  # NaN is no value
    except (OSError, ValueError):
        data = None
    if isinstance(data, dict):
        return data
    warnings.append(f"its {path.name} is not readable and was skipped")
    return None
