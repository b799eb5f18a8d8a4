"""IMPALA: actors keep acting while the learner learns; V-trace corrects the lag.

An update takes ready rollouts until it has a trajectory for each environment of this rank, whichever actors they come
from. Deterministic: exactly one from each actor, played with the parameters of one update ago; then the same seed gives
the same run. Slots bound the lag: an actor waits when all of its slots hold rollouts that are not learnt yet.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlcluster import actor, environments, machine
from rlcluster.actor import ActorState
from rlcluster.checkpoint import checkpoint_bytes, load_checkpoint
from rlcluster.collectives import Ranks, to_tensor
from rlcluster.config import Settings
from rlcluster.console import say
from rlcluster.learner import Learner
from rlcluster.loops import training
from rlcluster.loops.actors import Actors
from rlcluster.loops.split import Split, split_cores
from rlcluster.loops.training import Updated
from rlcluster.machine import Memory
from rlcluster.policy import make_policy
from rlcluster.rollout import Rollout

ROUNDS_AHEAD = 2  # deterministic: rollouts that are ordered of each environment and not learnt yet


class Ready(NamedTuple):
    """A rollout that is to be learnt."""

    rollout: Rollout
    episodes: Tensor  # [K, 4] of those that finished in it
    place: tuple[int, int] | None = None  # its actor and slot; None: from a checkpoint

    def to_bytes(self) -> bytes:
        columns = {name: column.clone() for name, column in self.rollout.columns().items()}  # else all slots with it
        return bytes(checkpoint_bytes({**columns, "episodes": self.episodes}))

    @classmethod
    def from_bytes(cls, content: bytes, envs: range) -> Ready:
        """Its part of these environments."""
        columns = load_checkpoint(Path("pending rollouts"), io.BytesIO(content))
        episodes = columns.pop("episodes")
        own = (episodes[:, 1] >= envs.start) & (episodes[:, 1] < envs.stop)
        return cls(Rollout(**columns).of(envs), episodes[own])


class ActorLearner:
    """A learner in this process, and actors in processes of their own."""

    def __init__(self, settings: Settings, ranks: Ranks, restored: dict[str, Any] | None) -> None:
        self._settings, self._ranks, self._timer = settings, ranks, ranks.timer
        self._envs = ranks.share_of(settings.env.num_envs)
        self._is_deterministic = settings.parallel.deterministic
        spec = environments.describe(settings.env)
        policy = make_policy(settings.policy, spec, settings.env.seed, settings.hardware.kernels)
        self.learner = Learner(settings, policy, self._envs, ranks)
        self._ready: deque[Ready] = deque()
        own = self._restore(restored) if restored is not None else None
        split = split_cores(settings, len(self._envs), ranks.place.local_world_size)
        self._tell(split)
        self._actors = Actors(settings, self._envs, spec, split, own, len(self.learner.parameters))
        self._free = [deque(range(self._actors.num_slots)) for _ in range(len(self._actors))]
        self._states: dict[int, ActorState] = {}
        self._busy_seconds, self._idle_seconds = 0.0, 0.0
        machine.pin_to(split.learner_cores())
        torch.set_num_threads(split.learner_threads)
        self._actors.publish(self.learner.parameters, self.learner.updates)
        self._order(ROUNDS_AHEAD - _trajectories(self._ready) // len(self._envs))

    def update(self, progress: float) -> Updated:
        with self._timer("rollout"):  # what it waits for them
            taken = self._take()
        occupancy = (len(taken) + len(self._ready)) / (len(self._actors) * self._actors.num_slots)
        lags = self.learner.updates - torch.cat([ready.rollout.versions for ready in taken]).double()
        with self._timer("learn"):
            report = self.learner.learn([ready.rollout for ready in taken], progress)
        self._actors.publish(self.learner.parameters, self.learner.updates)
        for ready in taken:
            if ready.place is not None:
                number, slot = ready.place
                self._free[number].append(slot)
        self._order(1)
        episodes = torch.cat([ready.episodes for ready in taken])
        return Updated(report, episodes, self._figures(lags, min(1.0, occupancy)))

    def synchronise(self) -> None:
        self.learner.synchronise()

    def memory(self) -> Memory:
        return self._actors.memory()

    def state(self) -> dict[str, Any]:
        """Waits for the rollouts that are being played: they are part of it, so that nothing is lost."""
        self._actors.ask_states()
        while len(self._states) < len(self._actors):
            self._receive()
        own = actor.join([self._states[number] for number in range(len(self._actors))])
        self._states.clear()
        pending = [ready.to_bytes() for ready in self._ready]
        return {
            "actor": actor.gather(own, self._ranks),
            "pending": [to_tensor(part) for part in self._ranks.gather_bytes(pending)],
        }

    def close(self) -> None:
        self._actors.close()

    def _restore(self, content: dict[str, Any]) -> ActorState:
        self.learner.restore(content["learner"])
        pending = [Ready.from_bytes(part.numpy().tobytes(), self._envs) for part in content.get("pending", [])]
        self._ready.extend(ready for ready in pending if ready.rollout.num_envs)
        if content["actor"]["simulators"] is None:
            self.learner.normalizer.forget_episodes()
        return actor.share(content["actor"], self._envs)

    def _tell(self, split: Split) -> None:
        if self._ranks.rank == 0:
            where = "on cores of their own" if split.cores else "sharing the cores"
            say(f"each learner: {split.learner_threads} threads, {split.num_actors} actors, {where}")

    def _order(self, rounds: int) -> None:
        """Rollouts into free slots: all of them, or, deterministic, so many from each actor with these parameters."""
        for number, free in enumerate(self._free):
            for _ in range(rounds if self._is_deterministic else len(free)):
                self._actors.fill(number, free.popleft(), self.learner.updates if self._is_deterministic else None)

    def _take(self) -> list[Ready]:
        """The trajectories of one update: as many as this rank has environments."""
        taken: list[Ready] = []
        while _trajectories(taken) < len(self._envs):
            place = self._next(turn=sum(ready.place is not None for ready in taken))
            if place is None:
                self._receive()
            else:
                taken.append(self._ready[place])
                del self._ready[place]
        return taken

    def _next(self, turn: int) -> int | None:
        """The oldest ready rollout; deterministic: of the actor whose turn it is, after those from a checkpoint."""
        for place, ready in enumerate(self._ready):
            if not self._is_deterministic or ready.place is None or ready.place[0] == turn:
                return place
        return None

    def _receive(self) -> None:
        for number, answer in self._actors.answers():
            if isinstance(answer, ActorState):
                self._states[number] = answer
                continue
            self._busy_seconds += answer.busy_seconds
            self._idle_seconds += answer.idle_seconds
            rollout = self._actors.rollout(number, answer.slot)
            self._ready.append(Ready(rollout, torch.from_numpy(answer.episodes), (number, answer.slot)))

    def _figures(self, lags: Tensor, occupancy: float) -> dict[str, float]:
        """Means over all ranks, and the largest lag of all."""
        seconds = self._busy_seconds + self._idle_seconds
        own = [float(lags.mean()), occupancy, self._idle_seconds / seconds if seconds else 0.0]
        self._busy_seconds, self._idle_seconds = 0.0, 0.0
        lag, occupancy, idle = (self._ranks.sum_(torch.tensor(own)) / self._ranks.world_size).tolist()
        waited = self._timer.seconds("rollout")
        largest = float(self._ranks.largest_(lags.max().reshape(1)))
        return {
            "learner_idle": waited / (waited + self._timer.seconds("learn")),
            "policy_lag_mean": lag,
            "policy_lag_max": largest,
            "slot_occupancy": occupancy,
            "actor_idle": idle,
        }


def _trajectories(rollouts: Iterable[Ready]) -> int:
    return sum(ready.rollout.num_envs for ready in rollouts)


run = partial(training.run, ActorLearner)
