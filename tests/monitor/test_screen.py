"""The screen on a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from rlcluster.monitor.screen import Screen
from rlcluster.monitor.view import BLOCKS, PLAIN, Symbols


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("encoding", "symbols"), [("utf-8", BLOCKS), ("ascii", PLAIN)])
def test_a_terminal_gets_blocks_where_its_encoding_has_them(monkeypatch, encoding, symbols):
    """While the screen is open, standard output is Rich's, which does not tell its encoding."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Terminal(io.BytesIO(), encoding=encoding))
    drawn: list[Symbols] = []

    def draw(width: int, height: int, symbols: Symbols) -> list[str]:
        drawn.append(symbols)
        return ["a line"]

    with Screen(draw):
        pass
    assert set(drawn) == {symbols}
