"""Collect, learn, repeat: PPO, A2C, and IMPALA without lag; each rank plays its environments itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from rlcluster.exchange.ranks import Ranks
from rlcluster.exchange.stragglers import Race
from rlcluster.learning import actor
from rlcluster.learning.actor import make_actor
from rlcluster.learning.learner import Learner
from rlcluster.learning.rollout import RolloutShape, mapped_rollout
from rlcluster.networks.policy import make_policy
from rlcluster.plan import Plan
from rlcluster.settings.schema import Settings
from rlcluster.system import machine
from rlcluster.system.machine import Memory
from rlcluster.training import loop, pending
from rlcluster.training.loop import Updated
from rlcluster.training.pending import Ready, trajectories


class Synchronous:
    """An actor and a learner that take turns."""

    def __init__(self, settings: Settings, plan: Plan, ranks: Ranks, restored: dict[str, Any] | None) -> None:
        self._settings, self._ranks, self._timer = settings, ranks, ranks.timer
        share = plan.ranks[ranks.rank].envs
        own = actor.share(restored["actor"], share) if restored is not None else None
        self._actor = make_actor(settings, share, own, plan.ranks[ranks.rank].threads)
        spec = self._actor.environments.spec
        shape = RolloutShape(settings.training.n_steps, len(share), spec)
        self._rollout = mapped_rollout(shape, settings.hardware.rollout_dir)
        policy = make_policy(settings.policy, spec, settings.env.seed, settings.hardware.kernels)
        self.learner = Learner(settings, policy, share, ranks)
        self._pending = pending.from_checkpoint(restored or {}, share)
        if restored is not None:
            self.learner.restore(restored["learner"])
            if restored["actor"]["simulators"] is None:
                self.learner.normalizer.forget_episodes()

    def update(self, progress: float) -> Updated:
        with self._timer("rollout"):
            ready = self._take_pending() or [self._collect()]
        with self._timer("learn"):
            report = self.learner.learn([one.rollout for one in ready], progress)
        return Updated(report, torch.cat([one.episodes for one in ready]), {})

    def synchronise(self) -> None:
        self.learner.synchronise()

    def memory(self) -> Memory:
        return machine.memory()

    def state(self) -> dict[str, Any]:
        kept = {"pending": pending.to_checkpoint(self._pending, self._ranks)} if self._pending else {}
        return {"actor": actor.gather(self._actor.state(), self._ranks), **kept}

    def close(self) -> None:
        self._actor.environments.close()

    def _collect(self) -> Ready:
        policy, updates = self.learner.policy, self.learner.updates
        rollout = self._actor.collect(policy, updates, self._rule_for_stragglers(), self._rollout)
        return Ready(rollout, self._actor.finished_episodes())

    def _take_pending(self) -> list[Ready]:
        """What actors of an earlier part of this run have played and nobody has learnt: one update's worth of it."""
        taken: list[Ready] = []
        while self._pending and trajectories(taken) < self._actor.environments.num_envs:
            taken.append(self._pending.popleft())
        return taken

    def _rule_for_stragglers(self) -> Callable[[int], bool] | None:
        if not self._settings.parallel.preempt_stragglers:
            return None
        return Race(self._ranks, self._settings.training.n_steps, self.learner.updates).is_over


run = partial(loop.run, Synchronous)
