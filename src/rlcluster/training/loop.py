"""The training loop of one rank: budget, log, checkpoints and summary. The engine defines what an update is: see
`synchronous`, `actor_learner` and `hogwild`. With one rank every collective is the identity.
"""

from __future__ import annotations

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
from rlcluster.profiling.recorder import ProcessName
from rlcluster.runs.budget import Budget
from rlcluster.runs.episodes import Episode, EpisodeHistory, EpisodeSummary
from rlcluster.runs.summary import FINAL_FPS_UPDATES, Measured, Processes, Totals, make_summary
from rlcluster.settings.schema import Settings
from rlcluster.system.clock import Stopwatch, run_clock
from rlcluster.system.console import say, warn
from rlcluster.system.errors import EXIT_RUN_FAILED, UserError
from rlcluster.system.machine import BackgroundLoad, Memory
from rlcluster.system.phases import clock
from rlcluster.training.evaluator import make_evaluator
from rlcluster.training.loops import Job
from rlcluster.training.profiler import make_profiler


class Updated(NamedTuple):
    """The result of one update of an engine."""

    report: LearnReport
    episodes: Sequence[Episode]  # of this rank
    metrics: dict[str, float]  # further fields of the log, by name


class Engine(Protocol):
    """Acts and learns on one rank. Its constructor restores it from the run's checkpoint, if there is one; else the
    model begins with what a warm start gives it.
    """

    @property
    def model(self) -> Model:
        """What the engine learns, with the counters of updates and steps."""

    def update(self, progress: float) -> Updated:
        """Acts and learns; `progress` is the share of the budget that is spent."""

    def synchronise(self) -> None:
        """Afterwards all ranks hold the same parameters."""

    def memory(self) -> Memory:
        """Memory of this process and of its helpers."""

    def start_recording(self, names: Sequence[ProcessName]) -> None:
        """From now on the helpers are profiled, under these names."""

    def recordings(self) -> list[dict[str, Any]]:
        """Ends the recordings of the helpers and returns them."""

    def state(self) -> dict[str, Any]:
        """The parts of a checkpoint other than the model: "actor" and, where there are any, "pending" or "unlogged"."""

    def close(self) -> None: ...


EngineFactory = Callable[[Settings, Plan, Ranks, dict[str, Any] | None, dict[str, Any] | None], Engine]


def run(make_engine: EngineFactory, job: Job) -> bool:
    """Trains until the budget is spent (True) or a stop is requested (False); saves and writes the summary."""
    constructed = _construct(make_engine, job)
    if constructed is None:
        return False
    with closing(constructed) as engine, closing(make_evaluator(job, engine.model)) as evaluator:
        job.callbacks.tell("on_start", job.run.path, job.settings.to_dict())
        training, profiler = Training(job, engine), make_profiler(job, engine)
        with job.reporter:
            while not training.is_over():
                profiler.before_update(engine.model.updates)
                with clock("update"):
                    record = training.update()
                with clock("log"):
                    job.reporter.update(record, training.progress())
                training.ask_callbacks(record)
                training.save_if_due()
                profiler.after_update(engine.model.updates)
                evaluator.advance(record)
            profiler.close()
            summary = training.finish()
            job.reporter.conclude(training.is_finished())
        if training.is_finished():
            with job.ranks.occupied():
                evaluator.finish(job.stop)
        job.callbacks.tell("on_end", summary)
        return training.is_finished()


def _construct(make_engine: EngineFactory, job: Job) -> Engine | None:
    """None, on all ranks, if a signal ended the construction on one: nothing has been learnt."""
    try:
        engine = make_engine(job.settings, job.plan, job.ranks, job.run.restored, job.initial)
    except UserError:
        if not job.stop.requested:
            raise
        engine = None
    stopped = float(job.ranks.sum_(torch.tensor([float(engine is None)])))
    job.ranks.end_start_up()
    if stopped and engine is not None:
        engine.close()
    return None if stopped else engine


class Agreement(NamedTuple):
    """What all ranks agree on after an update, although clocks and memory differ."""

    seconds: float  # by the clock of rank 0
    stops: float  # number of ranks that received a stop signal
    memory_gb: float  # over all ranks
    peak_memory_gb: float
    rank_seconds: tuple[float, ...]  # of each rank: the update without synchronisation


class Training:
    """The state of the training loop."""

    def __init__(self, job: Job, engine: Engine) -> None:
        self._settings, self._plan, self._ranks, self._run, self._stop, _, self._callbacks, _ = job
        self._engine, settings, ranks, run = engine, job.settings, job.ranks, job.run
        self._timer, self._model = ranks.timer, engine.model
        self._episodes = EpisodeHistory()
        self._recent_seconds: deque[float] = deque(maxlen=FINAL_FPS_UPDATES)
        self._recent_steps: deque[int] = deque(maxlen=FINAL_FPS_UPDATES)
        self._budget = Budget(settings.training)
        self._peak_memory_before = 0.0
        self._is_ended_by_callback = False  # the same on all ranks
        seconds_before = self._restore(run.restored) if run.restored is not None else 0.0
        self._stopwatch, self._background_load = Stopwatch(seconds_before), BackgroundLoad()
        self._agreed = self._agree()
        self._saved_seconds, self._saved_updates = self._agreed.seconds, self._model.updates
        if run.restored is None and ranks.placement.max_restarts > 0:
            self._save()  # so that a restart always finds a checkpoint

    def progress(self) -> float:
        """Share of the budget that is spent; identical on all ranks."""
        spent = self._model.steps_global, self._agreed.seconds, self._model.updates
        return self._budget.progress(*spent, self._episodes.full_recent_reward())

    def is_over(self) -> bool:
        """True when the budget is spent, or when any rank was asked to stop and all hold the same parameters."""
        return self.is_finished() or (self._agreed.stops > 0 and self._model.is_synchronised)

    def is_finished(self) -> bool:
        """True when the budget is spent, or a callback has ended the run."""
        return self.progress() >= 1 or self._is_ended_by_callback

    def update(self) -> dict[str, Any]:
        """Runs one update and logs it; returns the logged record."""
        self._timer.reset()
        start = run_clock()
        progress = self.progress()
        steps_before = self._model.steps_global
        updated = self._engine.update(progress)
        with clock("checks"):
            episodes = self._episodes.add(episode_rows.gather(updated.episodes, self._ranks))
            self._refuse_disagreement()
            own_seconds = run_clock() - start - self._timer.seconds("sync")
            self._agreed = self._agree(own_seconds)
        steps = self._model.steps_global - steps_before
        with clock("log"):
            record = self._record(updated, episodes, run_clock() - start, steps)
            self._run.log(record)
        if self._settings.mode != "sequential":  # other processes may hang
            updates_to_come = self._settings.parallel.sync_updates + 1
            self._stop.deadline_seconds = self._settings.parallel.timeout_seconds + updates_to_come * record["t_iter"]
        return record

    def ask_callbacks(self, record: dict[str, Any]) -> None:
        """Ranks that follow rank 0 learn its answer by one more all-reduce, if there are callbacks at all."""
        if self._callbacks.is_asked:
            wants_stop = self._callbacks.tell("on_update", record)
            self._is_ended_by_callback = bool(self._ranks.max_(torch.tensor([int(wants_stop)])))

    def save_if_due(self) -> None:
        output = self._settings.output
        if output.checkpoint_updates is not None:
            due = self._model.updates - self._saved_updates >= output.checkpoint_updates
        else:
            due = self._agreed.seconds - self._saved_seconds >= output.checkpoint_seconds
        if due and self._model.is_synchronised:
            with clock("checkpoint"):
                self._save()

    def finish(self) -> dict[str, Any]:
        """Writes the last checkpoint, marked final if the run is finished, and the summary, which it returns."""
        self._engine.synchronise()
        self._save(final=self.is_finished())
        summary = self._summary()
        self._run.write_summary(summary)
        return summary

    def _save(self, final: bool = False) -> None:
        acting = self._engine.state()  # first: it waits for running helpers
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
        path = self._run.save(content, final)
        if path is not None:
            self._callbacks.tell("on_checkpoint", path)
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
        """Restores the loop from a checkpoint; returns the training time until then, in seconds."""
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

    def _agree(self, own_seconds: float = 0.0) -> Agreement:
        """One small all-reduce. Peak memory covers the whole run, including parts before a resumption. Each rank puts
        its own seconds in its place, zero in the others.
        """
        ranks = self._ranks
        clock = self._stopwatch.seconds() if ranks.rank == 0 else 0.0
        of_each = [own_seconds if rank == ranks.rank else 0.0 for rank in range(ranks.world_size)]
        own = [clock, float(self._stop.requested), *self._engine.memory(), *of_each]
        seconds, stops, memory, peak, *rank_seconds = ranks.sum_(torch.tensor(own, dtype=torch.float64)).tolist()
        return Agreement(seconds, stops, memory, max(peak, self._peak_memory_before), tuple(rank_seconds))

    def _rank_speeds(self, steps: int) -> dict[str, float]:
        """The slowest and the fastest rank, by the steps of its own environments; nothing for one rank."""
        if self._ranks.world_size == 1:
            return {}
        shares = [len(rank.envs) / self._settings.env.num_envs for rank in self._plan.ranks]
        speeds = [steps * share / max(t, 1e-9) for share, t in zip(shares, self._agreed.rank_seconds, strict=True)]
        slowest = min(range(len(speeds)), key=lambda rank: speeds[rank])
        return {"rank_fps_min": speeds[slowest], "rank_fps_max": max(speeds), "rank_slowest": slowest}

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
            **self._rank_speeds(steps),
            **updated.report._asdict(),
            **updated.metrics,
            **episodes._asdict(),
            "episode_reward_recent": self._episodes.recent_reward(),
            "episode_reward_recent_std": self._episodes.recent_std(),
            "memory_gb": self._agreed.memory_gb,
            "peak_memory_gb": self._agreed.peak_memory_gb,
            "elapsed_seconds": self._agreed.seconds,
        }

    def _summary(self) -> dict[str, Any]:
        recent = sum(self._recent_seconds)
        totals = Totals(
            steps=self._model.steps_global,
            updates=self._model.updates,
            episodes=self._episodes.total,
            seconds=self._stopwatch.seconds(),
            final_fps=sum(self._recent_steps) / recent if recent else None,
            initial_reward=self._episodes.initial_reward,
            final_reward=self._episodes.recent_reward(),
            best_reward=self._episodes.best_reward,
            peak_memory_gb=self._agreed.peak_memory_gb,
        )
        measured = Measured(self._model.policy.kernels, self._background_load.share())
        return make_summary(self._settings, Processes.of(self._plan), totals, measured)
