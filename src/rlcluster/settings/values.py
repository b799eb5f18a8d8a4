"""Types of settings. Any value may be given as a string and is converted by its declared type: `5e-4` to a number, `no`
to a boolean.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import BeforeValidator, Field, PlainSerializer

NULLS = ("null", "~", "")
MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 4095  # Linux


def reject_bool(value: object) -> object:
    """`true` is not the number 1."""
    if isinstance(value, bool):
        raise ValueError("should be a number, not a boolean")
    return value


def parse_count(value: object) -> object:
    """1_000_000, "25e6" and 25e6 are whole numbers; 0.5 is not."""
    value = reject_bool(value)
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            try:
                value = float(value)
            except ValueError:
                return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def parse_duration(value: object) -> object:
    """Hours as a plain number ("0.5"), or with a unit: "90s", "30m", "2h". The result is in seconds."""
    match = re.fullmatch(r"([0-9.eE+-]+)\s*([smh]?)", str(value).strip())
    if match is None:
        raise ValueError("should be hours (0.5) or a number with a unit (90s, 30m, 2h)")
    try:
        number = float(match[1])
    except ValueError:
        raise ValueError("should be hours (0.5) or a number with a unit (90s, 30m, 2h)") from None
    return number * {"s": 1.0, "m": 60.0, "h": 3600.0, "": 3600.0}[match[2]]


def parse_sizes(value: object) -> object:
    """A list, a number, or a string such as "64,64"."""
    if isinstance(value, int):
        return [value]
    return [part for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def parse_path(value: object) -> object:
    """A path in which `~` stands for the home folder, as in a shell: a shell itself expands neither `--flag=~/x` nor
    a settings file.
    """
    if not isinstance(value, str):
        return value
    try:
        length = max(len(name.encode()) for name in value.split("/"))
    except UnicodeEncodeError:
        raise ValueError("is not UTF-8; rename it") from None
    if "\0" in value:
        raise ValueError("has a null character; leave it out")
    if length > MAX_NAME_BYTES or len(value.encode()) > MAX_PATH_BYTES:
        limits = f"{MAX_NAME_BYTES} bytes for a name and {MAX_PATH_BYTES} for a path"
        raise ValueError(f"is too long (a name of {length}, a path of {len(value.encode())}): at most {limits}")
    return _without_tilde(value)


def _without_tilde(path: str) -> str:
    """`./~` is a folder of that name; as an absolute path it stays so wherever it is passed on."""
    if not str(Path(path)).startswith("~"):
        return path
    if not path.startswith("~"):
        return str(Path(path).absolute())
    try:
        return str(Path(path).expanduser())
    except RuntimeError:
        user = path.split("/", maxsplit=1)[0]
        raise ValueError(f"there is no home folder {user}; for a folder of that name write ./{user}") from None


class Interval(NamedTuple):
    """Environment steps, or seconds."""

    steps: int | None
    seconds: float


def parse_interval(text: str) -> Interval:
    """Steps as a plain number ("1e6"), or a time with a unit: "90s", "30m", "2h"."""
    if text[-1:] in "smh":
        seconds = parse_duration(text)
        assert isinstance(seconds, float)
        return Interval(None, seconds)
    steps = parse_count(text)
    if not isinstance(steps, int) or steps < 1:
        raise ValueError("should be environment steps (1e6) or a time with a unit (90s, 30m, 2h)")
    return Interval(steps, 0.0)


def check_interval(value: object) -> str:
    text = str(value).strip()
    interval = parse_interval(text)
    if interval.steps is None and not 0 < interval.seconds < float("inf"):
        raise ValueError("should be more than 0 seconds")
    return text


def parse_mapping(value: object) -> object:
    """A mapping, or JSON text as a flag gives it. YAML scalars of a settings file arrive as text: each is read as YAML
    would read it.
    """
    if isinstance(value, str):
        value, is_exact = _from_json(value), True
    else:
        is_exact = False
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError('should be a mapping, as JSON on the command line: {"size": 7}')
    return value if is_exact else _plain(value)


def _from_json(text: str) -> object:
    """None if it is not JSON, or has numbers that no other JSON reader knows."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _scalar(value) if isinstance(value, str) else value


def _scalar(text: str) -> object:
    """A number, a boolean or null as YAML writes them; anything else is text."""
    try:
        value = yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError):
        return text
    is_plain = value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))
    return value if is_plain else text


def parse_wrappers(value: object) -> object:
    """["my_module:Scale", {"my_module:Clip": {"low": 0}}] as path and arguments each; text is JSON, or paths between
    commas.
    """
    is_exact = isinstance(value, str)
    if isinstance(value, str):
        parsed = _from_json(value)
        value = parse_names(value) if parsed is None else parsed
    if not isinstance(value, list | tuple) or not all(isinstance(item, str | Mapping | tuple) for item in value):
        raise ValueError('should be a list such as ["my_module:Scale", {"my_module:Clip": {"low": 0}}]')
    wrappers: list[tuple[Any, Any]] = []
    for item in value:
        if isinstance(item, Mapping):
            pairs = ((path, arguments or {}) for path, arguments in item.items())
            wrappers += [(path, arguments if is_exact else _plain(arguments)) for path, arguments in pairs]
        else:
            wrappers.append((item, {}) if isinstance(item, str) else item)
    if not all(isinstance(path, str) and is_import_path(path) for path, _ in wrappers):
        raise ValueError("should be import paths such as my_module:Scale")
    return wrappers


def is_import_path(value: str) -> bool:
    """`my_module:make_network`: code of the user's own."""
    return ":" in value


def parse_names(value: object) -> object:
    """A list, or a string such as "tensorboard,wandb"."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


# Written as JSON text: a settings file read again gives the same types.
Arguments = Annotated[
    dict[str, Any], BeforeValidator(parse_mapping), PlainSerializer(lambda value: json.dumps(value, sort_keys=True))
]
Wrappers = Annotated[
    tuple[tuple[str, dict[str, Any]], ...],
    BeforeValidator(parse_wrappers),
    PlainSerializer(lambda wrappers: json.dumps([{path: arguments} for path, arguments in wrappers])),
]
IntervalText = Annotated[str, BeforeValidator(check_interval)]
Names = Annotated[tuple[str, ...], BeforeValidator(parse_names)]
Count = Annotated[int, BeforeValidator(parse_count), Field(ge=1, lt=2**63)]  # torch's integers are 64-bit
Natural = Annotated[int, BeforeValidator(parse_count), Field(ge=0, lt=2**63)]
BoundedCount = Annotated[Count, Field(le=2**20)]
Level = Annotated[int, BeforeValidator(parse_count), Field(ge=0, lt=2**31)]  # the engine's integers are 32-bit
Seed = Annotated[int, BeforeValidator(parse_count), Field(ge=0, lt=2**63)]
Number = Annotated[float, BeforeValidator(reject_bool), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NonNegative = Annotated[Number, Field(ge=0)]
Fraction = Annotated[Number, Field(ge=0, le=1)]
Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    Field(gt=0, allow_inf_nan=False),
    PlainSerializer(lambda seconds: f"{seconds:.17g}s"),
]
Sizes = Annotated[tuple[BoundedCount, ...], BeforeValidator(parse_sizes), Field(min_length=1)]
PathText = Annotated[str, BeforeValidator(parse_path)]


def is_null(value: object) -> bool:
    """True for "not set": null in JSON, and its spellings in YAML and in flags."""
    return value is None or (isinstance(value, str) and value in NULLS)
