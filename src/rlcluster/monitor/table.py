"""Several runs as a table, one line each; columns drop by importance where the width does not suffice. A status is
shown without its reason, and a long name without its middle: names of runs differ at their ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rlcluster.monitor.history import Snapshot
from rlcluster.monitor.view import BLOCKS, UNKNOWN, Symbols, short
from rlcluster.system.console import clock_text

GAP = "  "
SHORT_NAME, SHORTEST_NAME = 30, 8  # a column is worth more than the middle of a longer name


class Column(NamedTuple):
    heading: str
    rank: int  # of importance: higher ones go first
    cell: Callable[[Snapshot], str]


def _record(name: str, form: str) -> Callable[[Snapshot], str]:
    def cell(snapshot: Snapshot) -> str:
        value = None if snapshot.record is None else snapshot.record.get(name)
        return UNKNOWN if value is None else format(value, form)

    return cell


COLUMNS = (
    Column("run", 0, lambda snapshot: snapshot.title),
    Column("status", 2, lambda snapshot: re.split(": | for ", snapshot.status)[0]),
    Column("done", 0, lambda snapshot: f"{snapshot.progress:.0%}"),
    Column("steps", 4, lambda snapshot: short(snapshot.record["steps_global"] if snapshot.record else None)),
    Column("steps/s", 3, _record("fps", ",.0f")),
    Column("reward", 1, _record("episode_reward_recent", ".2f")),
    Column("entropy", 5, _record("entropy", ".2f")),
    Column(
        "ETA",
        1,
        lambda snapshot: UNKNOWN if snapshot.remaining_seconds is None else clock_text(snapshot.remaining_seconds),
    ),
)


def table(snapshots: Sequence[Snapshot], width: int, symbols: Symbols = BLOCKS) -> list[str]:
    """A heading and a line for each run."""
    names, *others = ([column.heading, *(column.cell(one) for one in snapshots)] for column in COLUMNS)
    columns = dict(zip(COLUMNS[1:], others, strict=True))
    longest = max(map(len, names))
    while (room := _room_for_names(columns.values(), width)) < min(longest, SHORT_NAME):
        least = max(columns, key=lambda column: column.rank)
        if least.rank <= 1:  # what remains stays
            break
        del columns[least]
    room = min(longest, max(SHORTEST_NAME, room))
    names = [_without_middle(name, room, symbols.cut).ljust(room) for name in names]
    cells = [[cell.rjust(max(map(len, column))) for cell in column] for column in columns.values()]
    return [GAP.join(line)[:width] for line in zip(names, *cells, strict=True)]


def _room_for_names(columns: Iterable[Sequence[str]], width: int) -> int:
    return width - sum(len(GAP) + max(map(len, column)) for column in columns)


def _without_middle(name: str, width: int, cut: str) -> str:
    if len(name) <= width:
        return name
    end = (width - len(cut) + 1) // 2
    return name[: width - len(cut) - end] + cut + name[-end:]
