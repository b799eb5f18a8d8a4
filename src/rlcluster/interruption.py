"""Ctrl-C and SIGTERM: the first asks the run to stop after the current update, a second one ends it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """While it is open, signals only set a flag; saving happens outside the handler."""

    def __init__(self, is_patient: bool = False) -> None:
        """A patient one never leaves at once: a rank gets the terminal's Ctrl-C and its parent's signal as well."""
        self._is_patient = is_patient
        self.signal_number: int | None = None
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        return self.signal_number is not None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested and not self._is_patient:
            os._exit(128 + number)
        self.signal_number = self.signal_number or number
        if self._is_patient:
            return  # the parent tells the user
        message = f"\n{signal.Signals(number).name}: finishing this update, then saving. Once more to leave at once.\n"
        with contextlib.suppress(OSError, ValueError):  # nobody may be listening any more
            os.write(sys.stderr.fileno(), message.encode())
