"""One run on one rank: its budget, log, checkpoints and summary. What an update consists of is the engine's business:
see `synchronous`, `actor_learner` and `hogwild`. With one rank every exchange is the identity.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, NamedTuple, Protocol

import torch

from rlcluster.exchange.ranks import Ranks
from rlcluster.learning import episode_rows
from rlcluster.learning.learner import LearnReport
from rlcluster.learning.model import Model
from rlcluster.plan import Plan
from rlcluster.runs.episodes import Episode, EpisodeHistory, EpisodeSummary
from rlcluster.runs.reader import FINAL_FPS_UPDATES
from rlcluster.settings.schema import Settings
from rlcluster.system.clock import Stopwatch
from rlcluster.system.console import say, warn
from rlcluster.system.errors import EXIT_RUN_FAILED, UserError
from rlcluster.system.machine import BackgroundLoad, Memory
from rlcluster.training.budget import Budget
from rlcluster.training.loops import Job


class Updated(NamedTuple):
    """What an engine tells of an update."""

    report: LearnReport
    episodes: Sequence[Episode]  # of this rank
    figures: dict[str, float]  # further fields of the log


class Engine(Protocol):
    """What acts and learns on one rank. It restores itself from the checkpoint of the run, if there is one."""

    @property
    def model(self) -> Model:
        """What is learnt; it counts the updates and steps."""

    def update(self, progress: float) -> Updated:
        """Acts and learns; `progress` is the share of the budget that is spent."""

    def synchronise(self) -> None:
        """All ranks hold the same parameters then."""

    def memory(self) -> Memory:
        """Of this process and of those that it has started."""

    def state(self) -> dict[str, Any]:
        """The parts of a checkpoint that go on acting: "actor" and, if they are to be learnt yet, "pending"."""

    def close(self) -> None: ...


EngineFactory = Callable[[Settings, Plan, Ranks, dict[str, Any] | None], Engine]


def run(make_engine: EngineFactory, job: Job) -> bool:
    """Trains until the budget is spent (True) or a stop is requested (False); saves and writes the summary."""
    with closing(make_engine(job.settings, job.plan, job.ranks, job.run.restored)) as engine:
        training = Training(job, engine)
        with job.reporter:
            while not training.is_over():
                job.reporter.update(training.update(), training.progress())
                training.save_if_due()
        return training.finish()


class Agreement(NamedTuple):
    """What all ranks know alike after an update, though each has a clock and a memory of its own."""

    seconds: float  # by the clock of rank 0
    stops: float  # ranks that have been asked to stop
    memory_gb: float  # of all ranks together
    peak_memory_gb: float


class Training:
    """The parts of one run on one rank, and what follows each update."""

    def __init__(self, job: Job, engine: Engine) -> None:
        self._settings, self._plan, self._ranks, self._run, self._stop, _ = job
        self._engine, settings, ranks, run = engine, job.settings, job.ranks, job.run
        self._timer, self._model = ranks.timer, engine.model
        self._episodes = EpisodeHistory()
        self._recent_seconds: deque[float] = deque(maxlen=FINAL_FPS_UPDATES)
        self._recent_steps: deque[int] = deque(maxlen=FINAL_FPS_UPDATES)
        self._budget = Budget(settings.training)
        self._peak_memory_before = 0.0
        seconds_before = self._restore(run.restored) if run.restored is not None else 0.0
        self._stopwatch, self._background_load = Stopwatch(seconds_before), BackgroundLoad()
        self._agreed = self._agree()
        self._saved_seconds, self._saved_updates = self._agreed.seconds, self._model.updates
        if run.restored is None and ranks.placement.max_restarts > 0:
            self._save()  # so that there is always something to go on from

    def progress(self) -> float:
        """Share of the budget that is spent, the same on all ranks."""
        return self._budget.progress(self._model.steps_global, self._agreed.seconds, self._model.updates)

    def is_over(self) -> bool:
        """True when the budget is spent, or a stop is asked for on any rank and all hold the same parameters."""
        return self.progress() >= 1 or (self._agreed.stops > 0 and self._model.is_synchronised)

    def update(self) -> dict[str, Any]:
        """One rollout and one learning phase; returns the record that goes to the log."""
        self._timer.reset()
        start = time.perf_counter()
        progress = self.progress()
        steps_before = self._model.steps_global
        updated = self._engine.update(progress)
        episodes = self._episodes.add(episode_rows.gather(updated.episodes, self._ranks))
        self._refuse_disagreement()
        self._agreed = self._agree()
        steps = self._model.steps_global - steps_before
        record = self._record(updated, episodes, time.perf_counter() - start, steps)
        self._run.log(record)
        if self._settings.mode != "sequential":  # others take part, and may hang
            updates_to_come = self._settings.parallel.sync_updates + 1
            self._stop.deadline_seconds = self._settings.parallel.timeout_seconds + updates_to_come * record["t_iter"]
        return record

    def save_if_due(self) -> None:
        output = self._settings.output
        if output.checkpoint_updates is not None:
            due = self._model.updates - self._saved_updates >= output.checkpoint_updates
        else:
            due = self._agreed.seconds - self._saved_seconds >= output.checkpoint_seconds
        if due and self._model.is_synchronised:
            self._save()

    def finish(self) -> bool:
        """The last checkpoint and the summary; True, and the checkpoint is the final one, if the budget is spent."""
        is_finished = self.progress() >= 1
        self._engine.synchronise()
        self._save(final=is_finished)
        self._run.write_summary(self._summary())
        return is_finished

    def _save(self, final: bool = False) -> None:
        acting = self._engine.state()  # first: workers come to rest
        content = {
            "settings": self._settings.to_yaml(),
            "learner": self._model.state(),
            **acting,
            "episodes": self._episodes.state(),
            "elapsed_seconds": self._stopwatch.seconds(),
            "recent_seconds": list(self._recent_seconds),
            "recent_steps": list(self._recent_steps),
            "peak_memory_gb": self._agreed.peak_memory_gb,
        }
        self._run.save(content, final)
        self._saved_seconds, self._saved_updates = self._agreed.seconds, self._model.updates

    def _refuse_disagreement(self) -> None:
        is_to_be_equal = self._ranks.world_size > 1 and self._model.is_synchronised
        if is_to_be_equal and not self._model.ranks_agree():
            raise UserError(
                f"update {self._model.updates}: the ranks no longer hold the same parameters; stopped. Continue from "
                "the last checkpoint with --resume, and please report this",
                EXIT_RUN_FAILED,
            )

    def _restore(self, content: dict[str, Any]) -> float:
        """Continues from a checkpoint; returns the seconds that the run took until then."""
        self._episodes.restore(content["episodes"])
        self._recent_seconds.extend(content["recent_seconds"])
        self._recent_steps.extend(content["recent_steps"])
        self._peak_memory_before = content["peak_memory_gb"]
        if self._ranks.rank == 0:
            say(f"resuming at update {self._model.updates}, step {self._model.steps_global:,}")
            if content["actor"]["simulators"] is None:
                warn(
                    f"{self._settings.env.name} cannot save its state: new episodes begin, and the result will differ "
                    "from that of an uninterrupted run"
                )
        return float(content["elapsed_seconds"])

    def _agree(self) -> Agreement:
        """One small exchange. The peak of the memory is over the whole run, the parts before a resumption included."""
        own = Agreement(
            seconds=self._stopwatch.seconds() if self._ranks.rank == 0 else 0.0,
            stops=float(self._stop.requested),
            **self._engine.memory()._asdict(),
        )
        agreed = Agreement(*self._ranks.sum_(torch.tensor(own, dtype=torch.float64)).tolist())
        return agreed._replace(peak_memory_gb=max(agreed.peak_memory_gb, self._peak_memory_before))

    def _record(self, updated: Updated, episodes: EpisodeSummary, t_iter: float, steps: int) -> dict[str, Any]:
        self._recent_seconds.append(t_iter)
        self._recent_steps.append(steps)
        return {
            "update": self._model.updates,
            "steps_global": self._model.steps_global,
            "world_size": self._ranks.world_size,
            "fps": steps / t_iter,
            "t_iter": t_iter,
            "t_rollout": self._timer.seconds("rollout"),
            "t_learn": self._timer.seconds("learn"),
            "t_sync": self._timer.seconds("sync"),
            **updated.report._asdict(),
            **updated.figures,
            **episodes._asdict(),
            "episode_reward_recent": self._episodes.recent_reward(),
            "episode_reward_recent_std": self._episodes.recent_std(),
            "memory_gb": self._agreed.memory_gb,
            "peak_memory_gb": self._agreed.peak_memory_gb,
            "elapsed_seconds": self._agreed.seconds,
        }

    def _summary(self) -> dict[str, Any]:
        steps, seconds = self._model.steps_global, self._stopwatch.seconds()
        recent = sum(self._recent_seconds)
        return {
            "algorithm": self._settings.algorithm,
            "mode": self._settings.mode,
            "env": self._settings.env.name,
            "network": self._model.policy.network,
            "kernels": self._model.policy.kernels,
            "num_envs": self._settings.env.num_envs,
            "world_size": self._plan.world_size,
            "num_workers": self._plan.num_acting,
            "num_threads": self._plan.learner_threads,
            "duration_seconds": seconds,
            "total_timesteps": steps,
            "total_updates": self._model.updates,
            "average_fps": steps / seconds,
            "final_fps": sum(self._recent_steps) / recent if recent else None,
            "initial_reward": self._episodes.initial_reward,
            "final_reward": self._episodes.recent_reward(),
            "best_reward": self._episodes.best_reward,
            "peak_memory_gb": self._agreed.peak_memory_gb,
            "timesteps_per_hour": steps / seconds * 3600,
            "background_load": self._background_load.share(),  # since the run was begun or resumed
        }
