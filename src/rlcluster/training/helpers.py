"""Processes that execute commands: IMPALA's actors and A3C's workers.

Commands and replies are small messages over one pipe per helper; no lock or queue is shared. A helper that fails, or
does not reply within the time-out, ends the run.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from rlcluster.system import machine
from rlcluster.system.machine import Memory
from rlcluster.system.processes import POLL_SECONDS, ChildProcesses, InactivityTimer, RankFailedError
from rlcluster.system.signals import StopRequest


class GetState(NamedTuple):
    """Command that every helper understands: reply with your state, for a checkpoint."""


class Reply(NamedTuple):
    content: Any
    memory: Memory  # of the helper
    signal_number: int | None  # that the helper has received


class Helpers:
    """Helper processes of one rank. Each runs target(number, stop, setup, pipe), which calls `serve`."""

    def __init__(self, name: str, target: Callable[..., None], setups: Sequence[Any], timeout: float) -> None:
        """Returns when all are ready. `name` is the noun that errors use for a helper; `timeout` is in seconds."""
        self._name, self._inactivity = name, InactivityTimer(len(setups), timeout)
        pipes = [multiprocessing.get_context("spawn").Pipe() for _ in setups]
        self._pipes = {ours: number for number, (ours, _) in enumerate(pipes)}
        self._memories = [Memory(0.0, 0.0) for _ in setups]
        self._open = [1] * len(setups)  # commands without a reply; the first reply means: ready
        self._is_stop_passed_on = False
        self._children = ChildProcesses(len(pipes), target, lambda number: (setups[number], pipes[number][1]), name)
        self._children.start()
        try:
            for _, theirs in pipes:
                theirs.close()
            while self.num_open:
                self.replies()
        except BaseException:
            self._children.end()
            raise

    def __len__(self) -> int:
        return len(self._pipes)

    @property
    def num_open(self) -> int:
        """Commands that have no reply yet."""
        return sum(self._open)

    def is_busy(self, number: int) -> bool:
        return self._open[number] > 0

    def send(self, number: int, command: Any) -> None:
        self._open[number] += 1
        with suppress(OSError):  # it died: waiting for its reply will report how
            list(self._pipes)[number].send(command)

    def replies(self) -> list[tuple[int, Any]]:
        """Waits for the next replies; returns each with the number of its helper."""
        while True:
            start = time.monotonic()
            waiting = [pipe for pipe, number in self._pipes.items() if self._open[number]]
            replies = []
            for pipe in self._children.wait(POLL_SECONDS, waiting):
                with suppress(EOFError, OSError):  # it died: the next iteration reports how
                    replies.append((self._pipes[pipe], pipe.recv()))
            for number, reply in replies:
                self._open[number] -= 1
                self._inactivity.reset(number)
                self._memories[number] = reply.memory
                self._pass_on(reply.signal_number)
            heard = {number for number, _ in replies}
            others = [number for number in map(self._pipes.__getitem__, waiting) if number not in heard]
            silent = self._inactivity.advance(time.monotonic() - start, others)
            if silent is not None:
                raise RankFailedError(silent, self._inactivity.outcome(), self._name)
            if replies:
                return [(number, reply.content) for number, reply in replies]

    def memory(self) -> Memory:
        """Memory of all helpers and of this process."""
        return Memory(*(sum(column) for column in zip(machine.memory(), *self._memories, strict=True)))

    def close(self) -> None:
        for pipe in self._pipes:
            with suppress(OSError):  # it may have died
                pipe.send(None)
        self._children.end()

    def _pass_on(self, signal_number: int | None) -> None:
        """A signal that stops a helper stops the run: raise it in this process as well."""
        if signal_number is not None and not self._is_stop_passed_on:
            self._is_stop_passed_on = True
            signal.raise_signal(signal_number)


def serve(pipe: Any, stop: StopRequest, handle: Callable[[Any], Any]) -> None:
    """Replies to each command with the result of `handle`, until None arrives or the parent is gone. A signal is only
    reported in the replies: the parent decides when the run stops.
    """
    reply = None  # ready
    while _is_sent(pipe, Reply(reply, machine.memory(), stop.signal_number)):
        command = _next_command(pipe)
        if command is None:
            return
        reply = handle(command)


def _is_sent(pipe: Any, reply: Reply) -> bool:
    try:
        pipe.send(reply)
    except ConnectionError:
        return False
    return True


def _next_command(pipe: Any) -> Any:
    """None if the parent has died."""
    try:
        return pipe.recv()
    except (EOFError, ConnectionError):
        return None
