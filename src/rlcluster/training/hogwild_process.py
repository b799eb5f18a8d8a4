"""The process of an A3C worker: pull the shared parameters, play a rollout, step the shared parameters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlcluster.plan import HelperPlan
from rlcluster.settings.schema import Settings
from rlcluster.system import cores
from rlcluster.system.phases import clock
from rlcluster.system.signals import StopRequest
from rlcluster.training.helpers import GetState, serve

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

    from rlcluster.learning.actor_state import ActorState
    from rlcluster.learning.learner import LearnReport
    from rlcluster.networks.policy import Policy
    from rlcluster.runs.episodes import Episode


class WorkerState(NamedTuple):
    """The state that belongs to one worker."""

    actor: ActorState
    normalizer: tuple[NDArray[float64], NDArray[float64]]  # returns, moments


@dataclass(frozen=True)
class Setup:
    """What a worker needs to start."""

    settings_json: str  # with num_envs as if it were alone
    plan: HelperPlan
    restored: WorkerState | None
    shared: Path  # the file of HogwildParameters
    num_workers: int


class RunUpdate(NamedTuple):
    """Command: one rollout and one optimiser step."""

    progress: float  # share of the budget that is spent
    updates: int  # of the run so far


class UpdateDone(NamedTuple):
    """Reply to RunUpdate."""

    report: LearnReport
    steps: int
    staleness: int  # optimiser steps by others between its pull and its own step
    episodes: list[Episode]  # finished in the rollout
    rollout_seconds: float
    learn_seconds: float


def work(number: int, stop: StopRequest, setup: Setup, pipe: Any) -> None:
    """The process of worker `number`."""
    settings = Settings.model_validate_json(setup.settings_json)
    cores.limit_threads(setup.plan.threads)
    cores.pin_to(setup.plan.cores)
    worker = Worker(number, settings, setup)
    serve(pipe, stop, worker.handle, worker.policy)
    worker.close()


class Worker:
    """Its environments, its replica of the policy, and its view of the shared model."""

    def __init__(self, number: int, settings: Settings, setup: Setup) -> None:
        import torch

        from rlcluster.exchange.ranks import Ranks
        from rlcluster.exchange.shared_parameters import HogwildParameters
        from rlcluster.learning.actor import make_actor
        from rlcluster.learning.learner import Learner
        from rlcluster.learning.model import Model, hogwild_shape
        from rlcluster.learning.rollout import RolloutShape, mapped_rollout
        from rlcluster.networks.policy import make_policy

        envs, restored, ranks = setup.plan.envs, setup.restored, Ranks()
        self._number, self._timer = number, ranks.timer
        self._actor = make_actor(settings, envs, restored.actor if restored is not None else None)
        spec = self._actor.environments.spec
        shape = RolloutShape(settings.training.n_steps, len(envs), spec)
        self._on_file = mapped_rollout(shape, settings.hardware.rollout_dir)
        policy = make_policy(settings.policy, spec, settings.env.seed, settings.hardware.kernels)
        self._shared = HogwildParameters(setup.shared, hogwild_shape(settings, policy, setup.num_workers))
        self._model = Model(settings, policy, envs, ranks, self._shared)
        self._learner = Learner(settings, self._model, ranks)
        if restored is not None:
            self._model.normalizer.set(*(torch.from_numpy(part) for part in restored.normalizer))
            if restored.actor.simulators is None:
                self._model.normalizer.forget_episodes()

    def handle(self, command: RunUpdate | GetState) -> UpdateDone | WorkerState:
        if isinstance(command, GetState):
            kept = self._model.normalizer.state()
            return WorkerState(self._actor.state(), (kept["returns"].numpy(), kept["moments"].numpy()))
        with clock("update"):
            return self._update(command)

    @property
    def policy(self) -> Policy:
        return self._model.policy

    def close(self) -> None:
        self._actor.environments.close()

    def _update(self, command: RunUpdate) -> UpdateDone:
        self._timer.reset()
        self._model.updates = command.updates
        steps_before = int(self._shared.steps.sum())
        with clock("copy"):
            self._model.pull()
        with self._timer("rollout"):
            played = self._actor.collect(self._model.policy, steps_before, into=self._on_file)
        with self._timer("learn"):
            report = self._learner.learn([played.rollout], command.progress)
        staleness = int(self._shared.steps.sum()) - steps_before
        self._shared.steps[self._number] += 1
        return UpdateDone(
            report,
            played.rollout.rewards.numel(),
            staleness,
            played.episodes,
            self._timer.seconds("rollout"),
            self._timer.seconds("learn"),
        )
