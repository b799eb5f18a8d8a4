"""The process of an IMPALA actor: it fills the slots that the learner names, with parameters from shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlcluster.plan import HelperPlan
from rlcluster.settings.schema import Settings
from rlcluster.system import cores
from rlcluster.system.clock import run_clock
from rlcluster.system.phases import clock
from rlcluster.system.signals import StopRequest
from rlcluster.training.helpers import GetState, serve

if TYPE_CHECKING:
    from rlcluster.learning.actor_state import ActorState
    from rlcluster.runs.episodes import Episode


@dataclass(frozen=True)
class Setup:
    """What an actor needs to start."""

    settings_json: str
    plan: HelperPlan
    restored: ActorState | None
    slots: Path
    num_slots: int
    parameters: Path


class FillSlot(NamedTuple):
    """Command: play a rollout into this slot."""

    slot: int
    version: int | None  # of the parameters to act with; None: the newest


class SlotFilled(NamedTuple):
    """Reply to FillSlot."""

    slot: int
    episodes: list[Episode]  # finished in the rollout
    busy_seconds: float
    idle_seconds: float  # before the command arrived


def act(number: int, stop: StopRequest, setup: Setup, pipe: Any) -> None:
    """The process of actor `number`."""
    cores.limit_threads(setup.plan.threads)
    cores.pin_to(setup.plan.cores)
    from rlcluster.exchange.shared_parameters import SharedParameters
    from rlcluster.learning.actor import make_actor
    from rlcluster.learning.flat import FlatParameters
    from rlcluster.learning.rollout import RolloutShape, Slots
    from rlcluster.networks.policy import make_policy

    settings = Settings.model_validate_json(setup.settings_json)
    actor = make_actor(settings, setup.plan.envs, setup.restored)
    spec = actor.environments.spec
    policy = make_policy(settings.policy, spec, settings.env.seed, settings.hardware.kernels)
    own = FlatParameters(policy).parameters
    parameters = SharedParameters(setup.parameters, len(own))
    shape = RolloutShape(settings.training.n_steps, len(setup.plan.envs), spec)
    slots = Slots(setup.slots, shape, setup.num_slots)
    idle_since = run_clock()

    def handle(command: FillSlot | GetState) -> SlotFilled | ActorState:
        nonlocal idle_since
        if isinstance(command, GetState):
            return actor.state()
        start = run_clock()
        with clock("copy"):
            version = parameters.take(own, command.version)
        with clock("rollout"):
            played = actor.collect(policy, version, into=slots[command.slot])
        end = run_clock()
        idle, idle_since = start - idle_since, end
        return SlotFilled(command.slot, played.episodes, end - start, idle)

    serve(pipe, stop, handle, policy)
    actor.environments.close()
