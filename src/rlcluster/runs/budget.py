"""The budget of a run: environment steps, seconds or updates, and a reward to reach."""

from __future__ import annotations

from rlcluster.settings.schema import BUDGETS, TrainingSettings


class Budget:
    """What a run may spend: environment steps, seconds or updates. The first one that is used up ends the run, and so
    does the target reward, once it is reached.
    """

    def __init__(self, training: TrainingSettings) -> None:
        self._limits: tuple[float | None, ...] = tuple(getattr(training, budget) for budget in BUDGETS)
        self._target = training.target_reward

    def progress(self, steps: int, seconds: float, updates: int, reward: float | None = None) -> float:
        """Share of the budget that is spent, from 0 to 1. `reward` is the mean over the last 100 episodes; None while
        there are fewer.
        """
        if self._target is not None and reward is not None and reward >= self._target:
            return 1.0
        spent = zip((steps, seconds, updates), self._limits, strict=True)
        return min(1.0, max(used / limit for used, limit in spent if limit is not None))
