"""Console output: lines and warnings that outlive their reader, and words for counts and durations."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any, TextIO


def say(text: str, end: str = "\n", stream: TextIO | None = None) -> None:
    """Prints to stdout or another stream, whatever has become of its reader."""
    stream = stream or sys.stdout
    if stream is None:
        return  # closed by whoever started this process
    try:
        print(_encodable(text, stream), end=end, file=stream, flush=True)
    except OSError:
        _lead_nowhere(stream)


def protect_streams() -> None:
    """Called first in every process of the command line: from here on no output can end a run. A closed stream leads
    nowhere (its number must not become that of the next file that is opened), and the others last.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            _open_nowhere(number)
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - as long as the process lives
        elif isinstance(stream, io.TextIOWrapper) and not isinstance(stream, LastingStream):
            errors = "replace" if stream.errors == "strict" else stream.errors
            stream = LastingStream(stream.buffer, stream.encoding, errors, line_buffering=stream.line_buffering)
        setattr(sys, name, stream)


class LastingStream(io.TextIOWrapper):
    """Whatever goes wrong with the reader (a closed pipe, a full device, a terminal that is gone) is no error of ours.
    Characters that the encoding lacks are replaced.
    """

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            _lead_nowhere(self)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            _lead_nowhere(self)


def _encodable(text: str, stream: TextIO) -> str:
    """With `?` for the characters that the stream's encoding lacks."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def _lead_nowhere(stream: Any) -> None:
    """What is buffered, and what will be written, goes to the null device."""
    with contextlib.suppress(OSError, ValueError):  # no file, or already closed
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _open_nowhere(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, number)  # inheritable, also if it is the same
        os.set_inheritable(number, True)
        if nowhere != number:
            os.close(nowhere)


def warn(text: str) -> None:
    say(f"warning: {text}", stream=sys.stderr)


def counted(number: int, thing: str) -> str:
    """`1 rank`, `2 ranks`, `2 processes`."""
    plural = "es" if thing.endswith("s") else "s"
    return f"{number} {thing}{'' if number == 1 else plural}"


def clock_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
