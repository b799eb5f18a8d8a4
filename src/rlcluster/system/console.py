"""Console output: lines and warnings that outlive their reader, and words for counts and durations."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def say(text: str, end: str = "\n", stream: TextIO | None = None) -> None:
    """Prints to stdout or another stream. A closed pipe (`| tee` after Ctrl-C) must not end the run."""
    stream = stream or sys.stdout
    try:
        print(text, end=end, file=stream, flush=True)
    except BrokenPipeError:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, stream.fileno())
        os.close(devnull)


def warn(text: str) -> None:
    say(f"warning: {text}", stream=sys.stderr)


def counted(number: int, thing: str) -> str:
    """`1 rank`, `2 ranks`, `2 processes`."""
    plural = "es" if thing.endswith("s") else "s"
    return f"{number} {thing}{'' if number == 1 else plural}"


def clock_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
