"""Evaluation during training (`training.eval_interval`): on unseen levels, in a process of its own at low priority.

Rank 0 sends its parameters when an evaluation is due and goes on; it takes the result when it is there. One evaluation
runs at a time: one that falls due meanwhile waits for it, and then has the newest parameters. Training never waits, and
nothing of it depends on the results: they go to the log, and the best parameters into a checkpoint of their own.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rlcluster.learning.model import Model
from rlcluster.runs.checkpoint import checkpoint_bytes, load_checkpoint
from rlcluster.settings.schema import EnvSettings, Settings
from rlcluster.settings.values import Interval, parse_interval
from rlcluster.system import cores
from rlcluster.system.console import say, warn
from rlcluster.system.processes import POLL_SECONDS, ChildProcesses, RankFailedError
from rlcluster.system.signals import StopRequest
from rlcluster.training.loops import Job

LOWEST_PRIORITY = 19  # of nice(2)
LAST_SIGNAL = signal.SIGKILL  # it holds nothing that anyone needs


class Moment(NamedTuple):
    """When parameters were evaluated."""

    update: int
    steps_global: int
    elapsed_seconds: float


class Evaluating(Protocol):
    """What the training loop asks after each update."""

    def advance(self, record: dict[str, Any]) -> None:
        """Takes a result that has arrived, and begins the next evaluation if it is due."""

    def finish(self) -> None:
        """Waits for the evaluation that runs: the budget is spent, so it holds nothing up."""

    def close(self) -> None: ...


class NoEvaluation:
    """Where none is asked for, and on ranks other than the first."""

    def advance(self, record: dict[str, Any]) -> None:
        pass

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass


def make_evaluator(job: Job, model: Model) -> Evaluating:
    interval = job.settings.training.eval_interval
    if interval is None or job.ranks.rank > 0:
        return NoEvaluation()
    return Evaluator(job, model, parse_interval(interval))


class Evaluator:
    """Rank 0's side."""

    def __init__(self, job: Job, model: Model, interval: Interval) -> None:
        self._settings, self._run, self._model, self._interval = job.settings, job.run, model, interval
        self._callbacks = job.callbacks
        before = self._run.evaluations()
        self._last = Moment(*(before[-1][name] for name in Moment._fields)) if before else Moment(0, 0, 0.0)
        self._best = max((one["reward_mean"] for one in before), default=float("-inf"))
        self._running: tuple[Moment, bytes] | None = None
        self._pipe, theirs = multiprocessing.get_context("spawn").Pipe()
        arguments = job.settings.model_dump_json(), theirs
        timeout_seconds = job.settings.parallel.timeout_seconds
        self._children: ChildProcesses | None = ChildProcesses(
            1, _serve, lambda _: arguments, "evaluation", timeout_seconds
        )
        self._children.start()
        theirs.close()

    def advance(self, record: dict[str, Any]) -> None:
        self._take(0.0)
        now = Moment(*(record[name] for name in Moment._fields))
        if self._children is not None and self._running is None and self._is_due(now) and self._model.is_synchronised:
            self._model.pull()  # A3C's workers step shared parameters
            content = bytes(checkpoint_bytes(self._content(now)))
            self._running, self._last = (now, content), now
            self._pipe.send_bytes(content)

    def finish(self) -> None:
        while self._running is not None:
            self._take(POLL_SECONDS)

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        self._pipe.close()
        if self._children is not None:
            self._children.send_signal(LAST_SIGNAL)
            self._children.end()

    def _is_due(self, now: Moment) -> bool:
        if self._interval.steps is not None:
            return now.steps_global // self._interval.steps > self._last.steps_global // self._interval.steps
        return now.elapsed_seconds - self._last.elapsed_seconds >= self._interval.seconds

    def _content(self, now: Moment) -> dict[str, Any]:
        """A checkpoint that can be evaluated and begun with, but not resumed: it has the parameters alone."""
        parameters = {name: value.detach().clone() for name, value in self._model.policy.state_dict().items()}
        counters = {"updates": now.update, "steps_global": now.steps_global}
        return {"settings": self._settings.to_yaml(), "learner": {"parameters": parameters, **counters}}

    def _take(self, seconds: float) -> None:
        """A process that fails ends the evaluations, not the run."""
        if self._children is None:
            return
        try:
            if not self._children.wait(seconds, [self._pipe]):
                return  # heard, perhaps, that it is alive
            result: dict[str, Any] = self._pipe.recv()
        except (RankFailedError, EOFError, ConnectionError) as error:
            warn(f"training.eval_interval: no further evaluations in this run: {error}")
            self._running, self._children = None, None
            return
        assert self._running is not None, "it only answers"
        moment, content = self._running
        self._running = None
        is_best = result["reward_mean"] > self._best
        self._best = max(self._best, result["reward_mean"])
        self._run.log_evaluation({**moment._asdict(), **result, "is_best": is_best})
        if is_best:
            path = self._run.save_best(content)
            self._callbacks.tell("on_checkpoint", path)
        score = f"{result['reward_mean']:.2f} ± {result['reward_std']:.2f} ({result['episodes']} episodes)"
        say(f"evaluation at step {moment.steps_global:,}: {score}{', the best so far' if is_best else ''}")


def evaluated_levels(env: EnvSettings) -> str:
    """Unseen ones where there are any."""
    return "train" if env.distribution_mode == "exploration" else "test"


def _serve(number: int, stop: StopRequest, settings_json: str, pipe: Any) -> None:
    """The process: parameters in, results out, until the pipe is closed."""
    del number, stop
    os.nice(LOWEST_PRIORITY)
    cores.limit_threads(1)
    from rlcluster import environments
    from rlcluster.evaluation.evaluate import level_settings, play, summarise
    from rlcluster.networks.policy import make_policy

    settings = Settings.model_validate_json(settings_json)
    spec = environments.describe(settings.env)
    policy = make_policy(settings.policy, spec, settings.env.seed, settings.hardware.kernels)
    env = level_settings(settings.env, evaluated_levels(settings.env), seed=0)
    while True:
        try:
            content = pipe.recv_bytes()
        except (EOFError, ConnectionError):
            return
        policy.load_state_dict(load_checkpoint(Path("parameters"), content).parameters())
        pipe.send(summarise(play(policy, env, settings.training.eval_episodes)))
