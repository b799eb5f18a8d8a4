"""How the cells of a suite ended (OUTPUT/cells/NAME.json, OUTPUT/suite.json), and how long the others will take."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rlcluster.experiments.suite_plan import Cell, Suite
from rlcluster.runs.status import written_at
from rlcluster.system.atomic_file import write_json
from rlcluster.system.console import counted

SUITE_FILE = "suite.json"
LISTED_NAMES = 4  # cells that a note names
STARTING_SECONDS, EVALUATING_SECONDS = 4.0, 10.0  # estimates; the second is replaced by measured evaluations
# Steps/s of a cell while none is measured. PPO has reached 216, 1,198 and 9,869 on one core (docs/results.md).
ASSUMED_SPEED = {"impala": 50.0, "nature": 400.0, "mlp": 1000.0}

CellState = Literal["finished", "failed", "stopped"]


class Share(NamedTuple):
    """What of a machine a cell had for its training."""

    num_jobs: int = 1  # cells side by side, itself included
    num_cores: int | None = None  # its own; None: not recorded

    @property
    def text(self) -> str:
        cores = "cores" if self.num_cores is None else counted(self.num_cores, "core")
        return (
            f"{self.num_jobs} cells side by side, each on {cores} of its own: caches, memory and clock rates are "
            "shared, so times and speeds are not those of a cell alone"
        )


class Outcome(NamedTuple):
    """How a cell ended."""

    name: str
    state: CellState
    train_seconds: float  # of the process, including its start-up
    evaluate_seconds: float
    error: str | None = None
    num_jobs: int = 1
    num_cores: int | None = None

    @property
    def share(self) -> Share:
        return Share(self.num_jobs, self.num_cores)


def recorded_outcomes(folder: Path) -> dict[str, Outcome]:
    """How each cell of the suite in `folder` ended last, by name."""
    path, outcomes = folder / SUITE_FILE, {}
    if path.exists():
        outcomes = {cell["name"]: Outcome(**cell) for cell in json.loads(path.read_text())["cells"]}
    for file in sorted((folder / "cells").glob("*.json")):
        outcomes[file.stem] = Outcome(**json.loads(file.read_text()))
    return outcomes


def record_outcome(folder: Path, outcome: Outcome) -> None:
    write_json(_outcome_file(folder, outcome.name), outcome._asdict())


def record_suite(folder: Path, plan: Mapping[str, Any], outcomes: Collection[Outcome]) -> None:
    """All outcomes in one file, with what was planned."""
    num_jobs = max((outcome.num_jobs for outcome in outcomes), default=1)
    content = {"plan": plan, "jobs": num_jobs, "cells": [outcome._asdict() for outcome in outcomes]}
    write_json(folder / SUITE_FILE, content)


def sharing_notes(shares: Mapping[str, Share], num_cells: int) -> list[str]:
    """Which of the suite's cells did not have the machine to themselves, for each way in which they shared it."""
    names: dict[Share, list[str]] = {}
    for name, share in shares.items():
        if share.num_jobs > 1:
            names.setdefault(share, []).append(name)
    return [
        f"{_listed(own) if len(own) < num_cells else 'all cells'} ran as {share.text}" for share, own in names.items()
    ]


def _listed(names: Sequence[str]) -> str:
    """A few names; of many, the first and their number."""
    return ", ".join(names) if len(names) <= LISTED_NAMES else f"{names[0]} and {len(names) - 1} other cells"


def is_written_after_outcome(folder: Path, name: str) -> bool:
    """True for a cell whose run was written since its last recorded end, or that never ended."""
    outcome, run = _outcome_file(folder, name), folder / "runs" / name
    return not outcome.exists() or written_at(run) > outcome.stat().st_mtime


def _outcome_file(folder: Path, name: str) -> Path:
    return folder / "cells" / f"{name}.json"


def expected_seconds(suite: Suite, cells: Sequence[Cell], outcomes: Iterable[Outcome]) -> float | None:
    """Timed cells take their duration, others the mean of finished ones; None if none has finished."""
    finished = [outcome for outcome in outcomes if outcome.state == "finished"]
    evaluations = [outcome.evaluate_seconds for outcome in finished if outcome.evaluate_seconds > 0]
    evaluation = sum(evaluations) / len(evaluations) if evaluations else EVALUATING_SECONDS
    evaluation = evaluation if suite.plan.evaluation.num_episodes else 0.0
    trained = {outcome.name: outcome.train_seconds for outcome in finished if outcome.train_seconds > 0}
    methods = {cell.name: cell.method for cell in suite.cells}
    seconds = 0.0
    for cell in cells:
        duration = cell.settings.training.duration
        alike = [value for name, value in trained.items() if methods.get(name) == cell.method]
        known = alike or list(trained.values())
        if duration is None and not known:
            return None
        seconds += evaluation + (duration + STARTING_SECONDS if duration else sum(known) / len(known))
    return seconds


def assumed_seconds(suite: Suite, cell: Cell) -> float:
    """Of a cell with a budget in steps, where none has finished; an own network is as slow as the slowest."""
    speed = ASSUMED_SPEED.get(cell.network, min(ASSUMED_SPEED.values()))
    evaluation = EVALUATING_SECONDS if suite.plan.evaluation.num_episodes else 0.0
    return STARTING_SECONDS + (cell.settings.training.total_timesteps or 0) / speed + evaluation
