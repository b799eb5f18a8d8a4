"""The loop that trains an algorithm in a mode: each record of `settings.algorithms` names its loops."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from rlcluster.exchange.ranks import Ranks
    from rlcluster.plan import Plan
    from rlcluster.runs.writer import RunDirectory, SilentRun
    from rlcluster.settings.schema import Settings
    from rlcluster.system.signals import StopRequest
    from rlcluster.training.callbacks import Listener
    from rlcluster.training.progress import Reporter


class Job(NamedTuple):
    """What a loop is given on one rank."""

    settings: Settings
    plan: Plan
    ranks: Ranks
    run: RunDirectory | SilentRun
    stop: StopRequest
    reporter: Reporter
    callbacks: Listener
    initial: dict[str, Any] | None = None  # of a warm start: what the model begins with


class Loop(Protocol):
    def __call__(self, job: Job) -> bool:
        """Trains until the budget is spent (True) or a stop is requested (False)."""


def loop_for(settings: Settings) -> Loop:
    """Imported when it is needed."""
    module = importlib.import_module(f"rlcluster.training.{settings.traits.cells[settings.mode].loop}")
    loop: Loop = module.run
    return loop
