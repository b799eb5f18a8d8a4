"""Words that several reports share."""

from __future__ import annotations

from collections.abc import Iterable


def joined(names: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`"""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
