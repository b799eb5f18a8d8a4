"""Ctrl-C and SIGTERM: the first stops the run after the current update, a second one exits at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from rlcluster.system.errors import EXIT_TIMEOUT

SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
        if threading.current_thread() is threading.main_thread():
            reader, self._writer = os.pipe()
            os.set_blocking(self._writer, False)
            self._previous_writer = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            self._previous = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
            threading.Thread(target=self._watch, args=(reader,), daemon=True).start()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # a spawned rank starts with them blocked
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
        message = f"\n{signal.Signals(number).name}: finishing this update, then saving. Repeat to exit at once.\n"
        with contextlib.suppress(OSError, ValueError):  # stderr may be closed
            os.write(sys.stderr.fileno(), message.encode())

    def _watch(self, reader: int) -> None:
        deadline: threading.Timer | None = None
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while content := pipe.read(1):
                if content[0] not in SIGNALS:
                    continue
                exit_code = 128 + content[0]
                if deadline is not None and not self._ignores_second_signal:
                    os._exit(exit_code)
                if deadline is None:
                    deadline = threading.Timer(self.deadline_seconds or threading.TIMEOUT_MAX, _give_up)
                    deadline.daemon = True
                    deadline.start()
        if deadline is not None:
            deadline.cancel()


def _give_up() -> None:
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.stderr.fileno(), b"rlcluster: error: the run did not stop before its deadline; not saved\n")
    os._exit(EXIT_TIMEOUT)
