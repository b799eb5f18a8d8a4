"""Train and compare reinforcement-learning algorithms on CPUs, from a laptop to a cluster.

The Python interface is what `__all__` names, and nothing else. It is the command line's twin: the same settings, the
same run directories, the same errors (`UserError`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlcluster.api import Run, evaluate, load, read, train
    from rlcluster.evaluation.evaluate import Agent
    from rlcluster.networks.policy import ImpalaTrunk, NatureTrunk
    from rlcluster.runs.evaluations import Evaluation
    from rlcluster.runs.loggers import Logger
    from rlcluster.system.errors import UserError
    from rlcluster.training.callbacks import Callback

__version__ = "0.1.0"
__all__ = [
    "Agent",
    "Callback",
    "Evaluation",
    "ImpalaTrunk",
    "Logger",
    "NatureTrunk",
    "Run",
    "UserError",
    "__version__",
    "evaluate",
    "load",
    "read",
    "train",
]

# Imported when they are first used: numpy, torch and pydantic take seconds together.
_HOMES = {
    **dict.fromkeys(("Run", "evaluate", "load", "read", "train"), "rlcluster.api"),
    "Agent": "rlcluster.evaluation.evaluate",
    "Evaluation": "rlcluster.runs.evaluations",
    **dict.fromkeys(("ImpalaTrunk", "NatureTrunk"), "rlcluster.networks.policy"),
    "Logger": "rlcluster.runs.loggers",
    "UserError": "rlcluster.system.errors",
    "Callback": "rlcluster.training.callbacks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rlcluster' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
