"""The progress of a running cell of a suite."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

from rlcluster.system.console import say

LINE_SECONDS = 60.0  # between progress lines without a terminal


class CellProgress:
    """The last line of a cell's output: updated every second on a terminal, printed every minute elsewhere."""

    def __init__(self, log: Path, heading: str) -> None:
        self._log, self._heading, self._is_live = log, heading, sys.stdout.isatty()
        self._begin = log.stat().st_size if log.exists() else 0
        self._shown_at, self._width = time.perf_counter(), 0

    def show(self) -> None:
        now = time.perf_counter()
        if now - self._shown_at < (1.0 if self._is_live else LINE_SECONDS):
            return
        self._shown_at = now
        line = self._last_line()
        if self._is_live:
            say(f"\r{line.ljust(self._width)}", end="")
            self._width = len(line)
        elif line:
            say(f"\n  {line}", end=" ")

    def clear(self) -> None:
        if self._width:
            say("\r" + " " * self._width + "\r" + self._heading, end="")

    def _last_line(self) -> str:
        with self._log.open("rb") as file:
            file.seek(max(self._begin, file.seek(0, os.SEEK_END) - 1000))
            lines = file.read().decode(errors="replace").splitlines()
        return lines[-1].strip()[: shutil.get_terminal_size().columns - 1] if lines else ""
