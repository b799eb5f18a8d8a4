"""Several runs as a table, one line each; columns drop by importance where the width does not suffice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rlcluster.monitor.history import Snapshot
from rlcluster.monitor.view import UNKNOWN, short
from rlcluster.system.console import clock_text

GAP = "  "


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
    Column("status", 2, lambda snapshot: snapshot.status),
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


def table(snapshots: Sequence[Snapshot], width: int) -> list[str]:
    """A heading and a line for each run."""
    shown = list(COLUMNS)
    while True:
        columns = [[column.heading, *(column.cell(one) for one in snapshots)] for column in shown]
        widths = [max(map(len, cells)) for cells in columns]
        if sum(widths) + len(GAP) * (len(widths) - 1) <= width or len(shown) == 1:
            break
        least = max(shown, key=lambda column: column.rank)
        if least.rank <= 1:  # what remains is shortened instead
            widths[0] = max(8, width - sum(widths[1:]) - len(GAP) * (len(widths) - 1))
            break
        shown.remove(least)
    return [_line([cells[k] for cells in columns], widths)[:width] for k in range(len(snapshots) + 1)]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """The first column to the left, its end cut; numbers to the right."""
    first = cells[0][: widths[0]].ljust(widths[0])
    return GAP.join([first, *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))])
