"""The recipes of a suite: an algorithm with settings of its own, under a name. So a suite can hold several of one
algorithm. An entry of `algorithms` is the recipe of that name without settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field

from rlcluster.settings.algorithms import ALGORITHMS
from rlcluster.settings.loading import flatten, hint
from rlcluster.settings.reading import read_file
from rlcluster.settings.schema import AlgorithmName, ModeName, Section
from rlcluster.settings.values import PathText, is_null
from rlcluster.system.errors import UserError

Overrides = dict[str, dict[str, Any]]  # sections of settings


def listed(value: object) -> object:
    """A single name stands for a list of one."""
    return [value] if isinstance(value, str) else value


def block(value: object) -> object:
    """A recipe of which only the name is given has no settings of its own."""
    return {} if is_null(value) else value


class RecipePlan(Section):
    """A recipe as the plan gives it."""

    algorithm: AlgorithmName | None = Field(None, description="needed unless the config file or the name gives it")
    config: PathText | None = Field(None, description="a configuration file, relative to the suite's")
    settings: Overrides = Field({}, description="settings that override the file's and the suite's")
    modes: Annotated[tuple[ModeName, ...], BeforeValidator(listed), Field(min_length=1)] | None = Field(
        None, description="null: the suite's"
    )


class Recipe(NamedTuple):
    """A recipe with all that its files say."""

    name: str
    algorithm: AlgorithmName
    modes: Sequence[ModeName]
    file: Mapping[str, Any] = {}  # the content of its config file: what the suite says overrides it
    settings: Mapping[str, Mapping[str, Any]] = {}


def read_recipes(
    plans: Mapping[str, RecipePlan], modes: Sequence[ModeName], folder: Path, problems: list[str]
) -> list[Recipe]:
    """The valid recipes; adds the problems of the others. `folder` holds the suite's file."""
    recipes = []
    for name, plan in plans.items():
        try:
            recipes.append(_read_recipe(name, plan, modes, folder))
        except UserError as error:
            problems.append(str(error))
    return recipes


def _read_recipe(name: str, plan: RecipePlan, modes: Sequence[ModeName], folder: Path) -> Recipe:
    key = f"recipes.{name}"
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"{key}: the name becomes part of file names; use letters, digits, _, - and .")
    file = {} if plan.config is None else _read_config(f"{key}.config", folder / plan.config)
    outputs = [setting for setting in flatten(file) if setting.startswith("output.")]
    if outputs:
        raise UserError(
            f"{key}.config={plan.config}: has {outputs[0]}, but each cell keeps its files in its own directory"
        )
    return Recipe(name, _algorithm(key, name, plan, file), plan.modes or modes, file, plan.settings)


def _read_config(key: str, path: Path) -> dict[str, Any]:
    if not path.exists():
        known = sorted(file.name for file in path.parent.glob(f"*{path.suffix}"))
        raise UserError(f"{key}={path}: there is no such file{hint([path.name], known)}")
    return read_file(path, key)


def _algorithm(key: str, name: str, plan: RecipePlan, file: Mapping[str, Any]) -> AlgorithmName:
    """The algorithm that the recipe, its file and its name agree on."""
    given = {
        f"{key}.algorithm": plan.algorithm,
        f"its config {plan.config}": None if is_null(file.get("algorithm")) else file.get("algorithm"),
        "its name": name if name in ALGORITHMS else None,
    }
    known = {source: value for source, value in given.items() if value is not None}
    if not known:
        raise UserError(f"{key}.algorithm: give one of {', '.join(ALGORITHMS)}")
    if len(set(known.values())) > 1:
        listed = ", ".join(f"{source} says {value}" for source, value in known.items())
        raise UserError(f"{key}: which algorithm? {listed}")
    return str(next(iter(known.values())))
