"""The memory that a run needs at least, estimated from its plan before anything is allocated.

Too much is not refused by the system but promised, and then taken back by killing a process in the middle of the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rlcluster.plan import Plan, RankPlan
from rlcluster.settings.algorithms import OPTIMIZER_STATISTICS
from rlcluster.settings.games import procgen_game
from rlcluster.settings.schema import Settings
from rlcluster.settings.values import is_import_path
from rlcluster.system import machine
from rlcluster.system.errors import UserError
from rlcluster.system.launcher import Placement

if TYPE_CHECKING:  # numpy may be loaded only once the threads are limited
    from rlcluster.environments.interface import EnvironmentSpec

# Measured: a process with torch holds 237 MB of its own, a Procgen engine 0.12 (bigfish) to 0.6 MB (coinrun).
PROCESS_BYTES = 200_000_000
ENGINE_BYTES = 120_000
FLOAT_BYTES = 4

REMEDIES = {
    "rollouts": "use fewer environments (--num-envs) or steps (--n-steps), or rollouts on disk (--rollout-dir)",
    "environments": "use fewer environments (--num-envs)",
    "network": "use a smaller network (--network, --hidden-sizes)",
    "processes": "use fewer processes (--num-workers)",
}


class Need(NamedTuple):
    """Bytes, by purpose."""

    rollouts: int
    environments: int
    network: int
    processes: int  # those that are still to be started


def refuse_too_little_memory(settings: Settings, plan: Plan, placement: Placement, spec: EnvironmentSpec) -> None:
    """Once per machine, for all its ranks."""
    if placement.local_rank == 0:
        own = need(settings, plan.ranks[placement.rank], spec)
        refuse(Need(*(placement.local_world_size * part for part in own)), machine.memory_available_gb())


def refuse_too_many_processes(num_processes: int) -> None:
    """Before any of them is started."""
    refuse(Need(0, 0, 0, num_processes * PROCESS_BYTES), machine.memory_available_gb())


def refuse(needed: Need, available_gb: float) -> None:
    total = sum(needed) / machine.BYTES_PER_GB
    if total > available_gb:
        largest = max(needed._fields, key=lambda name: int(getattr(needed, name)))
        share = getattr(needed, largest) / machine.BYTES_PER_GB
        raise UserError(
            f"the run needs at least {total:,.1f} GB of memory ({share:,.1f} GB for its {largest}), but "
            f"{available_gb:,.1f} GB are available; {REMEDIES[largest]}"
        )


def need(settings: Settings, own: RankPlan, spec: EnvironmentSpec) -> Need:
    """Of one rank and its helpers."""
    return Need(
        rollouts=_rollout_bytes(settings, own, spec),
        environments=len(own.envs) * ENGINE_BYTES if procgen_game(settings.env.name) else 0,
        network=_network_bytes(settings, own, spec),
        processes=len(own.helpers) * PROCESS_BYTES,
    )


def _rollout_bytes(settings: Settings, own: RankPlan, spec: EnvironmentSpec) -> int:
    """Rollouts in memory: none with a `rollout_dir`. A learner that shuffles the samples of several actors copies their
    observations first.
    """
    from rlcluster.learning.rollout import RolloutShape

    def shape(envs: range) -> RolloutShape:
        return RolloutShape(settings.training.n_steps, len(envs), spec)

    has_actors = settings.traits.helpers_in(settings.mode) == "actors"
    copies = 0
    if has_actors and len(own.helpers) > 1 and not settings.learns_in_one_pass:
        copies = shape(own.envs).columns()["observations"].num_bytes
    if settings.hardware.rollout_dir is not None:
        return copies
    slots = settings.parallel.slots_per_actor if has_actors else 1
    return copies + slots * sum(shape(helper.envs).space for helper in own.helpers or (own,))


def _network_bytes(settings: Settings, own: RankPlan, spec: EnvironmentSpec) -> int:
    """One optimiser with its statistics; parameters and gradients of each process that learns; parameters of actors."""
    parameters = _count_parameters(settings, spec)
    numbers = 2 + len(OPTIMIZER_STATISTICS[settings.optimizer])
    per_helper = 2 if settings.traits.helpers == "workers" else 1
    return FLOAT_BYTES * parameters * (numbers + per_helper * len(own.helpers))


def _count_parameters(settings: Settings, spec: EnvironmentSpec) -> int:
    """Without allocating them: tensors on the meta device have a shape and no memory."""
    import torch

    from rlcluster.learning.flat import count_parameters
    from rlcluster.networks.policy import ActorCritic, choose_network, make_policy

    network = choose_network(settings.policy, spec)
    if is_import_path(network):  # it need not work on the meta device
        return count_parameters(make_policy(settings.policy, spec, settings.env.seed, settings.hardware.kernels))
    with torch.device("meta"):
        return count_parameters(ActorCritic(spec, network, settings.policy.hidden_sizes))
