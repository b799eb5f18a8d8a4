"""The values of flags: what argparse calls for each, with one-line errors."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence

from rlcluster.settings.reading import shown
from rlcluster.settings.values import parse_duration, parse_path


def path(text: str) -> str:
    try:
        return str(parse_path(text))
    except ValueError as error:
        readable = text.encode(errors="backslashreplace").decode()
        raise argparse.ArgumentTypeError(f"{shown(readable)}: {error}") from None


def listed(choices: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """The parser of `a,b`."""

    def parse(text: str) -> tuple[str, ...]:
        parts = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",")))
        unknown = [part for part in parts if part not in choices]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0] or text!r} should be one or more of {', '.join(choices)}")
        return parts

    return parse


def suffixes(choices: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    return lambda text: tuple(f".{part}" for part in listed(choices)(text))


def duration(text: str) -> float:
    """Seconds."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} {error}") from None
    assert isinstance(seconds, float)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} should be above 0")
    return seconds


def finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text} should be a number")
    return number


def positive_number(text: str) -> float:
    number = finite(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text} should be above 0")
    return number


def score_range(text: str) -> tuple[str, tuple[float, float]]:
    """`jumper=3,10`"""
    game, _, ends = text.partition("=")
    low, _, high = (part for part in ends.partition(","))
    if not game or finite(low or "?") >= finite(high or "?"):
        raise argparse.ArgumentTypeError(f"{text} should be GAME=MIN,MAX with MIN below MAX")
    return game, (float(low), float(high))


def world_sizes(text: str) -> tuple[int, ...]:
    return tuple(positive(part.strip()) for part in text.split(","))


def positive(text: str) -> int:
    number = natural(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} should be at least 1")
    return number


def seed(text: str) -> int:
    number = natural(text)
    if number >= 2**63:
        raise argparse.ArgumentTypeError(f"{text} should be below 2**63")
    return number


def natural(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} should be a whole number") from None
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} should not be negative")
    return number
