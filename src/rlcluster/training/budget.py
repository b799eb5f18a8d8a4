"""The budget of a run: environment steps, seconds or updates."""

from __future__ import annotations

from rlcluster.settings.schema import BUDGETS, TrainingSettings


class Budget:
    """What a run may spend: environment steps, seconds or updates. The first one that is used up ends the run."""

    def __init__(self, training: TrainingSettings) -> None:
        self._limits: tuple[float | None, ...] = tuple(getattr(training, budget) for budget in BUDGETS)

    def progress(self, steps: int, seconds: float, updates: int) -> float:
        """Share of the budget that is spent, from 0 to 1."""
        spent = zip((steps, seconds, updates), self._limits, strict=True)
        return min(1.0, max(used / limit for used, limit in spent if limit is not None))
