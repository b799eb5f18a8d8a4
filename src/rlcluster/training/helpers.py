"""Processes that execute commands: IMPALA's actors and A3C's workers.

Commands and replies are small messages over one pipe per helper; no lock or queue is shared. A helper that fails, or
does not reply to a command within the time-out, ends the run.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from rlcluster.system import machine
from rlcluster.system.heartbeat import InactivityTimer
from rlcluster.system.machine import Memory
from rlcluster.system.phases import clock
from rlcluster.system.processes import POLL_SECONDS, ChildProcesses
from rlcluster.system.signals import StopRequest, requested_signal

if TYPE_CHECKING:
    from rlcluster.networks.policy import Policy
    from rlcluster.profiling.recorder import ProcessName, Recorder


class GetState(NamedTuple):
    """Command that every helper understands: reply with your state, for a checkpoint."""


class StartRecording(NamedTuple):
    """Command that `serve` understands: from now on this helper is profiled."""

    name: ProcessName


class StopRecording(NamedTuple):
    """Command that `serve` understands: reply with what was recorded."""


class Recorded(NamedTuple):
    """Reply to the two commands above."""

    recording: dict[str, Any] | None


class Reply(NamedTuple):
    content: Any
    memory: Memory  # of the helper
    signal_number: int | None  # that the helper has received


class Helpers:
    """Helper processes of one rank. Each runs target(number, stop, setup, pipe), which calls `serve`."""

    def __init__(self, name: str, target: Callable[..., None], setups: Sequence[Any], timeout: float) -> None:
        """Returns when all are ready. `name` is the noun that errors use for a helper; `timeout` is in seconds."""
        self._inactivity = InactivityTimer(len(setups), timeout, POLL_SECONDS)
        pipes = [multiprocessing.get_context("spawn").Pipe() for _ in setups]
        self._pipes = {ours: number for number, (ours, _) in enumerate(pipes)}
        self._memories = [Memory(0.0, 0.0) for _ in setups]
        self._open = [1] * len(setups)  # commands without a reply; the first reply means: ready
        self._is_starting, self._is_stop_passed_on = True, False
        self._name = name
        self._recordings: list[dict[str, Any]] = []
        self._early: list[tuple[int, Any]] = []  # replies that arrived while waiting for recordings
        self._children = ChildProcesses(
            len(pipes), target, lambda number: (setups[number], pipes[number][1]), name, timeout
        )
        try:
            self._children.start()
            for _, theirs in pipes:
                theirs.close()
            while self.num_open:
                self.replies()
            self._is_starting = False
        except BaseException:
            self._children.end()
            raise

    def __len__(self) -> int:
        return len(self._pipes)

    @property
    def num_open(self) -> int:
        """Commands whose reply has not been returned yet."""
        return sum(self._open) + len(self._early)

    def is_busy(self, number: int) -> bool:
        return self._open[number] > 0

    def send(self, number: int, command: Any) -> None:
        self._open[number] += 1
        with suppress(OSError):  # it died: waiting for its reply will report how
            list(self._pipes)[number].send(command)

    def start_recording(self, names: Sequence[ProcessName]) -> None:
        """Each helper is profiled from its next command on."""
        for number, name in enumerate(names):
            self.send(number, StartRecording(name._replace(helper=f"{self._name} {number}")))

    def recordings(self) -> list[dict[str, Any]]:
        """Ends the recordings, after the commands that the helpers already have, and returns them."""
        for number in range(len(self)):
            self.send(number, StopRecording())
        while len(self._recordings) < len(self):
            self._early += self._next_replies()
        recordings, self._recordings = self._recordings, []
        return recordings

    def replies(self) -> list[tuple[int, Any]]:
        """Waits for the next replies; returns each with the number of its helper. Empty after a mere recording."""
        early, self._early = self._early, []
        with clock("wait"):
            return early or self._next_replies()

    def _next_replies(self) -> list[tuple[int, Any]]:
        """Waits for replies, keeps recordings, returns the others."""
        contents = self._receive()
        self._recordings += [
            one.recording for _, one in contents if isinstance(one, Recorded) and one.recording is not None
        ]
        return [(number, one) for number, one in contents if not isinstance(one, Recorded)]

    def _receive(self) -> list[tuple[int, Any]]:
        while True:
            start = time.monotonic()
            waiting = [pipe for pipe, number in self._pipes.items() if self._open[number]]
            replies = []
            for pipe in self._children.wait(POLL_SECONDS, waiting):
                with suppress(EOFError, OSError):  # it died: the next iteration reports how
                    replies.append((self._pipes[pipe], pipe.recv()))
            for number, reply in replies:
                self._open[number] -= 1
                self._inactivity.heard(number, reply)
                self._memories[number] = reply.memory
                self._pass_on(reply.signal_number)
            self._forward_stop_to_starting()
            heard = {number for number, _ in replies}
            others = [number for number in map(self._pipes.__getitem__, waiting) if number not in heard]
            waited = 0.0 if self._is_starting else time.monotonic() - start  # then heartbeats tell: see ChildProcesses
            silent = self._inactivity.advance(waited, others)
            if silent:
                raise self._children.timed_out(silent)
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

    def _forward_stop_to_starting(self) -> None:
        """A helper that is still making its environments ends; one that acts is stopped by commands."""
        number = requested_signal()
        if self._is_starting and number is not None and not self._is_stop_passed_on:
            self._is_stop_passed_on = True
            self._children.send_signal(number)

    def _pass_on(self, signal_number: int | None) -> None:
        """A signal that stops a helper stops the run: raise it in this process as well."""
        if signal_number is not None and not self._is_stop_passed_on:
            self._is_stop_passed_on = True
            signal.raise_signal(signal_number)


def serve(pipe: Any, stop: StopRequest, handle: Callable[[Any], Any], policy: Policy | None = None) -> None:
    """Replies to each command with the result of `handle`, until None arrives or the parent is gone. A signal is only
    reported in the replies: the parent decides when the run stops. `policy` is what a profile looks into.
    """
    reply, recorder = None, None  # None: ready
    while True:
        with clock("commands"):
            is_sent = _is_sent(pipe, Reply(reply, machine.memory(), stop.signal_number))
        if not is_sent:
            return
        with clock("wait"):
            command = _next_command(pipe)
        if command is None:
            return
        if isinstance(command, StartRecording):
            recorder, reply = _started_recorder(command.name, policy), Recorded(None)
        elif isinstance(command, StopRecording):
            assert recorder is not None, "StartRecording comes first"
            reply = Recorded(recorder.stop())
        else:
            reply = handle(command)


def _started_recorder(name: ProcessName, policy: Policy | None) -> Recorder:
    from rlcluster.profiling.recorder import Recorder

    recorder = Recorder(name, policy)
    recorder.start()
    return recorder


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
