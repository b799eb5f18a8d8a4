"""Our published results: runs of the shipped recipes, as compact data in the package (published_runs/METHOD.json).

{"method": "ppo_fast", "settings": {...}, "runs": [{"game": ..., "seed": ..., "curve": {...}, ...}, ...]}

`scripts/publish.py` makes the files from run directories; `compare --reference`, `plot --reference` and
`scripts/results.py` read them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

import numpy as np

from rlcluster.reports.curves import SCORE_STEPS, Slices
from rlcluster.reports.fairness import LOAD_TOLERANCE
from rlcluster.runs.metrics import Column
from rlcluster.settings.earlier import complete
from rlcluster.settings.loading import flatten, load_settings, without
from rlcluster.settings.resume import CHANGEABLE_ON_RESUME
from rlcluster.settings.schema import BUDGETS, Settings

POINTS = 60  # of a published curve
REACHED = 0.99  # of the steps asked for: a run ends with an update, not at a round number
STEADY_PARTS = 4  # of a run, whose speeds may differ by as much as the load may be
CURVE_DIGITS = {"steps": 0, "seconds": 0, "episodes": 0, "rewards": 3}


class LevelsResult(NamedTuple):
    """An evaluation on training or on unseen levels."""

    mean: float
    low: float | None  # 95 % interval over episodes
    high: float | None
    episodes: int


class PublishedRun(NamedTuple):
    """One run. `state` is that of its directory when it was published."""

    game: str
    seed: int
    state: str
    planned_steps: int
    curve: Slices
    evaluation: Mapping[str, LevelsResult]  # "train" and "test" levels
    evaluated_steps: int | None
    machine: Mapping[str, Any]  # cpu_model, cores, versions, git_commit
    background_load: float | None

    @property
    def steps(self) -> int:
        return int(self.curve.steps[-1])

    @property
    def is_complete(self) -> bool:
        return self.reaches(self.planned_steps)

    def reaches(self, steps: float) -> bool:
        return self.steps >= REACHED * steps

    @property
    def fps(self) -> float:
        """Environment steps per second, over the run."""
        return float(self.curve.steps[-1] / self.curve.seconds[-1])

    @property
    def is_quiet(self) -> bool:
        """True if its times are of a machine that did little else. The load is known of the last part of a resumed run
        only, so the speed must have been steady as well.
        """
        if self.background_load is None or self.background_load > LOAD_TOLERANCE:
            return False
        ends = np.linspace(0, len(self.curve.steps) - 1, 1 + STEADY_PARTS).astype(int)
        with np.errstate(divide="ignore", invalid="ignore"):
            speeds = np.diff(self.curve.steps[ends]) / np.diff(self.curve.seconds[ends])
        return bool(np.all(np.abs(speeds / self.fps - 1) <= LOAD_TOLERANCE))

    def score_at(self, step: float) -> float | None:
        """On training levels, as defined by `Slices.score_at`; None if the run has not got that far."""
        return self.curve.score_at(min(step, self.steps)) if self.reaches(step) else None

    def unseen_at(self, step: float) -> float | None:
        """The mean reward on unseen levels, if the run was evaluated there."""
        done = self.evaluated_steps
        if done is None or "test" not in self.evaluation or not REACHED <= done / step <= 1 / REACHED:
            return None
        return self.evaluation["test"].mean


class PublishedMethod(NamedTuple):
    """The runs of one recipe, over games and seeds."""

    name: str
    settings: Settings
    runs: Sequence[PublishedRun]

    def of_game(self, game: str) -> list[PublishedRun]:
        return [run for run in self.runs if run.game == game]


class MeanCurve(NamedTuple):
    """The score of a method over steps [K]: mean, lowest and highest over its seeds."""

    steps: Column
    mean: Column
    low: Column
    high: Column
    num_seeds: int


def method_settings(settings: Settings) -> dict[str, Any]:
    """The settings that decide what is learnt, apart from game and seed: two runs that agree in them are runs of one
    method. The mode is one of them only for algorithms that are asynchronous in some modes, the budget only if the
    learning rate is annealed over it.
    """
    free = CHANGEABLE_ON_RESUME | {"env.name", "env.seed", "output.checkpoint_dir", "output.log_dir"}
    if settings.traits.helpers:
        free = free - {"mode"}
    if settings.training.anneal_learning_rate:
        free = free - {f"training.{budget}" for budget in BUDGETS}
    return {key: value for key, value in flatten(settings.to_dict()).items() if key not in free}


def published_methods(folder: Traversable | None = None) -> list[PublishedMethod]:
    """All that is published; `folder` instead of the package's own."""
    folder = folder or published_folder()
    files = [file for file in folder.iterdir() if file.name.endswith(".json")] if folder.is_dir() else []
    return [read_method(file) for file in sorted(files, key=lambda file: file.name)]


def published_folder() -> Traversable:
    return resources.files("rlcluster.reports") / "published_runs"


def ours_for(settings: Settings, game: str, methods: Sequence[PublishedMethod]) -> dict[str, list[PublishedRun]]:
    """The published runs of `game` by method: of the method with these settings, or of all where none has them."""
    known = {method.name: runs for method in methods if (runs := method.of_game(game))}
    key = method_settings(settings)
    same = [method.name for method in methods if method.name in known and method_settings(method.settings) == key]
    return {name: known[name] for name in same or known}


def mean_score_curve(runs: Sequence[PublishedRun]) -> MeanCurve:
    """Over the seeds that got as far as the longest run, from the first score that is over all its steps."""
    last = max(run.steps for run in runs)
    longest = [run for run in runs if run.reaches(last)]
    steps = np.linspace(min(SCORE_STEPS, last), last, POINTS)
    scores = np.array(
        [[math.nan if (score := run.score_at(step)) is None else score for step in steps] for run in longest]
    )
    known = ~np.isnan(scores).any(0)
    scores = scores[:, known]
    return MeanCurve(steps[known], scores.mean(0), scores.min(0), scores.max(0), len(longest))


def read_method(file: Traversable) -> PublishedMethod:
    data = json.loads(file.read_text(encoding="utf-8"))
    return PublishedMethod(data["method"], load_settings(base=complete(data["settings"])), [*map(_run, data["runs"])])


def method_text(method: PublishedMethod) -> str:
    """The content of the method's file: one line per run, so that versions of it can be compared."""
    runs = sorted(method.runs, key=lambda run: (run.game, run.seed))
    lines = ",\n".join(json.dumps(_run_data(run), separators=(",", ":"), allow_nan=False) for run in runs)
    head = f'{{"method": {json.dumps(method.name)},\n"settings": {json.dumps(_sections(method.settings))},\n'
    return f'{head}"runs": [\n{lines}\n]}}\n'


def _sections(settings: Settings) -> dict[str, Any]:
    """As in a configuration file, without what each run or machine has of its own."""
    data = without(settings.to_dict(), {"env.name", "env.seed"})
    return {key: value for key, value in data.items() if key not in ("cluster", "output")}


def _run(data: Mapping[str, Any]) -> PublishedRun:
    curve = [[math.nan if value is None else value for value in data["curve"][name]] for name in Slices._fields]
    evaluation = {levels: LevelsResult(*result) for levels, result in data["evaluation"].items()}
    return PublishedRun(**{**data, "curve": Slices(*map(np.array, curve)), "evaluation": evaluation})


def _run_data(run: PublishedRun) -> dict[str, Any]:
    curve = {name: _rounded(getattr(run.curve, name), digits) for name, digits in CURVE_DIGITS.items()}
    evaluation = {
        levels: [value if isinstance(value, int | None) else round(value, 3) for value in result]
        for levels, result in run.evaluation.items()
    }
    return {**run._asdict(), "curve": curve, "evaluation": evaluation}


def _rounded(values: Column, digits: int) -> list[float | None]:
    return [None if math.isnan(value) else round(value, digits or None) for value in values.tolist()]
