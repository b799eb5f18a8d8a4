"""One record per algorithm, in one table: its loss and targets, the settings it reads, and the loop for each mode.

Validation, documentation and tests of an algorithm follow from its record. To add one, add a record here and, if it has
its own loss, a function in `learning/losses.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Targets = Literal["gae", "vtrace"]
LossName = Literal["ppo_loss", "a2c_loss"]  # functions of learning/losses.py
LoopName = Literal["synchronous", "actor_learner", "hogwild"]  # modules of training/
OptimizerName = Literal["adam", "rmsprop"]
Sections = Mapping[str, Mapping[str, Any]]  # section -> setting -> value

DEFAULT_ALGORITHM = "ppo"

# Settings that only one optimiser reads.
OPTIMIZER_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "adam": ("training.adam_epsilon",),
    "rmsprop": ("training.rmsprop_decay", "training.rmsprop_epsilon"),
}
# What an optimiser keeps for each parameter, beside its step count.
OPTIMIZER_STATISTICS: Mapping[str, tuple[str, ...]] = {"adam": ("exp_avg", "exp_avg_sq"), "rmsprop": ("square_avg",)}
OPTIMIZER_SPECIFIC_SETTINGS = frozenset(key for keys in OPTIMIZER_SETTINGS.values() for key in keys)
CLIPPED_VALUES = "training.clip_value_range"  # part of the clipped loss


class Cell(NamedTuple):
    """An algorithm in one mode."""

    loop: LoopName
    note: str = "yes"  # as in the README's table


@dataclass(frozen=True)
class Algorithm:
    """Everything that distinguishes an algorithm."""

    name: str
    targets: Targets  # vtrace corrects the policy lag, with the current policy's values
    loss: LossName
    optimizer: OptimizerName  # by default
    cells: Mapping[str, Cell]  # by mode
    # The algorithm-specific settings that this one reads. Setting any other is an error.
    reads: tuple[str, ...]
    # The helper processes of a rank outside mode sequential: IMPALA's actors act, A3C's workers act and learn.
    helpers: Literal["actors", "workers"] | None = None
    clipped_loss: LossName | None = None  # the loss if training.clip_range, which may be null, is given
    batch_size: int = 1024  # the default is the valid size nearest to this
    defaults: Sections = field(default_factory=dict)  # where they differ from the schema's

    @property
    def has_minibatches(self) -> bool:
        """If False, an update is one optimiser step on the whole rollout."""
        return "training.batch_size" in self.reads

    def helpers_in(self, mode: str) -> Literal["actors", "workers"] | None:
        """The helper processes of a rank in this mode."""
        return None if mode == "sequential" else self.helpers

    def optimizer_for(self, given: str | None) -> str:
        """The optimiser in effect, where `given` is `training.optimizer`."""
        return given if given is not None and "training.optimizer" in self.reads else self.optimizer

    def unread(self, optimizer: str | None, is_clipped: bool = True) -> dict[str, str]:
        """The settings that a run with this `training.optimizer` does not read, and why. `is_clipped` is False if
        `training.clip_range` is null.
        """
        chosen = self.optimizer_for(optimizer)
        others = OPTIMIZER_SPECIFIC_SETTINGS.difference(OPTIMIZER_SETTINGS.get(chosen, OPTIMIZER_SPECIFIC_SETTINGS))
        reason = f"training.optimizer={chosen}" if "training.optimizer" in self.reads else self.name
        unused = [key for key in ALGORITHM_SPECIFIC_SETTINGS if key not in self.reads]
        unclipped = {} if is_clipped or self.clipped_loss is None else {CLIPPED_VALUES: "training.clip_range=null"}
        return {**dict.fromkeys(sorted(others), reason), **unclipped, **dict.fromkeys(unused, self.name)}


_SYNCHRONOUS = {mode: Cell("synchronous") for mode in ("sequential", "parallel", "distributed")}
_MINIBATCHES = ("training.batch_size", "training.n_minibatches", "training.n_epochs")
_CLIPPING = ("training.clip_range", "training.clip_value_range", "training.target_kl")
_VTRACE = ("training.rho_bar", "training.c_bar")
_ACTORS = ("parallel.deterministic", "parallel.slots_per_actor")
_GRADIENTS = ("training.optimizer", "parallel.sync_strategy", "parallel.wire_dtype")

# arXiv 1602.01783 and its usual synchronous form: n = 5, 16 environments, RMSProp 7e-4, gamma .99, advantages not
# normalised.
_A2C_DEFAULTS: Sections = {
    "env": {"num_envs": 16},
    "training": {
        "n_steps": 5,
        "learning_rate": 7e-4,
        "gamma": 0.99,
        "gae_lambda": 1.0,
        "normalize_advantages": False,
    },
}
# Chosen on Procgen (docs/settings.md): short rollouts in minibatches, with PPO's clipped loss and its optimiser. The
# value loss has a fifth of PPO's weight, for its gradient outweighs the policy's. The paper's IMPALA is
# configs/impala_paper.yaml.
_IMPALA_DEFAULTS: Sections = {
    "env": {"num_envs": 64},
    "training": {"n_steps": 64, "n_epochs": 1, "value_coefficient": 0.1},
}

_RECORDS = (
    Algorithm(
        name="ppo",
        targets="gae",
        loss="ppo_loss",
        optimizer="adam",
        cells=_SYNCHRONOUS,
        reads=(*_MINIBATCHES, *_CLIPPING, *_GRADIENTS, "parallel.preempt_stragglers"),
    ),
    Algorithm(
        name="a2c",
        targets="gae",
        loss="a2c_loss",
        optimizer="rmsprop",
        cells=_SYNCHRONOUS,
        reads=(*_GRADIENTS, "parallel.preempt_stragglers"),
        defaults=_A2C_DEFAULTS,
    ),
    Algorithm(
        name="impala",
        targets="vtrace",
        loss="a2c_loss",
        clipped_loss="ppo_loss",
        optimizer="adam",
        batch_size=512,
        cells={
            "sequential": Cell("synchronous", "yes, without lag"),
            "parallel": Cell("actor_learner", "actors and a learner"),
            "distributed": Cell("actor_learner", "actors and a learner on each rank"),
        },
        reads=(*_MINIBATCHES, *_CLIPPING, *_VTRACE, *_ACTORS, *_GRADIENTS, "parallel.workers_per_rank"),
        helpers="actors",
        defaults=_IMPALA_DEFAULTS,
    ),
    Algorithm(
        name="a3c",
        targets="gae",
        loss="a2c_loss",
        optimizer="rmsprop",  # its workers share the statistics
        cells={
            "sequential": Cell("synchronous", "one worker: A2C"),
            "parallel": Cell("hogwild", "workers without locks"),
            "distributed": Cell("hogwild", "workers without locks on each rank, averaged periodically"),
        },
        reads=("training.optimizer", "parallel.workers_per_rank"),
        helpers="workers",
        defaults=_A2C_DEFAULTS,
    ),
)
ALGORITHMS: dict[str, Algorithm] = {record.name: record for record in _RECORDS}
ALGORITHM_SPECIFIC_SETTINGS = tuple(dict.fromkeys(key for record in _RECORDS for key in record.reads))
