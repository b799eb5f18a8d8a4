"""Collect, learn, repeat: PPO, A2C, and IMPALA without lag; each rank plays its environments itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rlcluster import actor, machine
from rlcluster.actor import make_actor
from rlcluster.collectives import Ranks
from rlcluster.config import Settings
from rlcluster.learner import Learner
from rlcluster.loops import training
from rlcluster.loops.training import Updated
from rlcluster.machine import Memory
from rlcluster.policy import make_policy
from rlcluster.rollout import Rollout, RolloutShape, Slots, slots_file
from rlcluster.stragglers import Race


class Synchronous:
    """An actor and a learner that take turns."""

    def __init__(self, settings: Settings, ranks: Ranks, restored: dict[str, Any] | None) -> None:
        self._settings, self._ranks, self._timer = settings, ranks, ranks.timer
        share = ranks.share_of(settings.env.num_envs)
        num_threads = machine.num_threads(settings.hardware.num_threads, ranks.place.local_world_size)
        own = actor.share(restored["actor"], share) if restored is not None else None
        self._actor = make_actor(settings, share, own, num_threads)
        spec = self._actor.environments.spec
        self._rollout = self._mapped_rollout(RolloutShape(settings.training.n_steps, len(share), spec))
        policy = make_policy(settings.policy, spec, settings.env.seed, settings.hardware.kernels)
        self.learner = Learner(settings, policy, share, ranks)
        if restored is not None:
            self.learner.restore(restored["learner"])
            if restored["actor"]["simulators"] is None:
                self.learner.normalizer.forget_episodes()

    def update(self, progress: float) -> Updated:
        updates = self.learner.updates
        with self._timer("rollout"):
            rollout = self._actor.collect(self.learner.policy, updates, self._rule_for_stragglers(), self._rollout)
        with self._timer("learn"):
            report = self.learner.learn([rollout], progress)
        return Updated(report, self._actor.finished_episodes(), {})

    def synchronise(self) -> None:
        self.learner.synchronise()

    def memory(self) -> Memory:
        return machine.memory()

    def state(self) -> dict[str, Any]:
        return {"actor": actor.gather(self._actor.state(), self._ranks)}

    def close(self) -> None:
        self._actor.environments.close()

    def _mapped_rollout(self, shape: RolloutShape) -> Rollout | None:
        """On a file in the user's folder; None: in memory."""
        folder = self._settings.hardware.rollout_dir
        if folder is None:
            return None
        with slots_file(shape, 1, Path(folder)) as file:
            return Slots(file.path, shape, 1)[0]

    def _rule_for_stragglers(self) -> Callable[[int], bool] | None:
        if not self._settings.parallel.preempt_stragglers:
            return None
        return Race(self._ranks, self._settings.training.n_steps, self.learner.updates).is_over


run = partial(training.run, Synchronous)
