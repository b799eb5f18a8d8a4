"""Settings from files and flags, and everything that can be wrong with them, reported at once.

They are layered in this order, the later one wins:
defaults < defaults of the algorithm < file (YAML or JSON) < command-line flags.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from rlcluster.config import (
    ALGORITHM_DEFAULTS,
    BUDGETS,
    CHANGEABLE_ON_RESUME,
    DEFAULT_TOTAL_TIMESTEPS,
    UNUSED,
    USES_MINIBATCHES,
    Settings,
    setting_fields,
)
from rlcluster.errors import UserError


class Problem(NamedTuple):
    """What is wrong, and which settings take part in it."""

    keys: frozenset[str]
    message: str


def load_settings(
    algorithm: str | None = None,
    mode: str | None = None,
    file: str | Path | None = None,
    flags: Mapping[str, Any] | None = None,
    base: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings of a run. `flags` maps "section.name" to a value; `base` is the run to be resumed.

    Raises a UserError that lists every problem at once.
    """
    flags = dict(flags or {})
    given = read_file(file) if file is not None else {}
    given = _merge(dict(base or {}), given)
    if any(f"training.{budget}" in flags for budget in BUDGETS) and isinstance(given.get("training"), dict):
        given["training"] = {key: value for key, value in given["training"].items() if key not in BUDGETS}
    for key, value in flags.items():
        section, name = key.split(".")
        given = _merge(given, {section: {name: value}})
    if algorithm is not None:
        given["algorithm"] = algorithm
    if mode is not None:
        given["mode"] = mode
    given = {key: {} if value is None or value in ("", "null") else value for key, value in given.items()}
    chosen = given.get("algorithm", "ppo")
    data = _merge(ALGORITHM_DEFAULTS.get(chosen, {}) if isinstance(chosen, str) else {}, given)
    settings, problems = _validate(data)
    problems += _unused_settings(given, chosen)
    if problems:
        raise UserError(_list_problems(problems))
    assert settings is not None
    return settings


def read_file(path: str | Path) -> dict[str, Any]:
    """A YAML or JSON file as nested dicts; YAML scalars stay text and are converted by declared type."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader=yaml.BaseLoader)
    except OSError as error:
        raise UserError(f"--config {path}: {error.strerror}; give the path of a YAML or JSON file") from None
    except (ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"--config {path}: not readable as {path.suffix or 'YAML'}: {reason}") from None
    if data is None or data == "":
        return {}
    if not isinstance(data, dict):
        raise UserError(f"--config {path}: should hold sections such as `env:` and `training:`")
    return data


def resume_differences(old: Settings, new: Settings) -> list[str]:
    """Settings that a resumed run may not change, with both values."""
    old_values, new_values = _flatten(old.to_dict()), _flatten(new.to_dict())
    return [
        f"{key}={new_values.get(key)} but the run has {old_values.get(key)}"
        for key in sorted(old_values.keys() | new_values.keys())
        if key not in CHANGEABLE_ON_RESUME and old_values.get(key) != new_values.get(key)
    ]


def _merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = {**merged[key], **value}
        else:
            merged[key] = value
    return merged


def _flatten(data: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            flat.update({f"{key}.{name}": item for name, item in value.items()})
        else:
            flat[key] = value
    return flat


def _validate(data: dict[str, Any]) -> tuple[Settings | None, list[Problem]]:
    """Field by field first; then what settings must satisfy together, as far as the fields are sound."""
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        problems = [_field_problem(item) for item in error.errors()]
        wrong = frozenset().union(*(problem.keys for problem in problems))
        try:
            settings = Settings.model_validate(_without(data, wrong))
        except ValidationError:
            return None, problems
        return None, problems + [p for p in _combination_problems(settings) if not p.keys & wrong]
    settings = _with_default_budget(settings)
    return settings, list(_combination_problems(settings))


def _without(data: dict[str, Any], keys: frozenset[str]) -> dict[str, Any]:
    """The data less the settings named, so that the rest can still be checked."""
    kept: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            kept[key] = {name: item for name, item in value.items() if f"{key}.{name}" not in keys}
        elif key not in keys:
            kept[key] = value
    return {key: value for key, value in kept.items() if key not in keys}


def _with_default_budget(settings: Settings) -> Settings:
    if any(getattr(settings.training, budget) is not None for budget in BUDGETS):
        return settings
    training = settings.training.model_copy(update={"total_timesteps": DEFAULT_TOTAL_TIMESTEPS})
    return settings.model_copy(update={"training": training})


def _field_problem(error: Any) -> Problem:
    location = [str(part) for part in error["loc"]]
    key = ".".join(location[:2])
    if error["type"] == "extra_forbidden":
        return Problem(frozenset({key}), f"{key}: unknown setting{_suggestion(location)}")
    message = error["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    return Problem(frozenset({key}), f"{key}={error['input']}: {message}")


def _suggestion(location: list[str]) -> str:
    if len(location) == 1:
        known = list(Settings.model_fields)
        everywhere = {field.name: field.key for field in setting_fields()}
    else:
        known = [field.name for field in setting_fields() if field.section == location[0]]
        everywhere = {field.name: field.key for field in setting_fields()}
    if location[-1] in everywhere:
        return f"; did you mean {everywhere[location[-1]]}?"
    close = difflib.get_close_matches(location[-1], known, n=1)
    if close:
        return f"; did you mean {'.'.join([*location[:-1], close[0]])}?"
    return f"; known here: {', '.join(known)}"


def _combination_problems(settings: Settings) -> Iterator[Problem]:
    training, size = settings.training, settings.rollout_size
    keys = frozenset({"training.batch_size", "training.n_minibatches", "training.n_steps", "env.num_envs"})
    if not USES_MINIBATCHES[settings.algorithm]:
        return
    if training.batch_size is not None and training.n_minibatches is not None:
        yield Problem(
            keys,
            f"training.batch_size={training.batch_size} and training.n_minibatches={training.n_minibatches}: "
            "give one of them",
        )
        return
    sizes = valid_batch_sizes(settings)
    if training.n_minibatches is not None:
        if training.n_steps % training.n_minibatches:
            choices = _nearest([size // n for n in sizes], training.n_minibatches)
            yield Problem(
                keys,
                f"training.n_minibatches={training.n_minibatches} does not divide "
                f"training.n_steps={training.n_steps}; use {choices}",
            )
    elif settings.batch_size not in sizes:
        relation = "does not divide" if size % settings.batch_size else "does not give whole steps per environment in"
        yield Problem(
            keys,
            f"training.batch_size={settings.batch_size} {relation} n_steps * num_envs = "
            f"{training.n_steps} * {settings.env.num_envs} = {size}; use {_nearest(sizes, settings.batch_size)}",
        )


def valid_batch_sizes(settings: Settings) -> list[int]:
    """num_envs times a divisor of n_steps: every minibatch takes as many steps of each environment."""
    n_steps = settings.training.n_steps
    return [settings.env.num_envs * d for d in range(1, n_steps + 1) if n_steps % d == 0]


def _nearest(choices: list[int], wanted: int) -> str:
    nearest = sorted(choices, key=lambda choice: abs(math.log(choice / wanted)))[:2]
    return " or ".join(str(choice) for choice in sorted(nearest, reverse=True))


def _unused_settings(given: Mapping[str, Any], algorithm: object) -> list[Problem]:
    training = given.get("training")
    if not isinstance(training, Mapping) or algorithm not in UNUSED:
        return []
    return [
        Problem(
            frozenset({f"training.{key}"}),
            f"training.{key}={training[key]} has no effect with {algorithm}; remove it",
        )
        for key in UNUSED[str(algorithm)]
        if key in training
    ]


def _list_problems(problems: list[Problem]) -> str:
    messages = list(dict.fromkeys(problem.message for problem in problems))
    if len(messages) == 1:
        return messages[0]
    return "\n  ".join([f"{len(messages)} problems in the settings:", *messages])
