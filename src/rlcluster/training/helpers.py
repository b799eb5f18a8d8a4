"""Processes that follow orders: the actors of a learner, the workers of A3C.

Orders and answers are small messages in a pipe for each helper; no lock and no queue is shared. A helper that fails or
is silent for too long ends the run.
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


class TellState(NamedTuple):
    """An order that every helper follows: tell what you have of your own, for a checkpoint."""


class Answer(NamedTuple):
    content: Any
    memory: Memory  # of the helper's process
    signal_number: int | None  # that has reached it


class Helpers:
    """Each runs target(number, stop, assignment, pipe), which ends in `serve`. The pipe carries orders and answers."""

    def __init__(self, name: str, target: Callable[..., None], assignments: Sequence[Any], timeout: float) -> None:
        """Returns when all are ready. `name` is what errors call one of them; `timeout` is in seconds."""
        self._name, self._inactivity = name, InactivityTimer(len(assignments), timeout)
        pipes = [multiprocessing.get_context("spawn").Pipe() for _ in assignments]
        self._pipes = {ours: number for number, (ours, _) in enumerate(pipes)}
        self._memories = [Memory(0.0, 0.0) for _ in assignments]
        self._orders = [1] * len(assignments)  # not answered yet; the first answer is that it is ready
        self._is_stop_passed_on = False
        arguments = [(assignment, theirs) for assignment, (_, theirs) in zip(assignments, pipes, strict=True)]
        self._children = ChildProcesses(len(pipes), target, arguments.__getitem__, name)
        self._children.start()
        try:
            for _, theirs in pipes:
                theirs.close()
            while self.num_orders:
                self.answers()
        except BaseException:
            self._children.end()
            raise

    def __len__(self) -> int:
        return len(self._pipes)

    @property
    def num_orders(self) -> int:
        """That are not answered yet."""
        return sum(self._orders)

    def is_busy(self, number: int) -> bool:
        return self._orders[number] > 0

    def send(self, number: int, order: Any) -> None:
        self._orders[number] += 1
        with suppress(OSError):  # it has died: waiting for its answer says how
            list(self._pipes)[number].send(order)

    def answers(self) -> list[tuple[int, Any]]:
        """Waits for the next answers; each with the number of its helper."""
        while True:
            start = time.monotonic()
            waiting = [pipe for pipe, number in self._pipes.items() if self._orders[number]]
            answers = []
            for pipe in self._children.wait(POLL_SECONDS, waiting):
                with suppress(EOFError, OSError):  # it has died: the next turn of this loop says how
                    answers.append((self._pipes[pipe], pipe.recv()))
            for number, answer in answers:
                self._orders[number] -= 1
                self._inactivity.reset(number)
                self._memories[number] = answer.memory
                self._pass_on(answer.signal_number)
            heard = {number for number, _ in answers}
            others = [number for number in map(self._pipes.__getitem__, waiting) if number not in heard]
            silent = self._inactivity.advance(time.monotonic() - start, others)
            if silent is not None:
                raise RankFailedError(silent, self._inactivity.outcome(), self._name)
            if answers:
                return [(number, answer.content) for number, answer in answers]

    def memory(self) -> Memory:
        """Of all of them and of this process."""
        return Memory(*(sum(column) for column in zip(machine.memory(), *self._memories, strict=True)))

    def close(self) -> None:
        for pipe in self._pipes:
            with suppress(OSError):  # it may have died
                pipe.send(None)
        self._children.end()

    def _pass_on(self, signal_number: int | None) -> None:
        """What was meant to stop a helper stops the run: this process then has been told as well."""
        if signal_number is not None and not self._is_stop_passed_on:
            self._is_stop_passed_on = True
            signal.raise_signal(signal_number)


def serve(pipe: Any, stop: StopRequest, follow: Callable[[Any], Any]) -> None:
    """Answers each order with what `follow` makes of it, until None comes or nobody is there any more. A signal only
    goes into the answers: whoever gives the orders decides when the run stops.
    """
    answer = None  # ready
    while _is_sent(pipe, Answer(answer, machine.memory(), stop.signal_number)):
        order = _next_order(pipe)
        if order is None:
            return
        answer = follow(order)


def _is_sent(pipe: Any, answer: Answer) -> bool:
    try:
        pipe.send(answer)
    except ConnectionError:
        return False
    return True


def _next_order(pipe: Any) -> Any:
    """None also if whoever gives the orders has died."""
    try:
        return pipe.recv()
    except (EOFError, ConnectionError):
        return None
