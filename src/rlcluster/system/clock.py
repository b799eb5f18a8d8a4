"""Timing of a run and of the phases of its updates."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds since construction, plus the `seconds_before` that a resumed run had already taken."""

    def __init__(self, seconds_before: float = 0.0) -> None:
        self._start = time.perf_counter() - seconds_before

    def seconds(self) -> float:
        return time.perf_counter() - self._start


class PhaseTimer:
    """Seconds spent in each phase of one update. Nested phases are not counted twice."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        self._book()
        self._open.append(phase)
        try:
            yield
        finally:
            self._book()
            self._open.pop()

    def seconds(self, phase: str) -> float:
        return self._seconds.get(phase, 0.0)

    def reset(self) -> None:
        self._seconds.clear()

    def _book(self) -> None:
        """Adds the time since the last change of phase to the innermost open phase."""
        now = time.perf_counter()
        if self._open:
            phase = self._open[-1]
            self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._since
        self._since = now
