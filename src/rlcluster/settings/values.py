"""Types of settings. Any value may be given as a string and is converted by its declared type: `5e-4` to a number, `no`
to a boolean.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

NULLS = ("null", "~", "")


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


Count = Annotated[int, BeforeValidator(parse_count), Field(ge=1)]
Natural = Annotated[int, BeforeValidator(parse_count), Field(ge=0)]
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
Sizes = Annotated[tuple[Count, ...], BeforeValidator(parse_sizes), Field(min_length=1)]


def is_null(value: object) -> bool:
    """True for "not set": null in JSON, and its spellings in YAML and in flags."""
    return value is None or (isinstance(value, str) and value in NULLS)
