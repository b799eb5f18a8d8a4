"""Child processes on one machine: the parent spawns one per rank, watches them all, and ends them together.

A dead rank ends the run within seconds, with its number and its traceback. If the parent dies, its ranks die with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection, resource_tracker
from types import ModuleType, TracebackType
from typing import Any, NamedTuple, Self

from rlcluster.system import heartbeat
from rlcluster.system.console import protect_streams
from rlcluster.system.errors import EXIT_RUN_FAILED, EXIT_TIMEOUT, RankError, UserError, explained, reason_of
from rlcluster.system.heartbeat import Beat, InactivityTimer
from rlcluster.system.signals import SIGNALS, StopRequest

SET_PARENT_DEATH_SIGNAL = 1  # prctl(2), Linux
POLL_SECONDS = 0.5
GRACE_SECONDS = 5.0  # for the other ranks to report, after one has failed


class End(enum.IntEnum):
    """How a process ended. If several failed, the lowest value is the root cause."""

    USER_ERROR = 0
    DEATH = 1
    BUG = 2
    LOST_PEERS = 3
    RESULT = 4


class Outcome(NamedTuple):
    """The outcome of a process: its result, an error for the user, or the traceback of a bug."""

    end: End
    result: Any = None
    error: str = ""
    exit_code: int = EXIT_RUN_FAILED
    lost_rank: int | None = None
    reason: str = ""  # one line; if empty, the first line of the error


class RankFailedError(RankError):
    """Processes have failed, for one cause. A restart may help unless the error is the user's."""

    def __init__(self, numbers: Sequence[int], outcome: Outcome, name: str = "rank") -> None:
        lost_peers = outcome.end is End.LOST_PEERS
        who = f"{name}{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"
        message = outcome.error if lost_peers else f"{who} failed: {outcome.error}"
        own_rank = numbers[0] if name == "rank" and len(numbers) == 1 else None  # actors and workers are not ranks
        super().__init__(message, outcome.exit_code, outcome.lost_rank if lost_peers else own_rank)
        line = outcome.reason or outcome.error.strip().splitlines()[0]
        self.reason: str = line if name == "rank" and len(numbers) == 1 else f"{who} failed: {line}"
        self.may_pass = outcome.end is not End.USER_ERROR


class ChildProcesses:
    """Processes that this one owns: started, watched and ended together. Each runs target(number, stop, ...).

    They start with signals blocked: a signal that arrives before its handler is installed stays pending.
    """

    def __init__(
        self,
        size: int,
        target: Callable[..., Any],
        arguments: Callable[[int], tuple[Any, ...]],
        name: str = "rank",
        timeout_seconds: float | None = None,
    ) -> None:
        """`name` is what errors call a process. One without a heartbeat for `timeout_seconds` has failed."""
        self._name, self._inactivity = name, InactivityTimer(size, timeout_seconds, POLL_SECONDS, has_beats=True)
        context = multiprocessing.get_context("spawn")  # fork hangs once torch has started its threads
        self._outcomes: dict[int, Outcome] = {}
        self._pipes = [context.Pipe(duplex=False) for _ in range(size)]
        self._processes = [
            context.Process(
                target=_child_main,
                args=(os.getpid(), sender, timeout_seconds is not None, target, number, arguments(number)),
                name=f"{name} {number}",
            )
            for number, (_, sender) in enumerate(self._pipes)
        ]

    def start(self) -> None:
        resource_tracker.ensure_running()  # else the first child starts it, which unblocks signals
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            with _hidden_main_module():
                for process in self._processes:
                    process.start()
        except BaseException:
            self.end()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        for _, sender in self._pipes:
            sender.close()  # so that a dead process shows as EOF on its pipe

    def end(self) -> None:
        """Joins every process, and kills those that do not exit."""
        for process in self._processes:
            if process.pid is None:
                continue  # never started
            process.join(POLL_SECONDS if process.is_alive() else 0)
            if process.is_alive():
                process.kill()
            process.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    @property
    def all_done(self) -> bool:
        return len(self._outcomes) == len(self._processes)

    @property
    def results(self) -> list[Any]:
        """The results in order; only once `all_done`."""
        return [self._outcomes[number].result for number in range(len(self._processes))]

    def wait(self, seconds: float, pipes: Sequence[Any] = ()) -> list[Any]:
        """Waits until one of `pipes` is readable or a process has ended, for `seconds` at most; returns the readable
        `pipes`. Raises a RankFailedError if a process has failed.
        """
        start = time.monotonic()
        ready = self._collect(seconds, pipes)
        silent = self._inactivity.advance(time.monotonic() - start, self._running())
        if silent:
            raise self.timed_out(silent)
        if any(outcome.end is not End.RESULT for outcome in self._outcomes.values()):
            self._collect_late()
            number = min(self._outcomes, key=self._causality)
            raise RankFailedError([number], self._outcomes[number], self._name)
        return ready

    def timed_out(self, silent: Sequence[int]) -> RankFailedError:
        """The error for processes that have been silent for too long."""
        outcome = Outcome(End.DEATH, error=self._inactivity.reason(silent), exit_code=EXIT_TIMEOUT)
        return RankFailedError(silent, outcome, self._name)

    def send_signal(self, number: int) -> None:
        for process in self._processes:
            if process.pid is not None and process.is_alive():
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(process.pid, number)

    def _collect(self, seconds: float, pipes: Sequence[Any]) -> list[Any]:
        waiting = {pipe: k for k, (pipe, _) in enumerate(self._pipes) if k not in self._outcomes}
        ready = connection.wait([*waiting, *pipes], seconds)
        for pipe in ready:
            if pipe in waiting:
                self._drain(waiting[pipe], pipe)
        return [pipe for pipe in pipes if pipe in ready]

    def _drain(self, number: int, pipe: Any) -> None:
        """Reads all that a process has sent: its heartbeats may have piled up while this one was busy."""
        is_more = True
        while is_more:
            message = _receive(self._processes[number], pipe)
            self._inactivity.heard(number, message)
            if isinstance(message, Outcome):
                self._outcomes[number] = message
            is_more = number not in self._outcomes and pipe.poll()

    def _causality(self, number: int) -> tuple[End, bool, int]:
        """Sorts the root cause first. Of ranks that lost their peers, one that timed out was first: when it left, the
        connections of the others closed.
        """
        outcome = self._outcomes[number]
        return outcome.end, outcome.exit_code != EXIT_TIMEOUT, number

    def _running(self) -> list[int]:
        return [number for number in range(len(self._processes)) if number not in self._outcomes]

    def _collect_late(self) -> None:
        """Collects what the others report within the grace period: the first report need not be the root cause."""
        deadline = time.monotonic() + GRACE_SECONDS
        while not self.all_done and time.monotonic() < deadline:
            self._collect(max(0.0, deadline - time.monotonic()), ())


@contextlib.contextmanager
def _hidden_main_module() -> Iterator[None]:
    """A spawned process imports the main module of the one that starts it. Ours need only rlcluster; a user's script
    without `if __name__ == "__main__":` would train again in each of them.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def run_ranks(
    world_size: int,
    target: Callable[..., Any],
    arguments: tuple[Any, ...],
    stop: StopRequest,
    timeout_seconds: float | None = None,
    answer: Callable[[Any], None] | None = None,
) -> list[Any]:
    """Runs target(rank, stop, *arguments) in one process per rank; returns their results.

    A stop request is forwarded to the ranks, which all stop at the same update. With `answer`, the ranks have one more
    argument: rank 0 a pipe, whose messages `answer` receives and replies to in this process, the others None.
    """
    is_stop_forwarded = False
    ours, theirs = multiprocessing.get_context("spawn").Pipe() if answer is not None else (None, None)

    def arguments_of(rank: int) -> tuple[Any, ...]:
        return arguments if answer is None else (*arguments, theirs if rank == 0 else None)

    with ChildProcesses(world_size, target, arguments_of, timeout_seconds=timeout_seconds) as children:
        while not children.all_done:
            for pipe in children.wait(POLL_SECONDS, [] if ours is None else [ours]):
                assert answer is not None
                answer(pipe)
            if stop.signal_number is not None and not is_stop_forwarded:
                is_stop_forwarded = True
                children.send_signal(stop.signal_number)
        return children.results


def _receive(process: Any, receiver: Any) -> Outcome | Beat:
    """The outcome of a process, or a heartbeat."""
    try:
        message: Outcome | Beat = receiver.recv()
    except EOFError:
        process.join(GRACE_SECONDS)
        code = process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        out_of_memory = "; the system may have been out of memory" if code == -signal.SIGKILL else ""
        return Outcome(End.DEATH, error=f"the process ended by {how}, without a traceback{out_of_memory}")
    return message


def _child_main(
    parent: int, sender: Any, beats: bool, target: Callable[..., Any], number: int, arguments: tuple[Any, ...]
) -> None:
    """The entry point of a child process."""
    die_with_parent(parent)
    protect_streams()
    sending = threading.Lock()  # heartbeat and outcome share the pipe
    if beats:
        threading.Thread(target=heartbeat.beat, args=(sender, sending), daemon=True).start()
    with StopRequest(ignores_second_signal=True) as stop:  # to the very end: a late signal must not lose the outcome
        outcome = _outcome(target, number, (stop, *arguments))
        sending.acquire()  # never released: no heartbeat after the outcome
        with contextlib.suppress(ConnectionError):  # the parent has died, and so will this process
            sender.send(outcome)
        sender.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0 if outcome.end is End.RESULT else outcome.exit_code)  # gloo's threads may abort a normal exit


def _outcome(target: Callable[..., Any], rank: int, arguments: tuple[Any, ...]) -> Outcome:
    try:
        return Outcome(End.RESULT, result=target(rank, *arguments))
    except RankFailedError as error:  # from a child of this process
        end = End.DEATH if error.may_pass else End.USER_ERROR
        return Outcome(end, error=str(error), exit_code=error.exit_code, reason=error.reason)
    except RankError as error:
        return Outcome(End.LOST_PEERS, error=str(error), exit_code=error.exit_code, lost_rank=error.failed_rank)
    except UserError as error:
        return Outcome(End.USER_ERROR, error=str(error), exit_code=error.exit_code)
    except Exception as error:  # noqa: BLE001 - the parent reports it
        known = explained(error)
        if known is not None:
            return Outcome(End.USER_ERROR, error=str(known), exit_code=known.exit_code)
        return Outcome(End.BUG, error="\n" + traceback.format_exc(), reason=reason_of(error))


def die_with_parent(parent: int) -> None:
    """Makes this process die when `parent` does, however it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before prctl took effect
        os._exit(EXIT_RUN_FAILED)
