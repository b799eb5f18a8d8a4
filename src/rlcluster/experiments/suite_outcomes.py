"""How the cells of a suite ended (OUTPUT/cells/NAME.json, OUTPUT/suite.json), and how long the others will take."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rlcluster.experiments.suite_plan import Cell, Suite
from rlcluster.runs.status import written_at
from rlcluster.system.atomic_file import write_json

SUITE_FILE = "suite.json"
STARTING_SECONDS, EVALUATING_SECONDS = 4.0, 10.0  # estimates; the second is replaced by measured evaluations

CellState = Literal["finished", "failed", "stopped"]


class Outcome(NamedTuple):
    """How a cell ended."""

    name: str
    state: CellState
    train_seconds: float  # of the process, including its start-up
    evaluate_seconds: float
    error: str | None = None


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


def record_suite(folder: Path, plan: Mapping[str, Any], num_jobs: int, outcomes: Iterable[Outcome]) -> None:
    """All outcomes in one file, with what was planned."""
    content = {"plan": plan, "jobs": num_jobs, "cells": [outcome._asdict() for outcome in outcomes]}
    write_json(folder / SUITE_FILE, content)


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
