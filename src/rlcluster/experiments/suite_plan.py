"""The plan of a suite: a YAML file of recipes × modes × games × seeds with equal budgets, expanded into cells.

All problems that can be found before the first run are reported here, in one message.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, ValidationError

from rlcluster.experiments.suite_check import CellChecker
from rlcluster.experiments.suite_recipes import Overrides, Recipe, RecipePlan, block, listed, read_recipes
from rlcluster.plan import forecast
from rlcluster.settings.algorithms import ALGORITHMS, DEFAULT_ALGORITHM
from rlcluster.settings.games import game_name
from rlcluster.settings.loading import first_of, flatten, hint, load_settings, override
from rlcluster.settings.presets import find_file
from rlcluster.settings.reading import read_file, shown
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
from rlcluster.system.cores import Cores
from rlcluster.system.errors import UserError

# Settings that other keys of the plan set.
DECIDED_HERE = {
    "env.name": "set by games",
    "env.seed": "set by seeds",
    **{f"training.{budget}": "set by budget" for budget in (*BUDGETS, "target_reward")},
}
LIMITS = ("total_timesteps", "duration", "core_hours")
OUTPUT_REASON = "each cell keeps its files in its own directory"


class BudgetPlan(Section):
    """The budget of each cell: exactly one limit and, if the cells race to a score, that score."""

    total_timesteps: Count | None = Field(None, description="environment steps")
    duration: Duration | None = Field(None, description="wall-clock: 0.5 (hours), 90s, 30m, 2h")
    core_hours: Positive | None = Field(None, description="wall-clock times the cores reserved for the cell")
    score: Number | None = Field(None, description="ends a cell early, once 100 training episodes reach this reward")


class EvaluationPlan(Section):
    """How each trained agent is evaluated."""

    num_episodes: Natural = Field(100, description="on training and on unseen levels each; 0: no evaluation")
    video: bool = Field(False, description="record a clip of each agent for the report")


class SuitePlan(Section):
    """A suite: every combination of a recipe or algorithm, a mode, a game and a seed is a cell."""

    algorithms: Annotated[tuple[AlgorithmName, ...], Field(min_length=1)] | None = Field(
        None, description="null: ppo if there are no recipes"
    )
    recipes: dict[str, Annotated[RecipePlan, BeforeValidator(block)]] = Field(
        {}, description="named settings of an algorithm, by name"
    )
    modes: Annotated[tuple[ModeName, ...], Field(min_length=1)] = ("parallel",)
    games: Annotated[tuple[str, ...], Field(min_length=1)] = ("coinrun",)
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] = (1,)
    budget: BudgetPlan = BudgetPlan()
    evaluation: EvaluationPlan = EvaluationPlan()
    settings: Overrides = Field({}, description="settings of all cells, as in a config file")
    algorithm_settings: dict[AlgorithmName, Overrides] = Field({}, description="overrides for an algorithm")
    mode_settings: dict[ModeName, Overrides] = Field({}, description="overrides for a mode")
    reference: bool = Field(False, description="compare with published scores: ours and OpenAI's PPO's")
    score_ranges: dict[str, tuple[Number, Number]] = Field({}, description="scores that normalise to 0 and 1, by game")


class Cell(NamedTuple):
    """One run of the suite."""

    name: str
    method: str  # what reports call it: the recipe, and its mode if the suite has several
    settings: Settings
    network: str


class Suite(NamedTuple):
    """A valid plan and its cells."""

    file: Path
    plan: SuitePlan
    cells: list[Cell]

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(cell.method for cell in self.cells))

    def matching(self, pattern: str | None) -> list[Cell]:
        """The cells whose names the regular expression `pattern` matches somewhere; all if it is None."""
        if pattern is None:
            return self.cells
        try:
            found = [cell for cell in self.cells if re.search(pattern, cell.name)]
        except re.error as error:
            raise UserError(f"--only {pattern}: not a regular expression: {error}") from None
        if not found:
            names = "\n  ".join(cell.name for cell in self.cells)
            raise UserError(f"--only {pattern}: matches none of the cells:\n  {names}")
        return found


def read_suite(path: Path, own_cores: Cores | None = None) -> Suite:
    """Seeds vary slowest: after each seed, every method has one more run. `path` may be the name of a
    preset; `own_cores` are those of one cell.
    """
    path = find_file(path)
    own_cores = own_cores or cores.observe()
    checker = CellChecker(own_cores)
    plan = _validate(path, read_file(path, "suite"))
    problems = _plan_problems(plan)
    algorithms = plan.algorithms or (() if plan.recipes else (DEFAULT_ALGORITHM,))
    recipes = [Recipe(name, name, plan.modes) for name in algorithms]
    recipes += read_recipes(plan.recipes, plan.modes, path.parent, problems)
    modes = list(dict.fromkeys(mode for recipe in recipes for mode in recipe.modes))
    cells = []
    for seed, game, mode, recipe in itertools.product(plan.seeds, plan.games, modes, recipes):
        if mode not in recipe.modes:
            continue
        try:
            settings = _settings(plan, recipe, mode, game, seed, own_cores)
        except UserError as error:
            problems += [f"{recipe.name} {mode}: {line}" for line in _lines(error)]
            continue
        try:
            network = checker.check(settings)
        except UserError as error:
            problems += [f"{recipe.name} {mode} {game}: {line}" for line in _lines(error)]
            continue
        method = recipe.name if len(modes) == 1 else f"{recipe.name}_{mode}"
        place = re.sub(r"[^\w.-]+", "-", game_name(game))
        cells.append(Cell(f"{recipe.name}_{mode}_{place}_seed{seed}", method, settings, network))
    if problems:
        raise _refusal(path, problems)
    return Suite(path, plan, cells)


def _refusal(path: Path, problems: list[str]) -> UserError:
    unique = list(dict.fromkeys(problems))
    heading = f"suite {path}: " + ("" if len(unique) == 1 else f"{len(unique):,} problems:\n  ")
    return UserError(heading + "\n  ".join(first_of(unique)))


def planned_cores(settings: Settings, own: Cores) -> int:
    """Cores reserved for a cell: all, if the split between actors and learner is measured at start-up."""
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
        return f"{name}={shown(error['input'])}: should be a block with one or more of {', '.join(_keys_of(location))}"
    return f"{name}={shown(error['input'])}: {error['msg']}"


def _keys_of(section: list[str]) -> list[str]:
    """The keys of the plan, of one of its sections, or of a recipe."""
    model = SuitePlan.model_fields[section[0]].annotation if section else SuitePlan
    model = RecipePlan if section[:1] == ["recipes"] else model
    assert model is not None
    return list(model.model_fields)


def _validate(path: Path, data: Mapping[str, Any]) -> SuitePlan:
    lists = ("algorithms", "modes", "games", "seeds")
    given = {key: value for key, value in data.items() if not is_null(value)}
    given = {key: listed(value) if key in lists else value for key, value in given.items()}
    try:
        return SuitePlan.model_validate(given)
    except ValidationError as error:
        errors = {tuple(map(str, item["loc"])): item for item in error.errors()}
        # A list may be too short only because its invalid values were dropped: report just those.
        causes = [where for where in errors if not any(other[:-1] == where for other in errors)]
        raise _refusal(path, [_problem(list(where), errors[where]) for where in causes]) from None


def _plan_problems(plan: SuitePlan) -> list[str]:
    problems = []
    given = [name for name in LIMITS if getattr(plan.budget, name) is not None]
    if len(given) != 1:
        limit = " as the limit" if plan.budget.score is not None else ""
        problems.append(f"budget: give one of {', '.join(LIMITS)}{limit}; it has {' and '.join(given) or 'none'}")
    problems += _repetitions(plan)
    layers = {"settings": plan.settings}
    layers |= {f"algorithm_settings.{name}": sections for name, sections in plan.algorithm_settings.items()}
    layers |= {f"mode_settings.{name}": sections for name, sections in plan.mode_settings.items()}
    layers |= {f"recipes.{name}.settings": recipe.settings for name, recipe in plan.recipes.items()}
    for layer, sections in layers.items():
        decided = [key for key in flatten(sections) if key in DECIDED_HERE or key.startswith("output.")]
        problems += [f"{layer}.{key}: {DECIDED_HERE.get(key, OUTPUT_REASON)}; leave it out" for key in decided]
    for game, (low, high) in plan.score_ranges.items():
        if low >= high:
            problems.append(f"score_ranges.{game}=[{low:g}, {high:g}]: the first must be below the second")
    return problems


def _repetitions(plan: SuitePlan) -> list[str]:
    """What is listed twice; a recipe may not have the name of a listed algorithm."""
    lists = {"algorithms": [*(plan.algorithms or ()), *plan.recipes], "modes": plan.modes, "seeds": plan.seeds}
    lists["games"] = [game_name(game) for game in plan.games]
    lists |= {f"recipes.{name}.modes": recipe.modes or () for name, recipe in plan.recipes.items()}
    problems = []
    for name, values in lists.items():
        repeated = [str(value) for k, value in enumerate(values) if value in values[:k]]
        place = "algorithms and recipes" if name == "algorithms" and set(repeated) & plan.recipes.keys() else name
        if repeated:
            problems.append(f"{place}: {', '.join(repeated)} {'is' if len(repeated) == 1 else 'are'} listed twice")
    return problems


def _settings(plan: SuitePlan, recipe: Recipe, mode: ModeName, game: str, seed: int, own_cores: Cores) -> Settings:
    """What the suite says overrides the recipe's file; of what the suite says, the more specific wins."""
    base: Mapping[str, Any] = recipe.file
    for layer in (
        plan.settings,
        plan.algorithm_settings.get(recipe.algorithm, {}),
        plan.mode_settings.get(mode, {}),
        recipe.settings,
    ):
        base = override(base, layer)
    flags = {"env.name": game, "env.seed": str(seed), **dict(_budget_flags(plan.budget))}
    settings = load_settings(recipe.algorithm, mode, flags=flags, base=base)
    if plan.budget.core_hours is not None:
        seconds = plan.budget.core_hours * 3600 / planned_cores(settings, own_cores)
        flags["training.duration"] = f"{seconds}s"
        settings = load_settings(recipe.algorithm, mode, flags=flags, base=base)
    return settings


def _budget_flags(budget: BudgetPlan) -> Iterator[tuple[str, str]]:
    if budget.total_timesteps is not None:
        yield "training.total_timesteps", str(budget.total_timesteps)
    if budget.duration is not None:
        yield "training.duration", f"{budget.duration}s"
    if budget.score is not None:
        yield "training.target_reward", str(budget.score)


def _lines(error: UserError) -> list[str]:
    """The problems of a cell, without the heading with their number."""
    lines = [line.strip() for line in str(error).splitlines()]
    return lines[1:] if len(lines) > 1 else lines
