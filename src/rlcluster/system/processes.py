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
from collections.abc import Callable, Sequence
from multiprocessing import connection, resource_tracker
from types import TracebackType
from typing import Any, NamedTuple, Self

from rlcluster.system.errors import EXIT_RUN_FAILED, EXIT_TIMEOUT, RankError, UserError
from rlcluster.system.signals import SIGNALS, StopRequest

SET_PARENT_DEATH_SIGNAL = 1  # prctl(2), Linux
POLL_SECONDS = 0.5
BEAT_SECONDS = 1.0
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
    reason: str = ""  # one line; if empty, the first line of the error, or the last line of a traceback


class RankFailedError(RankError):
    """A process has failed. A restart may help unless the error is the user's."""

    def __init__(self, rank: int, outcome: Outcome, name: str = "rank") -> None:
        lost_peers = outcome.end is End.LOST_PEERS
        message = outcome.error if lost_peers else f"{name} {rank} failed: {outcome.error}"
        own_rank = rank if name == "rank" else None  # actors and workers are not ranks
        super().__init__(message, outcome.exit_code, outcome.lost_rank if lost_peers else own_rank)
        line = outcome.reason or outcome.error.strip().splitlines()[-1 if outcome.end is End.BUG else 0]
        self.reason = line if name == "rank" else f"{name} {rank} failed: {line}"
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
        self._name, self._inactivity = name, InactivityTimer(size, timeout_seconds)
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
        if silent is not None:
            self._outcomes[silent] = self._inactivity.outcome()
        if any(outcome.end is not End.RESULT for outcome in self._outcomes.values()):
            self._collect_late()
            number = min(self._outcomes, key=lambda number: (self._outcomes[number].end, number))
            raise RankFailedError(number, self._outcomes[number], self._name)
        return ready

    def send_signal(self, number: int) -> None:
        for process in self._processes:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, number)

    def _collect(self, seconds: float, pipes: Sequence[Any]) -> list[Any]:
        waiting = {pipe: k for k, (pipe, _) in enumerate(self._pipes) if k not in self._outcomes}
        ready = connection.wait([*waiting, *pipes], seconds)
        for pipe in ready:
            if pipe in waiting:
                number = waiting[pipe]
                self._inactivity.reset(number)
                outcome = _receive(self._processes[number], pipe)
                if outcome is not None:
                    self._outcomes[number] = outcome
        return [pipe for pipe in pipes if pipe in ready]

    def _running(self) -> list[int]:
        return [number for number in range(len(self._processes)) if number not in self._outcomes]

    def _collect_late(self) -> None:
        """Collects what the others report within the grace period: the first report need not be the root cause."""
        deadline = time.monotonic() + GRACE_SECONDS
        while not self.all_done and time.monotonic() < deadline:
            self._collect(max(0.0, deadline - time.monotonic()), ())


class InactivityTimer:
    """How long each of a set of processes has been silent while this one listened. Time in which this one was busy or
    stopped (Ctrl-Z) does not count.
    """

    def __init__(self, size: int, timeout_seconds: float | None) -> None:
        self._seconds, self._timeout_seconds = [0.0] * size, timeout_seconds

    def reset(self, number: int) -> None:
        """The process has sent a message."""
        self._seconds[number] = 0.0

    def advance(self, seconds: float, numbers: Sequence[int]) -> int | None:
        """Adds `seconds` of silence to the processes `numbers`; returns the first that has timed out, if any."""
        if self._timeout_seconds is None:
            return None
        for number in numbers:
            self._seconds[number] += min(seconds, 2 * POLL_SECONDS)
            if self._seconds[number] > self._timeout_seconds:
                return number
        return None

    def outcome(self) -> Outcome:
        """The outcome of a process that has timed out."""
        error = (
            f"it did not answer for parallel.timeout_seconds={self._timeout_seconds:g}; raise it if that is too short"
        )
        return Outcome(End.DEATH, error=error, exit_code=EXIT_TIMEOUT)


def run_ranks(
    world_size: int,
    target: Callable[..., Any],
    arguments: tuple[Any, ...],
    stop: StopRequest,
    timeout_seconds: float | None = None,
) -> list[Any]:
    """Runs target(rank, stop, *arguments) in one process per rank; returns their results.

    A stop request is forwarded to the ranks, which all stop at the same update.
    """
    is_stop_forwarded = False
    with ChildProcesses(world_size, target, lambda rank: arguments, timeout_seconds=timeout_seconds) as children:
        while not children.all_done:
            children.wait(POLL_SECONDS)
            if stop.signal_number is not None and not is_stop_forwarded:
                is_stop_forwarded = True
                children.send_signal(stop.signal_number)
        return children.results


def _receive(process: Any, receiver: Any) -> Outcome | None:
    """The outcome of a process; None for a heartbeat."""
    try:
        outcome: Outcome | None = receiver.recv()
    except EOFError:
        process.join(GRACE_SECONDS)
        code = process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        out_of_memory = "; the system may have been out of memory" if code == -signal.SIGKILL else ""
        return Outcome(End.DEATH, error=f"the process ended by {how}, without a traceback{out_of_memory}")
    return outcome


def _child_main(
    parent: int, sender: Any, beats: bool, target: Callable[..., Any], number: int, arguments: tuple[Any, ...]
) -> None:
    """The entry point of a child process."""
    die_with_parent(parent)
    sending = threading.Lock()  # heartbeat and outcome share the pipe
    if beats:
        threading.Thread(target=_beat, args=(sender, sending), daemon=True).start()
    with StopRequest(ignores_second_signal=True) as stop:  # to the very end: a late signal must not lose the outcome
        outcome = _outcome(target, number, (stop, *arguments))
        sending.acquire()  # never released: no heartbeat after the outcome
        with contextlib.suppress(ConnectionError):  # the parent has died, and so will this process
            sender.send(outcome)
        sender.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0 if outcome.end is End.RESULT else outcome.exit_code)  # gloo's threads may abort a normal exit


def _beat(sender: Any, sending: threading.Lock) -> None:
    """Sends heartbeats for as long as this process runs."""
    with contextlib.suppress(ConnectionError):  # the parent has died, and so will this process
        while True:
            with sending:
                sender.send(None)
            time.sleep(BEAT_SECONDS)


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
    except Exception:  # noqa: BLE001 - the parent reports it
        return Outcome(End.BUG, error="\n" + traceback.format_exc())


def die_with_parent(parent: int) -> None:
    """Makes this process die when `parent` does, however it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before prctl took effect
        os._exit(EXIT_RUN_FAILED)
