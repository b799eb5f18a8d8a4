"""What an actor's process does: it fills the slots that the learner names, with parameters from shared memory."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlcluster.plan import HelperPlan
from rlcluster.settings.schema import Settings
from rlcluster.system import cores
from rlcluster.system.signals import StopRequest
from rlcluster.training.helpers import TellState, serve

if TYPE_CHECKING:
    from rlcluster.learning.actor_state import ActorState
    from rlcluster.runs.episodes import Episode


@dataclass(frozen=True)
class Assignment:
    """What an actor must know to begin."""

    settings_json: str
    plan: HelperPlan
    restored: ActorState | None
    slots: Path
    num_slots: int
    parameters: Path


class Fill(NamedTuple):
    """An order: play a rollout into this slot."""

    slot: int
    version: int | None  # with these parameters; None: with the newest


class Filled(NamedTuple):
    """The answer to Fill."""

    slot: int
    episodes: list[Episode]  # that finished in it
    busy_seconds: float
    idle_seconds: float  # before it, without an order


def act(number: int, stop: StopRequest, assignment: Assignment, pipe: Any) -> None:
    """The process of actor `number`."""
    cores.limit_threads(assignment.plan.threads)
    cores.pin_to(assignment.plan.cores)
    from rlcluster.exchange.shared_parameters import SharedParameters
    from rlcluster.learning.actor import make_actor
    from rlcluster.learning.flat import FlatParameters
    from rlcluster.learning.rollout import RolloutShape, Slots
    from rlcluster.networks.policy import make_policy

    settings = Settings.model_validate_json(assignment.settings_json)
    actor = make_actor(settings, assignment.plan.envs, assignment.restored)
    spec = actor.environments.spec
    policy = make_policy(settings.policy, spec, settings.env.seed, settings.hardware.kernels)
    own = FlatParameters(policy).parameters
    parameters = SharedParameters(assignment.parameters, len(own))
    shape = RolloutShape(settings.training.n_steps, len(assignment.plan.envs), spec)
    slots = Slots(assignment.slots, shape, assignment.num_slots)
    idle_since = time.perf_counter()

    def follow(order: Fill | TellState) -> Filled | ActorState:
        nonlocal idle_since
        if isinstance(order, TellState):
            return actor.state()
        start = time.perf_counter()
        version = parameters.take(own, order.version)
        played = actor.collect(policy, version, into=slots[order.slot])
        end = time.perf_counter()
        idle, idle_since = start - idle_since, end
        return Filled(order.slot, played.episodes, end - start, idle)

    serve(pipe, stop, follow)
    actor.environments.close()
