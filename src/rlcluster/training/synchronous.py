"""Collect, learn, repeat: PPO, A2C, and IMPALA without lag; each rank plays its environments itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from rlcluster.exchange.ranks import Ranks
from rlcluster.exchange.stragglers import Race
from rlcluster.learning import actor_state
from rlcluster.learning.actor import Collected, make_actor
from rlcluster.learning.learner import Learner
from rlcluster.learning.model import Model
from rlcluster.learning.rollout import RolloutShape, mapped_rollout
from rlcluster.networks.policy import make_policy
from rlcluster.plan import Plan
from rlcluster.profiling.recorder import ProcessName
from rlcluster.settings.schema import Settings
from rlcluster.system import machine
from rlcluster.system.machine import Memory
from rlcluster.training import loop, pending
from rlcluster.training.loop import Updated


class Synchronous:
    """An actor and a learner that take turns."""

    def __init__(
        self,
        settings: Settings,
        plan: Plan,
        ranks: Ranks,
        restored: dict[str, Any] | None,
        initial: dict[str, Any] | None = None,
    ) -> None:
        self._settings, self._ranks, self._timer = settings, ranks, ranks.timer
        own_plan = plan.ranks[ranks.rank]
        torch.set_num_threads(own_plan.torch_threads)
        share = own_plan.envs
        own = actor_state.share(restored["actor"], share) if restored is not None else None
        self._actor = make_actor(settings, share, own, own_plan.threads)
        spec = self._actor.environments.spec
        shape = RolloutShape(settings.training.n_steps, len(share), spec)
        self._rollout = mapped_rollout(shape, settings.hardware.rollout_dir)
        policy = make_policy(settings.policy, spec, settings.env.seed, settings.hardware.kernels)
        self.model = Model(settings, policy, share, ranks)
        self._learner = Learner(settings, self.model, ranks)
        self._pending = pending.from_checkpoint(restored or {}, share)
        if restored is not None:
            self.model.restore(restored["learner"])
            if restored["actor"]["simulators"] is None:
                self.model.normalizer.forget_episodes()
        elif initial is not None:
            self.model.begin_from(initial)

    def update(self, progress: float) -> Updated:
        with self._timer("rollout"):
            played = self._take_pending() or [self._collect()]
        with self._timer("learn"):
            report = self._learner.learn([one.rollout for one in played], progress)
        return Updated(report, [episode for one in played for episode in one.episodes], {})

    def synchronise(self) -> None:
        self.model.synchronise()

    def memory(self) -> Memory:
        return machine.memory()

    def start_recording(self, names: Sequence[ProcessName]) -> None:
        pass  # no helpers

    def recordings(self) -> list[dict[str, Any]]:
        return []

    def state(self) -> dict[str, Any]:
        kept = {"pending": pending.to_checkpoint(self._pending, self._ranks)} if self._pending else {}
        return {"actor": actor_state.gather(self._actor.state(), self._ranks), **kept}

    def close(self) -> None:
        self._actor.environments.close()

    def _collect(self) -> Collected:
        return self._actor.collect(self.model.policy, self.model.updates, self._rule_for_stragglers(), self._rollout)

    def _take_pending(self) -> list[Collected]:
        """One update's worth of what actors of an earlier part of this run have left pending."""
        taken: list[Collected] = []
        while self._pending and sum(one.rollout.num_envs for one in taken) < self._actor.environments.num_envs:
            taken.append(self._pending.popleft())
        return taken

    def _rule_for_stragglers(self) -> Callable[[int], bool] | None:
        if not self._settings.parallel.preempt_stragglers:
            return None
        return Race(self._ranks, self._settings.training.n_steps, self.model.updates).is_over


run = partial(loop.run, Synchronous)
