"""Processes of one machine: the parent spawns a process per rank, watches all of them, and ends them together.

A dead rank ends the run within seconds, with its number and its traceback. A parent that dies takes its ranks with it.
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
GRACE_SECONDS = 5.0  # for the other ranks, after one has failed


class End(enum.IntEnum):
    """How a rank ended; of several, the lower number explains the others."""

    USER_ERROR = 0
    DEATH = 1
    BUG = 2
    LOST_OTHERS = 3
    RESULT = 4


class Outcome(NamedTuple):
    """What a rank leaves: its result, or an error for the user, or the traceback of a bug."""

    end: End
    result: Any = None
    error: str = ""
    exit_code: int = EXIT_RUN_FAILED
    lost_rank: int | None = None
    reason: str = ""  # in one line; empty: the first line of the error, of a traceback the last


class RankFailedError(RankError):
    """A rank has failed. Trying again may help unless the error is the user's."""

    def __init__(self, rank: int, outcome: Outcome, name: str = "rank") -> None:
        is_silent = outcome.end is End.LOST_OTHERS
        message = outcome.error if is_silent else f"{name} {rank} failed: {outcome.error}"
        own_rank = rank if name == "rank" else None  # a helper is no rank: its leader has failed
        super().__init__(message, outcome.exit_code, outcome.lost_rank if is_silent else own_rank)
        line = outcome.reason or outcome.error.strip().splitlines()[-1 if outcome.end is End.BUG else 0]
        self.reason = line if name == "rank" else f"{name} {rank} failed: {line}"
        self.may_pass = outcome.end is not End.USER_ERROR


class Crew:
    """Processes that this one owns: started together, watched, ended together. Each runs target(number, stop, ...).

    A signal that reaches one of them before it can handle it waits: they begin with signals blocked.
    """

    def __init__(
        self,
        size: int,
        target: Callable[..., Any],
        arguments: Callable[[int], tuple[Any, ...]],
        name: str = "rank",
        timeout_seconds: float | None = None,
    ) -> None:
        """`name` is what errors call one of them. One that gives no sign of life for so long has failed."""
        self._name, self._silence = name, Silence(size, timeout_seconds)
        context = multiprocessing.get_context("spawn")  # a fork after torch has started its threads hangs
        self._outcomes: dict[int, Outcome] = {}
        self._pipes = [context.Pipe(duplex=False) for _ in range(size)]
        self._processes = [
            context.Process(
                target=_member_main,
                args=(os.getpid(), sender, timeout_seconds is not None, target, number, arguments(number)),
                name=f"{name} {number}",
            )
            for number, (_, sender) in enumerate(self._pipes)
        ]

    def start(self) -> None:
        resource_tracker.ensure_running()  # the first process of all would start it, and that unblocks signals
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
            sender.close()  # so that a dead process shows as the end of its pipe

    def end(self) -> None:
        """No process is left behind."""
        for process in self._processes:
            if process.pid is None:
                continue  # it was never started
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
    def is_done(self) -> bool:
        return len(self._outcomes) == len(self._processes)

    @property
    def results(self) -> list[Any]:
        """When all are done."""
        return [self._outcomes[number].result for number in range(len(self._processes))]

    def wait(self, seconds: float, pipes: Sequence[Any] = ()) -> list[Any]:
        """Until one of `pipes` has something to read, or a process has ended; returns those of `pipes` that have.

        Raises a RankFailedError if a process has failed.
        """
        start = time.monotonic()
        ready = self._collect(seconds, pipes)
        silent = self._silence.add(time.monotonic() - start, self._processes_at_work())
        if silent is not None:
            self._outcomes[silent] = self._silence.outcome()
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
                self._silence.end(number)
                outcome = _receive(self._processes[number], pipe)
                if outcome is not None:
                    self._outcomes[number] = outcome
        return [pipe for pipe in pipes if pipe in ready]

    def _processes_at_work(self) -> list[int]:
        return [number for number in range(len(self._processes)) if number not in self._outcomes]

    def _collect_late(self) -> None:
        """What others report soon after: the first to be heard need not be the one that began it."""
        deadline = time.monotonic() + GRACE_SECONDS
        while not self.is_done and time.monotonic() < deadline:
            self._collect(max(0.0, deadline - time.monotonic()), ())


class Silence:
    """For how long each of some processes has not been heard while this one was listening. Time in which this one was
    busy or stopped itself (Ctrl-Z) does not count.
    """

    def __init__(self, size: int, timeout_seconds: float | None) -> None:
        self._seconds, self._timeout_seconds = [0.0] * size, timeout_seconds

    def end(self, number: int) -> None:
        """It has been heard."""
        self._seconds[number] = 0.0

    def add(self, seconds: float, numbers: Sequence[int]) -> int | None:
        """Nothing was heard of these for so long; returns the first of them that has been silent for too long."""
        if self._timeout_seconds is None:
            return None
        for number in numbers:
            self._seconds[number] += min(seconds, 2 * POLL_SECONDS)
            if self._seconds[number] > self._timeout_seconds:
                return number
        return None

    def outcome(self) -> Outcome:
        """Of a process that has been silent for too long."""
        silence = (
            f"it did not answer for parallel.timeout_seconds={self._timeout_seconds:g}; raise it if that is too short"
        )
        return Outcome(End.DEATH, error=silence, exit_code=EXIT_TIMEOUT)


def run_ranks(
    world_size: int,
    target: Callable[..., Any],
    arguments: tuple[Any, ...],
    stop: StopRequest,
    timeout_seconds: float | None = None,
) -> list[Any]:
    """target(rank, stop, *arguments) in a process for each rank; returns their results.

    A stop request is passed on to the ranks, which all stop at the same update.
    """
    is_stop_passed_on = False
    with Crew(world_size, target, lambda rank: arguments, timeout_seconds=timeout_seconds) as crew:
        while not crew.is_done:
            crew.wait(POLL_SECONDS)
            if stop.signal_number is not None and not is_stop_passed_on:
                is_stop_passed_on = True
                crew.send_signal(stop.signal_number)
        return crew.results


def _receive(process: Any, receiver: Any) -> Outcome | None:
    """The outcome of a process; None if it is just a sign of life."""
    try:
        outcome: Outcome | None = receiver.recv()
    except EOFError:
        process.join(GRACE_SECONDS)
        code = process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        out_of_memory = "; the system may have been out of memory" if code == -signal.SIGKILL else ""
        return Outcome(End.DEATH, error=f"the process ended by {how}, without a traceback{out_of_memory}")
    return outcome


def _member_main(
    parent: int, sender: Any, beats: bool, target: Callable[..., Any], number: int, arguments: tuple[Any, ...]
) -> None:
    """The first thing in a process of a crew."""
    die_with_parent(parent)
    sending = threading.Lock()  # of this process: for its heartbeat and its outcome
    if beats:
        threading.Thread(target=_beat, args=(sender, sending), daemon=True).start()
    with StopRequest(is_patient=True) as stop:  # to the very end: a late signal must not spoil the outcome
        outcome = _outcome(target, number, (stop, *arguments))
        sending.acquire()  # and never released: the heart stops
        with contextlib.suppress(ConnectionError):  # the parent has died, and so will this process
            sender.send(outcome)
        sender.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0 if outcome.end is End.RESULT else outcome.exit_code)  # gloo's threads may abort a normal exit


def _beat(sender: Any, sending: threading.Lock) -> None:
    """Signs of life, as long as this process is running at all."""
    with contextlib.suppress(ConnectionError):  # the parent has died, and so will this process
        while True:
            with sending:
                sender.send(None)
            time.sleep(BEAT_SECONDS)


def _outcome(target: Callable[..., Any], rank: int, arguments: tuple[Any, ...]) -> Outcome:
    try:
        return Outcome(End.RESULT, result=target(rank, *arguments))
    except RankFailedError as error:  # one of a crew of its own
        end = End.DEATH if error.may_pass else End.USER_ERROR
        return Outcome(end, error=str(error), exit_code=error.exit_code, reason=error.reason)
    except RankError as error:
        return Outcome(End.LOST_OTHERS, error=str(error), exit_code=error.exit_code, lost_rank=error.failed_rank)
    except UserError as error:
        return Outcome(End.USER_ERROR, error=str(error), exit_code=error.exit_code)
    except Exception:  # noqa: BLE001 - whatever it is, the parent shows it
        return Outcome(End.BUG, error="\n" + traceback.format_exc())


def die_with_parent(parent: int) -> None:
    """This process ends when the process `parent` does, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(EXIT_RUN_FAILED)
