"""Signals stop the run after the current update. A second Ctrl-C or SIGTERM exits at once; SIGHUP and SIGUSR1, which
terminals and schedulers send, also more than once, never do. `time_limit` is for schedulers that send nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self

from rlcluster.system.clock import wait_while_running
from rlcluster.system.errors import EXIT_TIMEOUT, UserError

INSISTENT = (signal.SIGINT, signal.SIGTERM)
SIGNALS = (*INSISTENT, signal.SIGHUP, signal.SIGUSR1)

_open_requests: list[StopRequest] = []  # of this process: it has one set of signal handlers


def requested_signal() -> int | None:
    """The signal that asks this process to stop, if one has arrived."""
    return next((request.signal_number for request in _open_requests if request.requested), None)


class StoppedError(UserError):
    """A signal has ended what could not be finished soon."""


class StopRequest:
    """While it is open, signals only set a flag; saving happens outside the handler.

    Python's handler cannot run while the main thread is blocked in a collective. A watcher thread sees each signal at
    once: it exits the process at the second signal, or if the run has not stopped within `deadline_seconds`.
    """

    def __init__(self, ignores_second_signal: bool = False) -> None:
        """A rank ignores the second signal: it gets Ctrl-C both from the terminal and from its parent."""
        self._ignores_second_signal = ignores_second_signal
        self.signal_number: int | None = None
        self.deadline_seconds: float | None = None  # None: no deadline
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        return self.signal_number is not None

    def __enter__(self) -> Self:
        _open_requests.append(self)
        if threading.current_thread() is threading.main_thread():
            reader, self._writer = os.pipe()
            os.set_blocking(self._writer, False)
            self._previous_writer = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            handled = [number for number in SIGNALS if not _is_shielded(number)]
            self._previous = {number: signal.signal(number, self._on_signal) for number in handled}
            threading.Thread(target=self._watch, args=(reader,), daemon=True).start()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # a spawned rank starts with them blocked
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _open_requests.remove(self)
        if self._previous:
            for number, handler in self._previous.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._previous_writer)
            os.close(self._writer)  # the watcher thread reads EOF and ends

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            return  # the watcher thread handles it
        self.signal_number = number
        if self._ignores_second_signal:
            return  # the parent or rank 0 informs the user
        repeat = " Repeat to exit at once." if number in INSISTENT else ""
        message = f"\n{signal.Signals(number).name}: finishing this update, then saving.{repeat}\n"
        with contextlib.suppress(OSError, ValueError):  # stderr may be closed
            os.write(sys.stderr.fileno(), message.encode())

    def _watch(self, reader: int) -> None:
        """The first signal starts the deadline; leaving the block ends it."""
        is_over, num_insistent, has_begun = threading.Event(), 0, False
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while content := pipe.read(1):
                number = content[0]
                if number not in SIGNALS:
                    continue
                num_insistent += number in INSISTENT
                if num_insistent > 1 and not self._ignores_second_signal:
                    os._exit(128 + number)
                if self.deadline_seconds is not None and not has_begun:
                    has_begun = True
                    threading.Thread(target=_watch_deadline, args=(is_over, self.deadline_seconds), daemon=True).start()
        is_over.set()


def _is_shielded(number: signal.Signals) -> bool:
    """`nohup` ignores SIGHUP on behalf of what it starts."""
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


def _watch_deadline(is_over: threading.Event, seconds: float) -> None:
    if not wait_while_running(is_over.wait, seconds):
        _give_up()


def refuse_if_stopped() -> None:
    """Raises a StoppedError if a signal has arrived: for long work outside of updates, which has nothing to save."""
    number = requested_signal()
    if number is not None:
        raise StoppedError(f"stopped by {signal.Signals(number).name}", 128 + number)


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Sends this process SIGUSR1 after `seconds`; None: never."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def hold_signals() -> None:
    """Until a `StopRequest` is open, signals wait: one that arrives while a job starts up is not lost."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _give_up() -> None:
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.stderr.fileno(), b"rlcluster: error: the run did not stop before its deadline; not saved\n")
    os._exit(EXIT_TIMEOUT)
