"""A snapshot of a run as lines of text, for the width and height there is.

A view is a list of rows, a row a list of fields. Where the height does not suffice, the view loses its least important
rows; a row that is wider than the terminal continues on lines that are left, else it loses its least important fields.
What remains in a terminal of one line fits into 40 columns.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rlcluster.monitor.history import Snapshot
from rlcluster.system.console import clock_text

LOWEST_BLOCK = 2  # lines: below, one line
WIDE, SHORTEST_BAR = 50, 8  # columns: from WIDE on, the elapsed time is beside the bar
SHORTEST_SPARKLINE, LONGEST_SPARKLINE = 8, 40
GAP = "   "
UNKNOWN = "-"
RANKS_DIFFER = 1.1  # the fastest rank's speed over the slowest one's, from which both are shown


class Symbols(NamedTuple):
    """What bars and sparklines are made of, and what stands for the middle of a name."""

    full: str
    empty: str
    levels: str
    cut: str


BLOCKS = Symbols("█", "░", "▁▂▃▄▅▆▇█", "…")
PLAIN = Symbols("#", "-", "_.-=+*#", "~")  # where the terminal has ASCII only


class Field(NamedTuple):
    rank: int  # of importance: higher ones go first
    text: str


class Row(NamedTuple):
    rank: int
    fields: Sequence[Field]


def view(snapshot: Snapshot, width: int, height: int, symbols: Symbols = BLOCKS) -> list[str]:
    """At most `height` lines of at most `width` characters."""
    if height < LOWEST_BLOCK:
        return [one_line(snapshot, width)]
    rows = [row for row in _rows(snapshot, width, symbols) if any(field.text for field in row.fields)]
    last = sorted(row.rank for row in rows)[:height][-1]
    shown = [row for row in rows if row.rank <= last]
    counts = _line_counts(shown, width, height)
    return [line for row, count in zip(shown, counts, strict=True) for line in wrapped(row.fields, width, count)]


def one_line(snapshot: Snapshot, width: int) -> str:
    """` 45% 49.2k 1523/s reward 6.42 ETA 0:12:34`: 40 columns."""
    record = snapshot.record or {}
    fields = [
        Field(0, f"{snapshot.progress:4.0%}"),
        Field(3, short(record.get("steps_global"))),
        Field(2, f"{short(record.get('fps'))}/s"),
        Field(1, f"reward {_number(record.get('episode_reward_recent'), '.2f')}"),
        Field(1, f"ETA {_eta(snapshot)}"),
        *([Field(0, snapshot.status)] if snapshot.status != "running" else []),
    ]
    return fitted(fields, width, " ")


def sparkline(values: Sequence[float], width: int, symbols: Symbols = BLOCKS) -> str:
    """The means of `width` slices of the values, between their lowest and their highest."""
    if not values or width < 1:
        return ""
    width = min(width, len(values))
    edges = [k * len(values) // width for k in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    top = len(symbols.levels) - 1
    return "".join(symbols.levels[round(top * (mean - low) / (high - low)) if high > low else 0] for mean in means)


def fitted(fields: Sequence[Field], width: int, gap: str = GAP) -> str:
    """One line."""
    return "".join(wrapped(fields, width, 1, gap))


def wrapped(fields: Sequence[Field], width: int, num_lines: int, gap: str = GAP) -> list[str]:
    """The fields that fit into the lines; the least important ones go first."""
    shown = [field for field in fields if field.text]
    lines = _filled(shown, width, gap)
    while len(shown) > 1 and len(lines) > num_lines:
        shown.remove(max(reversed(shown), key=lambda field: field.rank))
        lines = _filled(shown, width, gap)
    return lines[:num_lines]


def short(number: float | None) -> str:
    """`950`, `49.2k`, `1.25M`"""
    if number is None:
        return UNKNOWN
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            return f"{number / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{number:.0f}"


def _filled(fields: Sequence[Field], width: int, gap: str) -> list[str]:
    """As many fields on each line as fit; one that is wider than a line is broken between its words."""
    lines: list[str] = []
    for field in fields:
        if lines and len(lines[-1]) + len(gap) + len(field.text) <= width:
            lines[-1] += gap + field.text
        else:
            lines += [field.text] if len(field.text) <= width else textwrap.wrap(field.text, width)
    return lines


def _line_counts(rows: Sequence[Row], width: int, height: int) -> list[int]:
    """One line for each row. Lines that are left go to the rows that lack their most important fields."""
    counts = [1 for _ in rows]
    for _ in range(height - len(rows)):
        lacking = [
            (rank, row.rank, k) for k, row in enumerate(rows) if (rank := _lacking(row, width, counts[k])) is not None
        ]
        if not lacking:
            break
        counts[min(lacking)[-1]] += 1
    return counts


def _lacking(row: Row, width: int, num_lines: int) -> int | None:
    """The rank of the most important field that `num_lines` cannot show; None if they show all of them."""
    by_importance = sorted((field for field in row.fields if field.text), key=lambda field: field.rank)
    for count in range(1, len(by_importance) + 1):
        kept = [field for field in row.fields if field in by_importance[:count]]
        if len(_filled(kept, width, GAP)) > num_lines:
            return by_importance[count - 1].rank
    return None


def _rows(snapshot: Snapshot, width: int, symbols: Symbols) -> list[Row]:
    record = snapshot.record
    title = Row(4, [Field(0, snapshot.title), Field(1, snapshot.status)])
    bar = Row(0, _bar_fields(snapshot, width, symbols))
    if record is None:
        return [title, bar, Row(1, [Field(0, "waiting for the first update")])]
    return [
        title,
        bar,
        Row(1, _reward_fields(snapshot, record, width, symbols)),
        Row(2, _speed_fields(record)),
        Row(3, _learning_fields(record)),
        Row(5, _phase_fields(record)),
        Row(6, _rank_fields(record)),
        Row(7, _storage_fields(snapshot, record)),
    ]


def _bar_fields(snapshot: Snapshot, width: int, symbols: Symbols) -> list[Field]:
    """The bar takes what percentage and times leave; without room for one, there is none."""
    done, eta = f"{snapshot.progress:4.0%}", f"ETA {_eta(snapshot)}"
    elapsed = f"elapsed {clock_text((snapshot.record or {}).get('elapsed_seconds') or 0.0)}"
    beside, below = (f"{done}  {elapsed}  {eta}", "") if width >= WIDE else (f"{done}  {eta}", elapsed)
    room = width - len(beside) - 1
    if room < SHORTEST_BAR:
        return [Field(0, done), Field(1, eta), Field(2, elapsed)]
    filled = int(room * min(1.0, snapshot.progress))
    return [Field(0, f"{symbols.full * filled}{symbols.empty * (room - filled)} {beside}"), Field(2, below)]


def _reward_fields(snapshot: Snapshot, record: Mapping[str, Any], width: int, symbols: Symbols) -> list[Field]:
    reward, std = record.get("episode_reward_recent"), record.get("episode_reward_recent_std")
    text = f"reward {UNKNOWN if reward is None else f'{reward:.2f} ± {std or 0.0:.2f}'}"
    length = f"episode length {_number(record.get('episode_length_mean'), '.0f')}"
    room = width - len(text) - len(length) - 2 * len(GAP)
    if room < SHORTEST_SPARKLINE:  # on a line of its own
        return [
            Field(0, text),
            Field(1, length),
            Field(2, sparkline(snapshot.rewards, min(LONGEST_SPARKLINE, width), symbols)),
        ]
    line = sparkline(snapshot.rewards, min(LONGEST_SPARKLINE, room), symbols)
    return [Field(0, text), Field(2, line), Field(1, length)]


def _speed_fields(record: Mapping[str, Any]) -> list[Field]:
    steps, seconds = record["steps_global"], record.get("elapsed_seconds")
    mean = f"{steps / seconds:,.0f}" if seconds else UNKNOWN
    return [
        Field(1, f"steps {steps:,}"),
        Field(0, f"steps/s {_number(record.get('fps'), ',.0f')} now, {mean} mean"),
        Field(2, f"update {record['update']:,}"),
    ]


def _learning_fields(record: Mapping[str, Any]) -> list[Field]:
    return [
        Field(0, f"entropy {_number(record.get('entropy'), '.2f')}"),
        Field(1, f"KL {_number(record.get('approx_kl'), '.4f')}"),
        Field(2, f"explained variance {_number(record.get('explained_variance'), '.2f')}"),
        Field(3, f"action information {_number(record.get('action_information'), '.2f')}"),
    ]


def _phase_fields(record: Mapping[str, Any]) -> list[Field]:
    """Shares of the last update; for IMPALA with actors, the learner's wait counts as idle."""
    total = record.get("t_iter") or 0.0
    if total <= 0:
        return []
    seconds = {phase: float(record.get(f"t_{phase}") or 0.0) for phase in ("rollout", "learn", "sync")}
    if record.get("learner_idle") is not None:
        seconds["rollout"] = 0.0
    seconds["idle"] = max(0.0, total - sum(seconds.values()))
    return [Field(k, f"{phase} {value / total:.0%}") for k, (phase, value) in enumerate(seconds.items())]


def _rank_fields(record: Mapping[str, Any]) -> list[Field]:
    """Only where the ranks differ."""
    slow, fast = record.get("rank_fps_min"), record.get("rank_fps_max")
    if not slow or not fast or fast < RANKS_DIFFER * slow:
        return []
    where = f"rank {record['rank_slowest']:.0f}"
    return [Field(0, f"slowest: {where}, {slow:,.0f} steps/s"), Field(1, f"fastest: {fast:,.0f} steps/s")]


def _storage_fields(snapshot: Snapshot, record: Mapping[str, Any]) -> list[Field]:
    memory, peak = record.get("memory_gb"), record.get("peak_memory_gb")
    saved = snapshot.saved
    checkpoint = "none yet" if saved is None else f"step {saved.steps_global:,}, {clock_text(saved.age_seconds)} ago"
    return [
        Field(1, f"memory {_number(memory, '.2f')} GB, peak {_number(peak, '.2f')}"),
        Field(0, f"checkpoint {checkpoint}"),
    ]


def _eta(snapshot: Snapshot) -> str:
    return UNKNOWN if snapshot.remaining_seconds is None else clock_text(snapshot.remaining_seconds)


def _number(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, f"z{form}")
