"""Late ranks stop early: the rule of DD-PPO (arXiv 1911.00357, section 3).

Once 60 % of the ranks have their whole rollout, the others end theirs, if they have at least 25 % of it. Who is late
depends on the clock, so a run with this rule cannot be repeated bit for bit.
"""

from __future__ import annotations

from rlcluster.exchange.ranks import Ranks

FINISHED_SHARE = 0.60
MIN_SHARE = 0.25


class Race:
    """One rollout of all ranks."""

    def __init__(self, ranks: Ranks, n_steps: int, update: int) -> None:
        self._ranks, self._n_steps, self._name = ranks, n_steps, f"rollout/{update}"

    def is_over(self, steps: int) -> bool:
        """True if this rank's rollout ends after so many steps."""
        if steps == self._n_steps:
            if self._ranks.count(self._name) >= FINISHED_SHARE * self._ranks.world_size:
                self._ranks.mark(f"{self._name}/over")
            return True
        return steps >= MIN_SHARE * self._n_steps and self._ranks.is_marked(f"{self._name}/over")
