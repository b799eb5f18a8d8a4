"""Ctrl-C and SIGTERM: the first asks the run to stop after the current update, a second one ends it at once."""

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

    A thread sees each signal at once, also while the main thread waits for other ranks and Python's handler has to
    wait with it: it ends the process at the second signal, or when the run has not stopped in `deadline_seconds`.
    """

    def __init__(self, ignores_second_signal: bool = False) -> None:
        """A patient one never leaves at a second signal: a rank gets the terminal's Ctrl-C and its parent's as well."""
        self._ignores_second_signal = ignores_second_signal
        self.signal_number: int | None = None
        self.deadline_seconds: float | None = None  # None: as long as it takes
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
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # a spawned rank begins with them blocked
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._previous:
            for number, handler in self._previous.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._previous_writer)
            os.close(self._writer)  # the thread reads the end of the pipe and is done

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            return  # the thread has seen it too
        self.signal_number = number
        if self._ignores_second_signal:
            return  # the parent or the first rank tells the user
        message = f"\n{signal.Signals(number).name}: finishing this update, then saving. Once more to leave at once.\n"
        with contextlib.suppress(OSError, ValueError):  # nobody may be listening any more
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
        os.write(sys.stderr.fileno(), b"rlcluster: error: asked to stop, but the run did not in time; left unsaved\n")
    os._exit(EXIT_TIMEOUT)
