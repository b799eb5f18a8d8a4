"""Processes of one machine: the parent spawns a process per rank, watches all of them, and ends them together.

A dead rank ends the run within seconds, with its number and its traceback. A parent that dies takes its ranks with it.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection
from typing import Any, NamedTuple

from rlcluster.errors import EXIT_RUN_FAILED, UserError
from rlcluster.interruption import StopRequest

SET_PARENT_DEATH_SIGNAL = 1  # prctl(2), Linux
POLL_SECONDS = 0.5
GRACE_SECONDS = 5.0  # for the other ranks, after one has failed


class Outcome(NamedTuple):
    """How a rank ended: its result, or an error for the user, or the traceback of a bug."""

    result: Any = None
    error: str | None = None
    exit_code: int = 0
    is_bug: bool = False


class RankFailedError(UserError):
    """A rank has failed, and with it the run."""


def run_ranks(world_size: int, target: Callable[..., Any], arguments: tuple[Any, ...], stop: StopRequest) -> list[Any]:
    """target(rank, *arguments) in a process for each rank; returns their results.

    A stop request is passed on to the ranks, which all stop at the same update.
    """
    context = multiprocessing.get_context("spawn")  # a fork after torch has started its threads hangs
    pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
    ranks = [
        context.Process(target=_rank_main, args=(os.getpid(), sender, target, rank, arguments), name=f"rank {rank}")
        for rank, (_, sender) in enumerate(pipes)
    ]
    for process in ranks:
        process.start()
    for _, sender in pipes:
        sender.close()  # so that a dead rank shows as the end of its pipe
    try:
        return _watch(ranks, [receiver for receiver, _ in pipes], stop)
    finally:
        _end(ranks)


def _watch(ranks: list[Any], receivers: list[Any], stop: StopRequest) -> list[Any]:
    outcomes: dict[int, Outcome] = {}
    is_stop_passed_on = False
    while len(outcomes) < len(ranks):
        waiting = {receivers[k]: k for k in range(len(ranks)) if k not in outcomes}
        for receiver in connection.wait(list(waiting), POLL_SECONDS):
            rank = waiting[receiver]
            outcomes[rank] = _receive(ranks[rank], receiver)
            if outcomes[rank].error is not None:
                outcomes |= _collect_late(ranks, receivers, outcomes)
                raise _failure(outcomes)
        if stop.requested and not is_stop_passed_on:
            is_stop_passed_on = True
            for process in ranks:
                if process.is_alive():
                    os.kill(process.pid, signal.SIGTERM)
    return [outcomes[rank].result for rank in range(len(ranks))]


def _receive(process: Any, receiver: Any) -> Outcome:
    try:
        outcome: Outcome = receiver.recv()
    except EOFError:
        process.join(GRACE_SECONDS)
        code = process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return Outcome(error=f"the process ended by {how}, without a traceback", exit_code=EXIT_RUN_FAILED)
    return outcome


def _collect_late(ranks: list[Any], receivers: list[Any], outcomes: dict[int, Outcome]) -> dict[int, Outcome]:
    """What other ranks report soon after: the first to be heard need not be the one that began it."""
    late: dict[int, Outcome] = {}
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and len(late) + len(outcomes) < len(ranks):
        waiting = {receivers[k]: k for k in range(len(ranks)) if k not in outcomes and k not in late}
        for receiver in connection.wait(list(waiting), deadline - time.monotonic()):
            late[waiting[receiver]] = _receive(ranks[waiting[receiver]], receiver)
    return late


def _failure(outcomes: dict[int, Outcome]) -> RankFailedError:
    """The error that explains the others: a user's error, a sudden death, a bug; a lost connection comes last."""
    failed = {rank: outcome for rank, outcome in outcomes.items() if outcome.error is not None}

    def importance(rank: int) -> tuple[bool, bool, int]:
        error = failed[rank].error or ""
        return "Connection" in error or "gloo" in error, failed[rank].is_bug, rank

    rank = min(failed, key=importance)
    return RankFailedError(f"rank {rank} failed: {failed[rank].error}", failed[rank].exit_code)


def _end(ranks: list[Any]) -> None:
    """No process is left behind."""
    for process in ranks:
        process.join(POLL_SECONDS if process.is_alive() else 0)
        if process.is_alive():
            process.kill()
        process.join()


def _rank_main(parent: int, sender: Any, target: Callable[..., Any], rank: int, arguments: tuple[Any, ...]) -> None:
    """The first thing in a rank's process."""
    _die_with_parent(parent)
    try:
        outcome = Outcome(result=target(rank, *arguments))
    except UserError as error:
        outcome = Outcome(error=str(error), exit_code=error.exit_code)
    except Exception:  # noqa: BLE001 - whatever it is, the parent shows it
        outcome = Outcome(error="\n" + traceback.format_exc(), exit_code=EXIT_RUN_FAILED, is_bug=True)
    sender.send(outcome)
    sender.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if outcome.error is None else outcome.exit_code)  # gloo's threads may abort a normal exit


def _die_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(EXIT_RUN_FAILED)
