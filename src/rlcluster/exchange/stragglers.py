"""Straggler preemption, as in DD-PPO (arXiv 1911.00357, section 3).

Once 60 % of the ranks have finished their rollout, the others end theirs early, if they have at least 25 % of it. Which
ranks are late depends on timing, so runs with this rule are not reproducible bit for bit.
"""

from __future__ import annotations

from rlcluster.exchange.ranks import Ranks

FINISHED_SHARE = 0.60
MIN_SHARE = 0.25


class Race:
    """One rollout over all ranks."""

    def __init__(self, ranks: Ranks, n_steps: int, update: int) -> None:
        self._ranks, self._n_steps, self._name = ranks, n_steps, f"rollout/{update}"

    def is_over(self, steps: int) -> bool:
        """Whether this rank's rollout ends after `steps` steps."""
        if steps == self._n_steps:
            if self._ranks.count(self._name) >= FINISHED_SHARE * self._ranks.world_size:
                self._ranks.mark(f"{self._name}/over")
            return True
        return steps >= MIN_SHARE * self._n_steps and self._ranks.is_marked(f"{self._name}/over")
