"""Processes of one machine: the parent spawns a process per rank, watches all of them, and ends them together.

A dead rank ends the run within seconds, with its number and its traceback. A parent that dies takes its ranks with it.
"""

from __future__ import annotations

import ctypes
import enum
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection, resource_tracker
from typing import Any, NamedTuple

from rlcluster.errors import EXIT_RUN_FAILED, RankError, UserError
from rlcluster.interruption import SIGNALS, StopRequest

SET_PARENT_DEATH_SIGNAL = 1  # prctl(2), Linux
POLL_SECONDS = 0.5
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


class RankFailedError(RankError):
    """A rank has failed. Trying again may help unless the error is the user's."""

    def __init__(self, rank: int, outcome: Outcome) -> None:
        is_silent = outcome.end is End.LOST_OTHERS
        message = outcome.error if is_silent else f"rank {rank} failed: {outcome.error}"
        super().__init__(message, outcome.exit_code, outcome.lost_rank if is_silent else rank)
        self.reason = outcome.error.strip().splitlines()[-1 if outcome.end is End.BUG else 0]  # in one line
        self.may_pass = outcome.end is not End.USER_ERROR


def run_ranks(world_size: int, target: Callable[..., Any], arguments: tuple[Any, ...], stop: StopRequest) -> list[Any]:
    """target(rank, stop, *arguments) in a process for each rank; returns their results.

    A stop request is passed on to the ranks, which all stop at the same update. A signal that reaches a rank before it
    can handle it waits: the ranks begin with signals blocked.
    """
    context = multiprocessing.get_context("spawn")  # a fork after torch has started its threads hangs
    pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
    ranks = [
        context.Process(target=_rank_main, args=(os.getpid(), sender, target, rank, arguments), name=f"rank {rank}")
        for rank, (_, sender) in enumerate(pipes)
    ]
    try:
        resource_tracker.ensure_running()  # the first process of all would start it, and that unblocks signals
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            for process in ranks:
                process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        for _, sender in pipes:
            sender.close()  # so that a dead rank shows as the end of its pipe
        return _watch(ranks, [receiver for receiver, _ in pipes], stop)
    finally:
        _end([process for process in ranks if process.pid is not None])


def _watch(ranks: list[Any], receivers: list[Any], stop: StopRequest) -> list[Any]:
    outcomes: dict[int, Outcome] = {}
    is_stop_passed_on = False
    while len(outcomes) < len(ranks):
        _collect(ranks, receivers, outcomes, POLL_SECONDS)
        if any(outcome.end is not End.RESULT for outcome in outcomes.values()):
            _collect_late(ranks, receivers, outcomes)
            rank = min(outcomes, key=lambda rank: (outcomes[rank].end, rank))
            raise RankFailedError(rank, outcomes[rank])
        if stop.signal_number is not None and not is_stop_passed_on:
            is_stop_passed_on = True
            for process in ranks:
                if process.is_alive():
                    os.kill(process.pid, stop.signal_number)
    return [outcomes[rank].result for rank in range(len(ranks))]


def _collect(ranks: list[Any], receivers: list[Any], outcomes: dict[int, Outcome], seconds: float) -> None:
    """Adds the outcomes that come within `seconds`: returns after the first ones."""
    waiting = {receivers[k]: k for k in range(len(ranks)) if k not in outcomes}
    for receiver in connection.wait(list(waiting), seconds):
        outcomes[waiting[receiver]] = _receive(ranks[waiting[receiver]], receiver)


def _collect_late(ranks: list[Any], receivers: list[Any], outcomes: dict[int, Outcome]) -> None:
    """What other ranks report soon after: the first to be heard need not be the one that began it."""
    deadline = time.monotonic() + GRACE_SECONDS
    while len(outcomes) < len(ranks) and time.monotonic() < deadline:
        _collect(ranks, receivers, outcomes, max(0.0, deadline - time.monotonic()))


def _receive(process: Any, receiver: Any) -> Outcome:
    try:
        outcome: Outcome = receiver.recv()
    except EOFError:
        process.join(GRACE_SECONDS)
        code = process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        out_of_memory = "; the system may have been out of memory" if code == -signal.SIGKILL else ""
        return Outcome(End.DEATH, error=f"the process ended by {how}, without a traceback{out_of_memory}")
    return outcome


def _end(ranks: list[Any]) -> None:
    """No process is left behind."""
    for process in ranks:
        process.join(POLL_SECONDS if process.is_alive() else 0)
        if process.is_alive():
            process.kill()
        process.join()


def _rank_main(parent: int, sender: Any, target: Callable[..., Any], rank: int, arguments: tuple[Any, ...]) -> None:
    """The first thing in a rank's process."""
    die_with_parent(parent)
    with StopRequest(is_patient=True) as stop:  # to the very end: a late signal must not spoil the outcome
        outcome = _outcome(target, rank, (stop, *arguments))
        sender.send(outcome)
        sender.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0 if outcome.end is End.RESULT else outcome.exit_code)  # gloo's threads may abort a normal exit


def _outcome(target: Callable[..., Any], rank: int, arguments: tuple[Any, ...]) -> Outcome:
    try:
        return Outcome(End.RESULT, result=target(rank, *arguments))
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
