"""A snapshot of a run as lines of text, for the width and height there is.

A view is a list of rows, a row a list of fields. Where the width does not suffice, a row loses its least important
fields; where the height does not, the view loses its least important rows. What remains is one line, which fits into 40
columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rlcluster.monitor.history import Snapshot
from rlcluster.system.console import clock_text

NARROWEST_BLOCK = 50  # columns: below, one line
GAP = "   "
UNKNOWN = "-"
RANKS_DIFFER = 1.1  # the fastest rank's speed over the slowest one's, from which both are shown


class Symbols(NamedTuple):
    """What bars and sparklines are made of."""

    full: str
    empty: str
    levels: str


BLOCKS = Symbols("█", "░", "▁▂▃▄▅▆▇█")
PLAIN = Symbols("#", "-", "_.-=+*#")  # where the terminal has ASCII only


class Field(NamedTuple):
    rank: int  # of importance: higher ones go first
    text: str


class Row(NamedTuple):
    rank: int
    fields: Sequence[Field]


def view(snapshot: Snapshot, width: int, height: int, symbols: Symbols = BLOCKS) -> list[str]:
    """At most `height` lines of at most `width` characters."""
    if width < NARROWEST_BLOCK or height < 2:
        return [one_line(snapshot, width)]
    rows = _rows(snapshot, width, symbols)
    shown = sorted(rows, key=lambda row: row.rank)[: max(1, height)]
    return [fitted(row.fields, width) for row in rows if row in shown]


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


def bar_line(snapshot: Snapshot, width: int, symbols: Symbols) -> str:
    """The bar takes what percentage and ETA leave."""
    elapsed = clock_text((snapshot.record or {}).get("elapsed_seconds") or 0.0)
    after = f" {snapshot.progress:4.0%}  elapsed {elapsed}  ETA {_eta(snapshot)}"
    room = max(8, width - len(after))
    filled = int(room * min(1.0, snapshot.progress))
    return symbols.full * filled + symbols.empty * (room - filled) + after


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
    """The fields that fit into the width; the least important ones go first."""
    shown = [field for field in fields if field.text]
    while len(shown) > 1 and len(gap.join(field.text for field in shown)) > width:
        shown.remove(max(reversed(shown), key=lambda field: field.rank))
    return gap.join(field.text for field in shown)[:width]


def short(number: float | None) -> str:
    """`950`, `49.2k`, `1.25M`"""
    if number is None:
        return UNKNOWN
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            return f"{number / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{number:.0f}"


def _rows(snapshot: Snapshot, width: int, symbols: Symbols) -> list[Row]:
    record = snapshot.record
    title = Row(4, [Field(0, snapshot.title), Field(1, snapshot.status)])
    bar = Row(0, [Field(0, bar_line(snapshot, width, symbols))])
    if record is None:
        return [title, bar, Row(1, [Field(0, "waiting for the first update")])]
    return [
        title,
        bar,
        Row(1, _reward_fields(snapshot, record, width, symbols)),
        Row(2, _speed_fields(record)),
        Row(3, _learning_fields(record)),
        Row(5, _phase_fields(record)),
        *([Row(6, ranks)] if (ranks := _rank_fields(record)) else []),
        Row(7, _storage_fields(snapshot, record)),
    ]


def _reward_fields(snapshot: Snapshot, record: Mapping[str, Any], width: int, symbols: Symbols) -> list[Field]:
    reward, std = record.get("episode_reward_recent"), record.get("episode_reward_recent_std")
    text = f"reward {UNKNOWN if reward is None else f'{reward:.2f} ± {std or 0.0:.2f}'}"
    length = f"episode length {_number(record.get('episode_length_mean'), '.0f')}"
    room = width - len(text) - len(length) - 2 * len(GAP)
    return [Field(0, text), Field(2, sparkline(snapshot.rewards, min(40, room), symbols)), Field(1, length)]


def _speed_fields(record: Mapping[str, Any]) -> list[Field]:
    steps, seconds = record["steps_global"], record.get("elapsed_seconds")
    mean = f"{steps / seconds:,.0f}" if seconds else UNKNOWN
    return [
        Field(0, f"steps {steps:,}"),
        Field(1, f"steps/s {_number(record.get('fps'), ',.0f')} now, {mean} mean"),
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
        return [Field(0, "")]
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
    return UNKNOWN if value is None else format(value, form)
