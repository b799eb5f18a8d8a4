"""Evaluation during training (`training.eval_interval`): on unseen levels, in a process of its own at low priority.

Rank 0 writes its parameters into a file when an evaluation is due and goes on; it takes the result when it is there.
One evaluation runs at a time: one that falls due meanwhile waits for it, and then has the newest parameters. Training
never waits: a thread listens to the process. Nothing of the training depends on the results: they go to the log, and
the best parameters into a checkpoint of their own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rlcluster.learning.model import Model
from rlcluster.runs.checkpoint import checkpoint_bytes, load_checkpoint
from rlcluster.settings.schema import EnvSettings, Settings
from rlcluster.settings.values import Interval, parse_interval
from rlcluster.system import cores
from rlcluster.system.console import say, warn
from rlcluster.system.processes import POLL_SECONDS, ChildProcesses, RankFailedError
from rlcluster.system.scratch import scratch_folder
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

    def finish(self, stop: StopRequest) -> None:
        """Waits for the evaluation that runs: the budget is spent, so it holds nothing up. A signal ends it."""

    def close(self) -> None: ...


class NoEvaluation:
    """Where none is asked for, and on ranks other than the first."""

    def advance(self, record: dict[str, Any]) -> None:
        pass

    def finish(self, stop: StopRequest) -> None:
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
        self._has_failed = False
        self._resources = ExitStack()
        self._file = self._resources.enter_context(scratch_folder()) / "parameters"
        self._process = EvaluationProcess(job.settings)

    def advance(self, record: dict[str, Any]) -> None:
        self._take(self._process.reply())
        now = Moment(*(record[name] for name in Moment._fields))
        if not self._has_failed and self._running is None and self._is_due(now) and self._model.is_synchronised:
            self._begin(now)

    def finish(self, stop: StopRequest) -> None:
        while self._running is not None and not stop.requested:
            self._take(self._process.reply(POLL_SECONDS))

    def close(self) -> None:
        self._process.close()
        self._resources.close()

    def _begin(self, now: Moment) -> None:
        self._model.pull()  # A3C's workers step shared parameters
        content = bytes(checkpoint_bytes(self._content(now)))
        self._running, self._last = (now, content), now
        try:
            self._file.write_bytes(content)
            self._process.send(str(self._file))
        except OSError as error:
            self._give_up(error)

    def _is_due(self, now: Moment) -> bool:
        if self._interval.steps is not None:
            return now.steps_global // self._interval.steps > self._last.steps_global // self._interval.steps
        return now.elapsed_seconds - self._last.elapsed_seconds >= self._interval.seconds

    def _content(self, now: Moment) -> dict[str, Any]:
        """A checkpoint that can be evaluated and begun with, but not resumed: it has the parameters alone."""
        parameters = {name: value.detach().clone() for name, value in self._model.policy.state_dict().items()}
        counters = {"updates": now.update, "steps_global": now.steps_global}
        return {"settings": self._settings.to_yaml(), "learner": {"parameters": parameters, **counters}}

    def _take(self, reply: dict[str, Any] | Exception | None) -> None:
        if isinstance(reply, Exception):
            self._give_up(reply)
        elif reply is not None:
            self._record(reply)

    def _give_up(self, error: Exception) -> None:
        """A process that fails ends the evaluations, not the run."""
        warn(f"training.eval_interval: no further evaluations in this run: {error}")
        self._running, self._has_failed = None, True

    def _record(self, result: dict[str, Any]) -> None:
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


class EvaluationProcess:
    """The process, and a thread of this one that waits for its replies and for its end."""

    def __init__(self, settings: Settings) -> None:
        self._pipe, theirs = multiprocessing.get_context("spawn").Pipe()
        arguments = settings.model_dump_json(), theirs
        self._children = ChildProcesses(1, _serve, lambda _: arguments, "evaluation", settings.parallel.timeout_seconds)
        self._children.start()
        theirs.close()
        self._replies: queue.SimpleQueue[dict[str, Any] | Exception] = queue.SimpleQueue()
        self._is_closing = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def send(self, file: str) -> None:
        """Asks for an evaluation of the parameters in `file`. So short a message never waits for its reader."""
        with contextlib.suppress(ConnectionError):  # it has ended, which is a reply too
            self._pipe.send(file)

    def reply(self, seconds: float = 0.0) -> dict[str, Any] | Exception | None:
        """A result, or the error that has ended the process; None if there is neither within `seconds`."""
        try:
            return self._replies.get(seconds > 0, seconds)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        self._is_closing.set()
        self._children.send_signal(LAST_SIGNAL)
        self._listener.join()
        self._children.end()
        self._pipe.close()

    def _listen(self) -> None:
        try:
            while not self._is_closing.is_set():
                if self._children.wait(POLL_SECONDS, [self._pipe]):
                    self._replies.put(self._pipe.recv())
        except (RankFailedError, EOFError, ConnectionError) as error:
            self._replies.put(error)
            self._children.send_signal(LAST_SIGNAL)


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
            file = Path(pipe.recv())
        except (EOFError, ConnectionError):
            return
        policy.load_state_dict(load_checkpoint(file).parameters())
        pipe.send(summarise(play(policy, env, settings.training.eval_episodes)))
