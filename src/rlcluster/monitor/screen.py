"""Lines that are redrawn in place on a terminal, for as long as it is there."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from rlcluster.monitor.view import BLOCKS, PLAIN, Symbols

if TYPE_CHECKING:
    from rich.text import Text

REFRESHES_PER_SECOND = 4
SPARE_LINES = 2  # of the terminal's height, for what was printed before

Draw = Callable[[int, int, Symbols], Sequence[str]]  # width, height, symbols -> lines


class Screen:
    """Redraws what `draw` returns, at the terminal's present size, until it is closed; the last drawing stays."""

    def __init__(self, draw: Draw) -> None:
        from rich.live import Live

        self._draw = draw
        self._symbols = symbols_of(sys.stdout)  # Rich replaces it by a stream without an encoding
        self._live = Live(get_renderable=self._render, refresh_per_second=REFRESHES_PER_SECOND, transient=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def _render(self) -> Text:
        from rich.text import Text

        width, height = shutil.get_terminal_size()
        lines = self._draw(width, max(1, height - SPARE_LINES), self._symbols)
        return Text("\n".join(lines), no_wrap=True, overflow="crop")


def symbols_of(stream: TextIO) -> Symbols:
    """Blocks where the stream's encoding has them."""
    try:
        BLOCKS.levels.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return PLAIN
    return BLOCKS
