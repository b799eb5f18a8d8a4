"""The plan of a suite: a YAML file of algorithms × modes × games × seeds with equal budgets, expanded into cells.

All problems that can be found before the first run are reported here, in one message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationError

from rlcluster.plan import forecast
from rlcluster.settings.algorithms import ALGORITHMS, DEFAULT_ALGORITHM
from rlcluster.settings.games import game_name
from rlcluster.settings.loading import flatten, hint, load_settings, override, read_file
from rlcluster.settings.schema import (
    BUDGETS,
    MODE_NAMES,
    AlgorithmName,
    ModeName,
    Section,
    Settings,
)
from rlcluster.settings.values import Count, Duration, Natural, Number, Positive, Seed, is_null
from rlcluster.system import cores
from rlcluster.system.errors import UserError

Overrides = dict[str, dict[str, Any]]  # sections of settings

# Settings that other keys of the plan set.
DECIDED_HERE = {
    "env.name": "set by games",
    "env.seed": "set by seeds",
    **{f"training.{budget}": "set by budget" for budget in BUDGETS},
}
OUTPUT_REASON = "each cell keeps its files in its own directory"


class BudgetPlan(Section):
    """The budget of each cell; exactly one key is given."""

    total_timesteps: Count | None = Field(None, description="environment steps")
    duration: Duration | None = Field(None, description="wall-clock: 0.5 (hours), 90s, 30m, 2h")
    core_hours: Positive | None = Field(None, description="wall-clock times the cores reserved for the cell")


class EvaluationPlan(Section):
    """How each trained agent is evaluated."""

    num_episodes: Natural = Field(100, description="on training and on unseen levels each; 0: no evaluation")
    video: bool = Field(False, description="record a clip of each agent for the report")


class SuitePlan(Section):
    """A suite: every combination of the four lists is a cell."""

    algorithms: Annotated[tuple[AlgorithmName, ...], Field(min_length=1)] = (DEFAULT_ALGORITHM,)
    modes: Annotated[tuple[ModeName, ...], Field(min_length=1)] = ("parallel",)
    games: Annotated[tuple[str, ...], Field(min_length=1)] = ("coinrun",)
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (1,)
    budget: BudgetPlan = BudgetPlan()
    evaluation: EvaluationPlan = EvaluationPlan()
    settings: Overrides = Field({}, description="settings of all cells, as in a config file")
    algorithm_settings: dict[AlgorithmName, Overrides] = Field({}, description="overrides for an algorithm")
    mode_settings: dict[ModeName, Overrides] = Field({}, description="overrides for a mode")
    reference: bool = Field(False, description="compare with OpenAI's published PPO scores")
    score_ranges: dict[str, tuple[Number, Number]] = Field({}, description="scores that normalise to 0 and 1, by game")


class Cell(NamedTuple):
    """One run of the suite."""

    name: str
    settings: Settings


class Suite(NamedTuple):
    """A valid plan and its cells."""

    file: Path
    plan: SuitePlan
    cells: list[Cell]

    @property
    def name(self) -> str:
        return self.file.stem


def read_suite(path: Path) -> Suite:
    """Seeds vary slowest: after each seed, every method has one more run."""
    plan = _validate(path, read_file(path, "suite"))
    problems = _plan_problems(plan)
    cells = []
    for seed in plan.seeds:
        for game in plan.games:
            for mode in plan.modes:
                for algorithm in plan.algorithms:
                    try:
                        cells.append(_cell(plan, algorithm, mode, game, seed))
                    except UserError as error:
                        problems += [f"{algorithm} {mode}: {line}" for line in _lines(error)]
    if problems:
        raise _refusal(path, problems)
    return Suite(path, plan, cells)


def _refusal(path: Path, problems: list[str]) -> UserError:
    unique = list(dict.fromkeys(problems))
    heading = f"suite {path}: " + ("" if len(unique) == 1 else f"{len(unique)} problems:\n  ")
    return UserError(heading + "\n  ".join(unique))


def planned_cores(settings: Settings) -> int:
    """Cores reserved for a cell: all, if the split between actors and learner is measured at start-up."""
    own = cores.observe()
    plan = forecast(settings, own)
    return own.allowed if plan is None else plan.num_cores


def _problem(location: list[str], error: Any) -> str:
    if location[-1] == "[key]":  # a key of algorithm_settings or mode_settings
        known: Sequence[str] = tuple(ALGORITHMS) if location[0] == "algorithm_settings" else MODE_NAMES
        return f"{'.'.join(location[:-1])}: unknown{hint(location[:-1], known)}"
    name = ".".join(location)
    if error["type"] == "extra_forbidden":
        return f"{name}: unknown{hint(location, _keys_of(location[:-1]))}"
    if error["type"] == "model_type":
        return f"{name}={error['input']}: should be a block with one or more of {', '.join(_keys_of(location))}"
    return f"{name}={error['input']}: {error['msg']}"


def _keys_of(section: list[str]) -> list[str]:
    """The keys of the plan, or of one of its sections."""
    model = SuitePlan.model_fields[section[0]].annotation if section else SuitePlan
    assert model is not None
    return list(model.model_fields)


def _validate(path: Path, data: Mapping[str, Any]) -> SuitePlan:
    listed = ("algorithms", "modes", "games", "seeds")
    given = {key: value for key, value in data.items() if not is_null(value)}
    given = {key: [value] if key in listed and isinstance(value, str) else value for key, value in given.items()}
    try:
        return SuitePlan.model_validate(given)
    except ValidationError as error:
        errors = {tuple(map(str, item["loc"])): item for item in error.errors()}
        # A list may be too short only because its invalid values were dropped: report just those.
        causes = [where for where in errors if not any(other[:-1] == where for other in errors)]
        raise _refusal(path, [_problem(list(where), errors[where]) for where in causes]) from None


def _plan_problems(plan: SuitePlan) -> list[str]:
    problems = []
    given = [name for name, value in plan.budget if value is not None]
    if len(given) != 1:
        choices = ", ".join(BudgetPlan.model_fields)
        problems.append(f"budget: give one of {choices}; it has {' and '.join(given) or 'none'}")
    for name in ("algorithms", "modes", "games", "seeds"):
        values = getattr(plan, name)
        keys = [game_name(value) for value in values] if name == "games" else list(values)
        repeated = [str(value) for k, value in enumerate(keys) if value in keys[:k]]
        if repeated:
            problems.append(f"{name}: {', '.join(repeated)} {'is' if len(repeated) == 1 else 'are'} listed twice")
    layers = {"settings": plan.settings}
    layers |= {f"algorithm_settings.{name}": sections for name, sections in plan.algorithm_settings.items()}
    layers |= {f"mode_settings.{name}": sections for name, sections in plan.mode_settings.items()}
    for layer, sections in layers.items():
        decided = [key for key in flatten(sections) if key in DECIDED_HERE or key.startswith("output.")]
        problems += [f"{layer}.{key}: {DECIDED_HERE.get(key, OUTPUT_REASON)}; leave it out" for key in decided]
    for game, (low, high) in plan.score_ranges.items():
        if low >= high:
            problems.append(f"score_ranges.{game}=[{low:g}, {high:g}]: the first must be below the second")
    return problems


def _cell(plan: SuitePlan, algorithm: AlgorithmName, mode: ModeName, game: str, seed: int) -> Cell:
    base = override(plan.settings, plan.algorithm_settings.get(algorithm, {}))
    base = override(base, plan.mode_settings.get(mode, {}))
    flags = {"env.name": game, "env.seed": str(seed), **dict(_budget_flags(plan.budget))}
    settings = load_settings(algorithm, mode, flags=flags, base=base)
    if plan.budget.core_hours is not None:
        seconds = plan.budget.core_hours * 3600 / planned_cores(settings)
        settings = load_settings(algorithm, mode, flags={**flags, "training.duration": f"{seconds}s"}, base=base)
    place = re.sub(r"[^\w.-]+", "-", game_name(game))
    return Cell(f"{settings.run_name}_{place}_seed{seed}", settings)


def _budget_flags(budget: BudgetPlan) -> Iterator[tuple[str, str]]:
    if budget.total_timesteps is not None:
        yield "training.total_timesteps", str(budget.total_timesteps)
    if budget.duration is not None:
        yield "training.duration", f"{budget.duration}s"


def _lines(error: UserError) -> list[str]:
    """The problems of a cell, without the heading with their number."""
    lines = [line.strip() for line in str(error).splitlines()]
    return lines[1:] if len(lines) > 1 else lines
