"""What a worker of A3C does: pull the shared parameters, play a rollout, step the shared parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlcluster import machine
from rlcluster.config import Settings
from rlcluster.interruption import StopRequest
from rlcluster.loops.helpers import serve

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

    from rlcluster.actor import ActorState
    from rlcluster.learner import LearnReport


class WorkerState(NamedTuple):
    """What a worker has of its own."""

    actor: ActorState
    normalizer: tuple[NDArray[float64], NDArray[float64]]  # returns, moments


@dataclass(frozen=True)
class Assignment:
    """What a worker must know to begin."""

    settings_json: str  # as if its environments were all
    envs: range
    restored: WorkerState | None
    training: Path
    num_workers: int
    cores: Sequence[int]  # to be tied to; empty: the system decides


class MakeUpdate(NamedTuple):
    """An order: one rollout and one step."""

    progress: float  # share of the budget that is spent
    updates: int  # of the run so far


class TellState(NamedTuple):
    """An order: tell the state of the worker."""


class UpdateMade(NamedTuple):
    """The answer to MakeUpdate."""

    report: LearnReport
    steps: int
    staleness: int  # steps by others between its pull and its own step
    episodes: NDArray[float64]  # [K, 4] of those that finished
    rollout_seconds: float
    learn_seconds: float


def work(number: int, stop: StopRequest, assignment: Assignment, pipe: Any) -> None:
    """The process of worker `number`."""
    settings = Settings.model_validate_json(assignment.settings_json)
    machine.limit_threads(settings.hardware.num_threads or 1)
    machine.pin_to(assignment.cores)
    import torch

    from rlcluster.actor import make_actor
    from rlcluster.collectives import Ranks
    from rlcluster.learner import Learner
    from rlcluster.policy import make_policy
    from rlcluster.rollout import RolloutShape, mapped_rollout
    from rlcluster.shared_parameters import SharedTraining

    restored, ranks = assignment.restored, Ranks()
    actor = make_actor(settings, assignment.envs, restored.actor if restored is not None else None)
    policy = make_policy(settings.policy, actor.environments.spec, settings.env.seed, settings.hardware.kernels)
    size = sum(tensor.numel() for tensor in policy.parameters())
    shared = SharedTraining(assignment.training, size, assignment.num_workers)
    shape = RolloutShape(settings.training.n_steps, len(assignment.envs), actor.environments.spec)
    on_file = mapped_rollout(shape, settings.hardware.rollout_dir)
    learner = Learner(settings, policy, assignment.envs, ranks, shared)
    if restored is not None:
        learner.normalizer.set(*(torch.from_numpy(part) for part in restored.normalizer))
        if restored.actor.simulators is None:
            learner.normalizer.forget_episodes()

    def follow(order: MakeUpdate | TellState) -> UpdateMade | WorkerState:
        if isinstance(order, TellState):
            kept = learner.normalizer.state()
            return WorkerState(actor.state(), (kept["returns"].numpy(), kept["moments"].numpy()))
        ranks.timer.reset()
        learner.updates = order.updates
        steps_before = int(shared.steps.sum())
        learner.pull()
        with ranks.timer("rollout"):
            rollout = actor.collect(policy, steps_before, into=on_file)
        with ranks.timer("learn"):
            report = learner.learn([rollout], order.progress)
        staleness = int(shared.steps.sum()) - steps_before
        shared.steps[number] += 1
        return UpdateMade(
            report,
            rollout.rewards.numel(),
            staleness,
            actor.finished_episodes().numpy(),
            ranks.timer.seconds("rollout"),
            ranks.timer.seconds("learn"),
        )

    serve(pipe, stop, follow)
    actor.environments.close()
