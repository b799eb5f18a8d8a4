"""A3C: workers play and step a shared model without locks (Hogwild); the rank counts, logs and saves.

One update of the run is as many worker updates as there are workers, whichever worker made them: about as many steps as
an update of A2C. Every `sync_updates` updates the ranks average parameters and optimiser statistics while their workers
are idle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from rlcluster import environments
from rlcluster.exchange.ranks import Ranks
from rlcluster.exchange.shared_parameters import HogwildParameters, hogwild_file
from rlcluster.learning import actor_state
from rlcluster.learning.episode_rows import from_rows, to_rows
from rlcluster.learning.learner import LearnReport
from rlcluster.learning.model import Model, hogwild_shape
from rlcluster.networks.policy import make_policy
from rlcluster.plan import Plan
from rlcluster.profiling.recorder import ProcessName
from rlcluster.settings.schema import Settings
from rlcluster.system.machine import Memory
from rlcluster.system.phases import clock
from rlcluster.training import loop
from rlcluster.training.helpers import GetState, Helpers
from rlcluster.training.hogwild_process import RunUpdate, Setup, UpdateDone, WorkerState, work
from rlcluster.training.loop import Updated
from rlcluster.training.pending import pack, unpack


class Hogwild:
    """The shared model, and the workers that learn it in processes of their own."""

    def __init__(
        self,
        settings: Settings,
        plan: Plan,
        ranks: Ranks,
        restored: dict[str, Any] | None,
        initial: dict[str, Any] | None = None,
    ) -> None:
        self._settings, self._ranks = settings, ranks
        envs, helpers = plan.ranks[ranks.rank].envs, plan.ranks[ranks.rank].helpers
        size = len(helpers)
        spec = environments.describe(settings.env)
        policy = make_policy(settings.policy, spec, settings.env.seed, settings.hardware.kernels)
        self._made = unlogged(restored) if restored is not None and ranks.rank == 0 else []
        self._uncounted = torch.zeros(1, dtype=torch.int64)  # steps
        self._states: dict[int, WorkerState] = {}
        shape = hogwild_shape(settings, policy, size)
        with hogwild_file(shape) as file:
            shared = HogwildParameters(file.path, shape)
            self.model = Model(settings, policy, envs, ranks, shared)
            self.model.push()
            if restored is not None:
                self.model.restore(restored["learner"])
            elif initial is not None:
                self.model.begin_from(initial)
            setups = [
                Setup(
                    settings_json=_as_if_alone(settings, own.envs).model_dump_json(),
                    plan=own,
                    restored=_share(restored, own.envs, plan.num_acting) if restored is not None else None,
                    shared=file.path,
                    num_workers=size,
                )
                for own in helpers
            ]
            self._workers = Helpers("worker", work, setups, settings.parallel.timeout_seconds)

    def update(self, progress: float) -> Updated:
        size = len(self._workers)
        while len(self._made) < size:
            with clock("commands"):
                for number in range(size):
                    if not self._workers.is_busy(number):
                        self._workers.send(number, RunUpdate(progress, self.model.updates))
            self._receive()
        made, self._made = self._made[:size], self._made[size:]
        with clock("checks"):
            self._count()
        self.model.updates += 1
        if self._ranks.world_size > 1:
            self.model.is_synchronised = False
            if self.model.updates % self._settings.parallel.sync_updates == 0:
                self.synchronise()
        with clock("checks"):
            episodes = [episode for one in made for episode in one.episodes]
            return Updated(self._report(made), episodes, self._metrics(made))

    def synchronise(self) -> None:
        self._drain()
        self.model.synchronise()

    def memory(self) -> Memory:
        return self._workers.memory()

    def start_recording(self, names: Sequence[ProcessName]) -> None:
        self._workers.start_recording(names)

    def recordings(self) -> list[dict[str, Any]]:
        return self._workers.recordings()

    def state(self) -> dict[str, Any]:
        self._drain()
        self._count()
        self.model.pull()
        for number in range(len(self._workers)):
            self._workers.send(number, GetState())
        self._drain()
        states = [self._states[number] for number in range(len(self._workers))]
        returns, moments = zip(*(state.normalizer for state in states), strict=True)
        total = self._ranks.sum_(torch.from_numpy(np.sum(moments, 0)))
        self.model.normalizer.set(torch.from_numpy(np.concatenate(returns)), total)
        return {
            "actor": actor_state.gather(actor_state.join([state.actor for state in states]), self._ranks),
            "unlogged": pack(map(_content, self._made), self._ranks),
        }

    def close(self) -> None:
        self._workers.close()

    def _drain(self) -> None:
        """Waits until no worker has an open command."""
        while self._workers.num_open:
            self._receive()

    def _receive(self) -> None:
        for number, reply in self._workers.replies():
            if isinstance(reply, WorkerState):
                self._states[number] = reply
            else:
                self._made.append(reply)
                self._uncounted += reply.steps

    def _count(self) -> None:
        """Adds the steps that all ranks made since the last call."""
        self.model.steps_global += int(self._ranks.sum_(self._uncounted))
        self._uncounted.zero_()

    def _report(self, made: list[UpdateDone]) -> LearnReport:
        """Means over the worker updates of all ranks that have a value."""
        values = [[math.nan if value is None else value for value in one.report] for one in made]
        rows = torch.tensor(values, dtype=torch.float64)
        sums, counts = self._ranks.sum_(torch.stack([rows.nan_to_num().sum(0), (~rows.isnan()).double().sum(0)]))
        means = zip(LearnReport._fields, sums.tolist(), counts.tolist(), strict=True)
        fields: dict[str, Any] = {name: total / count if count else None for name, total, count in means}
        return LearnReport(**fields)

    def _metrics(self, made: list[UpdateDone]) -> dict[str, float]:
        """Means over the worker updates of all ranks, and the largest staleness."""
        own = [(one.staleness, one.rollout_seconds, one.learn_seconds, 1.0) for one in made]
        sums = self._ranks.sum_(torch.tensor(own, dtype=torch.float64).sum(0))
        staleness, rollout, learn = (sums[:-1] / sums[-1]).tolist()
        largest = self._ranks.max_(torch.tensor([max(one.staleness for one in made)]))
        return {"t_rollout": rollout, "t_learn": learn, "staleness_mean": staleness, "staleness_max": float(largest)}


def unlogged(restored: dict[str, Any]) -> list[UpdateDone]:
    """The worker updates of a checkpoint that are not logged yet, but whose steps are counted."""
    return [_from_content(content) for content in unpack(restored.get("unlogged", []))]


def _content(made: UpdateDone) -> dict[str, Any]:
    """For a checkpoint."""
    return {**made._asdict(), "report": made.report._asdict(), "episodes": to_rows(made.episodes)}


def _from_content(content: dict[str, Any]) -> UpdateDone:
    report, episodes = LearnReport(**content["report"]), from_rows(content["episodes"])
    return UpdateDone(**{**content, "report": report, "episodes": episodes})


def _as_if_alone(settings: Settings, envs: range) -> Settings:
    """A worker's batch is its own rollout."""
    return settings.model_copy(update={"env": settings.env.model_copy(update={"num_envs": len(envs)})})


def _share(restored: dict[str, Any], envs: range, num_workers: int) -> WorkerState:
    """A worker's part of a checkpoint. The checkpoint holds the summed moments; each worker takes an equal share."""
    kept = restored["learner"]["reward_normalizer"]
    returns, moments = kept["returns"][envs.start : envs.stop], kept["moments"] / num_workers
    return WorkerState(actor_state.share(restored["actor"], envs), (returns.numpy(), moments.numpy()))


run = partial(loop.run, Hogwild)
