"""Loads settings from files and flags, and reports all their problems in one message.

Later layers win: defaults < the algorithm's defaults < files (YAML or JSON), in their order < command-line flags.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from rlcluster.settings.algorithms import (
    ALGORITHMS,
    CLIPPED_VALUES,
    DEFAULT_ALGORITHM,
    OPTIMIZER_SETTINGS,
    OPTIMIZER_SPECIFIC_SETTINGS,
    Algorithm,
)
from rlcluster.settings.reading import read_file, shown
from rlcluster.settings.schema import (
    ALTERNATIVES,
    Settings,
    setting_fields,
)
from rlcluster.settings.values import is_null
from rlcluster.system import cores
from rlcluster.system.errors import UserError
from rlcluster.system.launcher import launched

MAX_LISTED = 20  # problems in one message
Files = str | Path | Sequence[str | Path] | None  # one configuration file, several, or none


def files_of(given: Files) -> list[str | Path]:
    if given is None:
        return []
    return [given] if isinstance(given, str | Path) else list(given)


class Problem(NamedTuple):
    """What is wrong, and the settings involved."""

    keys: frozenset[str]
    message: str


def load_settings(
    algorithm: str | None = None,
    mode: str | None = None,
    file: Files = None,
    flags: Mapping[str, Any] | None = None,
    base: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings of a run. `flags` maps "section.name" to a value; `base` holds the settings of a run to resume.

    Raises a UserError that lists every problem at once.
    """
    given = dict(base or {})
    for one in files_of(file):
        given = override(given, read_file(one))
    given = override(given, _sections(flags or {}))
    if algorithm is not None:
        given["algorithm"] = algorithm
    if mode is not None:
        given["mode"] = mode
    given = {key: {} if is_null(value) else value for key, value in given.items()}
    chosen = given.get("algorithm", DEFAULT_ALGORITHM)
    record = ALGORITHMS.get(chosen) if isinstance(chosen, str) else None
    data = override(record.defaults if record is not None else {}, given)
    settings, problems = _validate(data)
    if settings is not None:
        settings, problems = _with_all_environments(settings, "num_envs" in given.get("env", {}))
    if record is not None:
        problems += _unused_settings(given, record)
    wrong = frozenset().union(*(problem.keys for problem in problems))
    problems += [p for p in _unused_flags(flags or {}, given.get("mode", "sequential")) if not p.keys & wrong]
    if problems:
        raise UserError(_list_problems(problems))
    assert settings is not None
    return settings


def override(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """The upper source wins. An alternative in it replaces its whole group in the lower one, an optimiser replaces the
    settings of other optimisers, and a loss without clipping those of the clipped one.
    """
    given = flatten(upper)
    replaced = {key for group in ALTERNATIVES if any(key in given for key in group) for key in group}
    if "training.optimizer" in given:  # null: the algorithm's own
        replaced |= OPTIMIZER_SPECIFIC_SETTINGS.difference(
            OPTIMIZER_SETTINGS.get(shown(given["training.optimizer"]), ())
        )
    if is_null(given.get("training.clip_range", 0)):
        replaced.add(CLIPPED_VALUES)
    return _merge(without(lower, replaced), upper)


def _merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Merges section by section. A value that should be a section stays as it is, to be reported later."""
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = {**below, **value}
        elif key not in merged or is_null(below) or not isinstance(value, Mapping):
            merged[key] = value
    return merged


def flatten(data: Mapping[str, Any]) -> dict[str, Any]:
    """{"env": {"name": "maze"}} as {"env.name": "maze"}."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            flat.update({f"{key}.{name}": item for name, item in value.items()})
        else:
            flat[key] = value
    return flat


def without(data: Mapping[str, Any], keys: AbstractSet[str]) -> dict[str, Any]:
    """The data without the given settings."""
    kept: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            kept[key] = {name: item for name, item in value.items() if f"{key}.{name}" not in keys}
        elif key not in keys:
            kept[key] = value
    return {key: value for key, value in kept.items() if key not in keys}


def _sections(flags: Mapping[str, Any]) -> dict[str, Any]:
    """{"env.name": "maze"} as {"env": {"name": "maze"}}."""
    sections: dict[str, Any] = {}
    for key, value in flags.items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    return sections


def _validate(data: dict[str, Any]) -> tuple[Settings | None, list[Problem]]:
    """Validates each field, then combinations of those fields that are valid."""
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        problems = [_field_problem(item, k < MAX_LISTED) for k, item in enumerate(error.errors())]
        wrong = frozenset().union(*(problem.keys for problem in problems))
        try:
            settings = Settings.model_validate(without(data, wrong))
        except ValidationError:
            return None, problems
        return None, problems + [p for p in _combination_problems(settings) if not p.keys & wrong]
    return settings, list(_combination_problems(settings))


def _with_all_environments(settings: Settings, is_total_given: bool) -> tuple[Settings, list[Problem]]:
    """Converts num_envs_per_worker, where it applies, to num_envs."""
    each = settings.parallel.num_envs_per_worker
    if settings.mode == "sequential" or each is None:
        return settings, list(_combination_problems(settings))
    if settings.given_helpers is None and settings.traits.helpers == "actors" and settings.mode == "parallel":
        message = f"parallel.num_envs_per_worker={each} needs parallel.num_workers: give both, or env.num_envs"
        return settings, [Problem(frozenset({"parallel.num_workers", "parallel.num_envs_per_worker"}), message)]
    placement = launched() if settings.mode == "distributed" else None
    num_workers = settings.processes(cores.observe().physical, placement.world_size if placement else None)
    if is_total_given and settings.env.num_envs != num_workers * each:
        keys = frozenset({"env.num_envs", "parallel.num_workers", "parallel.num_envs_per_worker"})
        product = f"num_workers * num_envs_per_worker = {num_workers} * {each} = {num_workers * each}"
        message = f"env.num_envs={settings.env.num_envs} is not {product}; leave one of them out"
        return settings, [Problem(keys, message)]
    parallel = {"num_workers": num_workers, "num_envs_per_worker": None}
    settings = settings.model_copy(
        update={
            "env": settings.env.model_copy(update={"num_envs": num_workers * each}),
            "parallel": settings.parallel.model_copy(update=parallel),
        }
    )
    return settings, list(_combination_problems(settings))


def _field_problem(error: Any, is_listed: bool) -> Problem:
    """A suggestion takes time: only a problem that the user will see gets one."""
    location = [str(part) for part in error["loc"]]
    key = ".".join(location[:2])
    name = ".".join(map(shown, location[:2]))
    if error["type"] == "extra_forbidden":
        return Problem(frozenset({key}), f"{name}: unknown setting{_suggestion(location) if is_listed else ''}")
    message = error["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    return Problem(frozenset({key}), f"{name}={shown(error['input'])}: {message}")


def _suggestion(location: list[str]) -> str:
    everywhere = {field.name: field.key for field in setting_fields()}
    known = list(Settings.model_fields)
    if len(location) > 1:
        known = [field.name for field in setting_fields() if field.section == location[0]]
    if location[-1] in everywhere:
        return f"; did you mean {everywhere[location[-1]]}?"
    return hint(location, known)


def hint(location: list[str], known: Sequence[str]) -> str:
    """A suggestion for an unknown name, the last of `location`, given the known ones."""
    close = difflib.get_close_matches(location[-1], known, n=1)
    if close:
        return f"; did you mean {'.'.join([*location[:-1], close[0]])}?"
    return f"; known here: {', '.join(known)}"


def _combination_problems(settings: Settings) -> Iterator[Problem]:
    parallel = settings.parallel
    if parallel.sync_strategy == "parameters" and parallel.wire_dtype != "float32":
        yield Problem(
            frozenset({"parallel.sync_strategy", "parallel.wire_dtype"}),
            f"parallel.wire_dtype={parallel.wire_dtype} applies to gradients, but parallel.sync_strategy=parameters; "
            "leave one of them out",
        )
    if parallel.sync_strategy == "gradients" and parallel.sync_updates != 1 and settings.traits.helpers != "workers":
        yield Problem(
            frozenset({"parallel.sync_strategy", "parallel.sync_updates"}),
            f"parallel.sync_updates={parallel.sync_updates} needs parallel.sync_strategy=parameters; gradients are "
            "synchronised at every optimiser step",
        )
    is_asynchronous = settings.traits.helpers_in(settings.mode) == "actors"
    if is_asynchronous and parallel.deterministic and None in (settings.given_helpers, settings.hardware.num_threads):
        name = "num_workers" if settings.mode == "parallel" else "workers_per_rank"
        yield Problem(
            frozenset({"parallel.deterministic", f"parallel.{name}", "hardware.num_threads"}),
            f"parallel.deterministic=true needs parallel.{name} and hardware.num_threads: numbers chosen by "
            "measurement may differ from run to run",
        )
    if settings.policy.init_with == "model":
        keys = frozenset({"policy.init_with", "policy.init_from"})
        if settings.policy.init_from is None:
            yield Problem(keys, "policy.init_with=model needs policy.init_from: the run or checkpoint to begin with")
        elif settings.traits.helpers_in(settings.mode) == "workers":
            yield Problem(keys, f"policy.init_with=model: not with the workers of {settings.algorithm}; use parameters")
    if settings.traits.has_minibatches:
        yield from _minibatch_problems(settings)


def _minibatch_problems(settings: Settings) -> Iterator[Problem]:
    training, size = settings.training, settings.rollout_size
    keys = frozenset({"training.batch_size", "training.n_minibatches", "training.n_steps", "env.num_envs"})
    if training.batch_size is not None and training.n_minibatches is not None:
        yield Problem(
            keys,
            f"training.batch_size={training.batch_size} and training.n_minibatches={training.n_minibatches}: "
            "give one of them",
        )
        return
    if settings.traits.clipped_loss is None and training.clip_range is None:
        message = f"training.clip_range=null: {settings.algorithm} needs a limit; use 0.2"
        yield Problem(frozenset({"training.clip_range"}), message)
    sizes = settings.valid_batch_sizes()
    if training.n_minibatches is not None:
        name, divided = "training.n_steps", training.n_steps
        if settings.has_whole_trajectories:
            name, divided = "env.num_envs", settings.env.num_envs
        if divided % training.n_minibatches:
            choices = _nearest([size // n for n in sizes], training.n_minibatches)
            yield Problem(
                keys,
                f"training.n_minibatches={training.n_minibatches} does not divide {name}={divided}; use {choices}",
            )
    elif settings.batch_size not in sizes:
        unit = "trajectories" if settings.has_whole_trajectories else "steps per environment"
        relation = "does not divide" if size % settings.batch_size else f"does not give whole {unit} in"
        yield Problem(
            keys,
            f"training.batch_size={settings.batch_size} {relation} n_steps * num_envs = "
            f"{training.n_steps} * {settings.env.num_envs} = {size}; use {_nearest(sizes, settings.batch_size)}",
        )


def _nearest(choices: list[int], wanted: int) -> str:
    nearest = sorted(choices, key=lambda choice: abs(math.log(choice / wanted)))[:2]
    return " or ".join(str(choice) for choice in sorted(nearest, reverse=True))


def _unused_settings(given: Mapping[str, Any], algorithm: Algorithm) -> list[Problem]:
    values = flatten(given)
    optimizer, is_clipped = values.get("training.optimizer"), not is_null(values.get("training.clip_range", 0))
    reasons = algorithm.unread(None if is_null(optimizer) else shown(optimizer), is_clipped)
    if not is_clipped and is_null(values.get(CLIPPED_VALUES)):
        reasons = {key: reason for key, reason in reasons.items() if key != CLIPPED_VALUES}  # null too: it agrees
    return [
        Problem(frozenset({key}), f"{key}={shown(values[key])} has no effect with {reason}; remove it")
        for key, reason in reasons.items()
        if key in values
    ]


def _unused_flags(flags: Mapping[str, Any], mode: object) -> list[Problem]:
    """Flags of another mode. A file may hold such sections, as it can serve several modes. `--backend gloo` is allowed
    in every mode: there is no other.
    """
    sections = {"parallel": ("parallel", "distributed"), "cluster": ("distributed",)}
    flags = {key: value for key, value in flags.items() if key != "cluster.distributed_backend"}
    return [
        Problem(frozenset({key}), f"{key}={shown(value)} has no effect in mode {shown(mode)}; remove it")
        for key, value in flags.items()
        if mode not in sections.get(key.split(".")[0], (mode,))
    ]


def _list_problems(problems: list[Problem]) -> str:
    messages = list(dict.fromkeys(problem.message for problem in problems))
    if len(messages) == 1:
        return messages[0]
    return "\n  ".join([f"{len(messages):,} problems in the settings:", *first_of(messages)])


def first_of(messages: Sequence[str]) -> list[str]:
    """As many as a terminal shows, and how many more there are."""
    others = len(messages) - MAX_LISTED
    return [*messages[:MAX_LISTED], *([f"and {others:,} more"] if others > 0 else [])]
