"""The table that is the product: which loop trains which algorithm in which mode."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rlcluster.exchange.ranks import Ranks
    from rlcluster.runs.writer import RunDirectory, SilentRun
    from rlcluster.settings.schema import Settings
    from rlcluster.system.console import Reporter
    from rlcluster.system.signals import StopRequest

# (algorithm, mode) -> module of this package that holds `run`; imported when it is needed.
LOOPS: dict[tuple[str, str], str] = {
    ("ppo", "sequential"): "synchronous",
    ("ppo", "parallel"): "synchronous",  # the same loop: only its ranks differ
    ("ppo", "distributed"): "synchronous",
    ("a2c", "sequential"): "synchronous",
    ("a2c", "parallel"): "synchronous",
    ("a2c", "distributed"): "synchronous",
    ("impala", "sequential"): "synchronous",  # the actor has just the parameters of the learner: no lag
    ("impala", "parallel"): "actor_learner",
    ("impala", "distributed"): "actor_learner",  # on each rank
    ("a3c", "sequential"): "synchronous",  # one worker: A2C
    ("a3c", "parallel"): "hogwild",
    ("a3c", "distributed"): "hogwild",  # on each rank; their parameters are averaged
}


class Loop(Protocol):
    def __call__(
        self, settings: Settings, ranks: Ranks, run: RunDirectory | SilentRun, stop: StopRequest, reporter: Reporter
    ) -> bool:
        """Trains until the budget is spent (True) or a stop is requested (False)."""


def loop_for(algorithm: str, mode: str) -> Loop:
    """The loop of a cell of the table."""
    module = importlib.import_module(f"rlcluster.training.{LOOPS[algorithm, mode]}")
    loop: Loop = module.run
    return loop
