"""IMPALA: actors keep acting while the learner learns; V-trace corrects for the lag.

An update takes ready rollouts, oldest first, until it has as many trajectories as this rank has environments. In
deterministic mode it takes exactly one rollout from each actor, played with the parameters of the previous update, so
the same seed gives the same run. Slots bound the lag: an actor waits while all its slots hold pending rollouts, and the
learner waits for an actor that is as many updates behind as it has slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlcluster import environments
from rlcluster.exchange.ranks import Ranks
from rlcluster.learning import actor_state
from rlcluster.learning.actor import Collected
from rlcluster.learning.actor_state import ActorState
from rlcluster.learning.learner import Learner
from rlcluster.learning.model import Model
from rlcluster.networks.policy import make_policy
from rlcluster.plan import Plan, RankPlan
from rlcluster.profiling.recorder import ProcessName
from rlcluster.settings.schema import Settings
from rlcluster.system.console import counted, say
from rlcluster.system.machine import Memory
from rlcluster.system.phases import clock
from rlcluster.training import loop, pending
from rlcluster.training.actors import Actors
from rlcluster.training.loop import Updated
from rlcluster.training.slots import Slot, SlotBoard, SlotState

DETERMINISTIC_ROUNDS = 2  # rollouts per environment that are running or pending


class ActorLearner:
    """A learner in this process, actors in processes of their own."""

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
        self._envs = own_plan.envs
        self._is_deterministic = settings.parallel.deterministic
        self._announce(own_plan)
        torch.set_num_threads(own_plan.threads)
        spec = environments.describe(settings.env)
        policy = make_policy(settings.policy, spec, settings.env.seed, settings.hardware.kernels)
        policy.keep_threads_for_kernels(own_plan.threads)
        torch.set_num_threads(own_plan.torch_threads)
        self.model = Model(settings, policy, self._envs, ranks)
        self._learner = Learner(settings, self.model, ranks)
        if restored is None and initial is not None:
            self.model.begin_from(initial)
        own = self._restore(restored) if restored is not None else None
        self._actors = Actors(settings, own_plan, spec, own, len(self.model.parameters))
        self._slots = SlotBoard(self._actors.slots())
        self._slots.restore(pending.from_checkpoint(restored or {}, self._envs))
        self._states: dict[int, ActorState] = {}
        self._busy_seconds, self._idle_seconds = 0.0, 0.0
        self._actors.publish(self.model.parameters, self.model.updates)
        self._assign()

    def update(self, progress: float) -> Updated:
        with self._timer("rollout"):  # time waiting for actors
            taken = self._take()
        with clock("checks"):
            held = self._slots.trajectories(SlotState.READY, SlotState.LEARNING)
            occupancy = held / (len(self._envs) * self._actors.num_slots)
            lags = self.model.updates - torch.cat([slot.rollout.versions for slot in taken]).double()
        with self._timer("learn"):
            report = self._learner.learn([slot.rollout for slot in taken], progress)
        with clock("copy"):
            self._actors.publish(self.model.parameters, self.model.updates)
        with clock("commands"):
            episodes = [episode for slot in taken for episode in slot.episodes]
            self._slots.release()
            self._assign()
        with clock("checks"):
            return Updated(report, episodes, self._metrics(lags, occupancy))

    def synchronise(self) -> None:
        self.model.synchronise()

    def memory(self) -> Memory:
        return self._actors.memory()

    def start_recording(self, names: Sequence[ProcessName]) -> None:
        self._actors.start_recording(names)

    def recordings(self) -> list[dict[str, Any]]:
        return self._actors.recordings()

    def state(self) -> dict[str, Any]:
        """Waits for running rollouts: they are part of the state, so nothing is lost."""
        self._actors.request_states()
        while len(self._states) < len(self._actors):
            self._receive()
        own = actor_state.join([self._states[number] for number in range(len(self._actors))])
        self._states.clear()
        return {
            "actor": actor_state.gather(own, self._ranks),
            "pending": pending.to_checkpoint(
                (Collected(slot.rollout, list(slot.episodes)) for slot in self._slots.ready()), self._ranks
            ),
        }

    def close(self) -> None:
        self._actors.close()

    def _restore(self, content: dict[str, Any]) -> ActorState:
        self.model.restore(content["learner"])
        if content["actor"]["simulators"] is None:
            self.model.normalizer.forget_episodes()
        return actor_state.share(content["actor"], self._envs)

    def _announce(self, own: RankPlan) -> None:
        if self._ranks.rank == 0:
            where = "pinned to cores of their own" if own.helpers[0].cores else "not pinned"
            threads, actors = counted(own.threads, "thread"), counted(len(own.helpers), "actor")
            say(f"each learner has {threads} and {actors}, {where}")

    def _assign(self) -> None:
        """Commands rollouts into free slots, round-robin over the actors, while the pending and running ones (restored
        ones included) stay within what the slots hold. Deterministic mode keeps two rollouts per environment, played
        with the current parameters.
        """
        rounds = DETERMINISTIC_ROUNDS if self._is_deterministic else self._actors.num_slots
        room = rounds * len(self._envs) - self._slots.trajectories(SlotState.READY, SlotState.ACTING)
        for _ in range(self._actors.num_slots):
            for actor in range(len(self._actors)):
                slot = self._slots.free(actor)
                if slot is not None and slot.rollout.num_envs <= room:
                    room -= slot.rollout.num_envs
                    slot.assign(self.model.updates)
                    self._actors.fill(actor, slot.number, self.model.updates if self._is_deterministic else None)

    def _take(self) -> list[Slot]:
        """The rollouts of one update."""
        while not self._is_deterministic and self._an_actor_is_late():
            self._receive()
        taken: list[Slot] = []
        while sum(slot.rollout.num_envs for slot in taken) < len(self._envs):
            slot = self._next(turn=sum(slot.actor is not None for slot in taken))
            if slot is None:
                self._receive()
            else:
                slot.take()
                taken.append(slot)
        return taken

    def _an_actor_is_late(self) -> bool:
        oldest = self._slots.oldest_assignment()
        return oldest is not None and self.model.updates - oldest >= self._actors.num_slots

    def _next(self, turn: int) -> Slot | None:
        """The oldest ready slot. Deterministic mode: restored ones first, then that of the actor whose turn it is."""
        fitting = (
            slot
            for slot in self._slots.ready()
            if not self._is_deterministic or slot.actor is None or slot.actor == turn
        )
        return next(fitting, None)

    def _receive(self) -> None:
        for actor, reply in self._actors.replies():
            if isinstance(reply, ActorState):
                self._states[actor] = reply
                continue
            self._busy_seconds += reply.busy_seconds
            self._idle_seconds += reply.idle_seconds
            self._slots.filled(actor, reply.slot, reply.episodes)

    def _metrics(self, lags: Tensor, occupancy: float) -> dict[str, float]:
        """Means over all ranks, and the largest lag."""
        waited, seconds = self._timer.seconds("rollout"), self._busy_seconds + self._idle_seconds
        own = [
            float(lags.mean()),
            occupancy,
            waited / (waited + self._timer.seconds("learn")),
            self._idle_seconds / seconds if seconds else 0.0,
        ]
        self._busy_seconds, self._idle_seconds = 0.0, 0.0
        means = self._ranks.sum_(torch.tensor(own, dtype=torch.float64)) / self._ranks.world_size
        names = ("policy_lag_mean", "slot_occupancy", "learner_idle", "actor_idle")
        largest = float(self._ranks.max_(lags.max().reshape(1)))
        return {**dict(zip(names, means.tolist(), strict=True)), "policy_lag_max": largest}


run = partial(loop.run, ActorLearner)
