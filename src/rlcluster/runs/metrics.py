"""The log of a run: one JSON object per update, as it is or as columns."""

from __future__ import annotations

import contextlib
import json
import math
import operator
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json  # four times as fast as json.loads on these lines

from rlcluster.runs import fields
from rlcluster.runs.files import LOG_FOLDER, METRICS_FILE, metrics_file
from rlcluster.settings.schema import Settings
from rlcluster.system.atomic_file import write_atomically
from rlcluster.system.console import counted
from rlcluster.system.errors import UserError

Column = NDArray[np.float64]
GROUP = 200  # lines that are parsed together and become columns before the next: their objects stay in the cache


@dataclass(frozen=True)
class Metrics:
    """A log as columns [K] by field, a line for each update; NaN where an update has no value."""

    columns: Mapping[str, Column]
    num_broken: int  # lines that could not be read

    def __len__(self) -> int:
        return len(self.columns["update"])

    def __getitem__(self, name: str) -> Column:
        fields.refuse_unknown([name])
        return self.columns[name]


def find_metrics(path: Path, settings: Settings) -> Path:
    """The metrics file of a run; that of an earlier mode where there is none of its own."""
    file = metrics_file(path, settings)
    return file if file.exists() else next(iter(sorted(path.glob(f"{LOG_FOLDER}/*/{METRICS_FILE}"))), file)


def read_metrics_file(path: Path) -> Metrics:
    """The columns of one metrics file. A run that was killed may have left a broken line."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; the run has logged nothing yet, or it is not a run")
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    groups = [lines[begin : begin + GROUP] for begin in range(0, len(lines), GROUP)]
    parts = [_columns(records) for group in groups if (records := _records(group))]
    if not parts:
        raise UserError(f"{path}: not one update is logged in it; let the run finish its first update")
    columns = {name: np.concatenate([part[name] for part in parts]) for name in fields.NAMES}
    num_updates = len(columns["update"])
    columns["update"] = np.where(np.isnan(columns["update"]), np.arange(1, num_updates + 1), columns["update"])
    columns["episode_count"] = np.nan_to_num(columns["episode_count"])
    if np.isnan(columns["elapsed_seconds"]).any():
        columns["elapsed_seconds"] = np.cumsum(np.nan_to_num(columns["t_iter"]))
    return Metrics(columns, len(lines) - num_updates)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics file as they are, until the first broken line; none where there is no such file."""
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError):
            break
    return records


class MetricsTail:
    """The records of a metrics file as it grows. `find` names the file, which need not exist yet."""

    def __init__(self, find: Callable[[], Path]) -> None:
        self._find, self._offset, self._identity = find, 0, -1

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """The complete records since the last call, and whether the file began anew: a resumed run rewrites it."""
        try:
            with self._find().open("rb") as file:
                status = os.fstat(file.fileno())
                is_new = status.st_ino != self._identity or status.st_size < self._offset
                file.seek(0 if is_new else self._offset)
                content = file.read()
        except OSError:
            return [], False
        complete = content[: content.rfind(b"\n") + 1]
        self._offset = len(complete) + (0 if is_new else self._offset)
        self._identity = status.st_ino
        records = _records(complete.splitlines())
        return [record for record in records if {"update", "elapsed_seconds"} <= record.keys()], is_new

    def silent_seconds(self) -> float:
        """Since the last record; 0 before the first."""
        try:
            return max(0.0, time.time() - self._find().stat().st_mtime)
        except OSError:
            return 0.0


def copy_metrics(run: Path, settings: Settings, file: Path) -> list[dict[str, Any]]:
    """The records of a run, whose metrics file is copied to `file`, if it has logged anything."""
    metrics = metrics_file(run, settings)
    if metrics.exists():
        write_atomically(file, metrics.read_bytes())
    return read_metrics(file)


def metrics_warnings(metrics: Metrics) -> list[str]:
    warnings = []
    if metrics.num_broken:
        warnings.append(f"not readable, and skipped: {counted(metrics.num_broken, 'line')} of its metrics")
    if np.isnan(metrics["episode_reward_mean"][metrics["episode_count"] > 0]).any():
        warnings.append("some of its rewards are not numbers; those updates count for nothing in the curves")
    sizes = np.unique(metrics["world_size"][~np.isnan(metrics["world_size"])])
    if len(sizes) > 1:
        listed = " and ".join(f"{size:.0f}" for size in sizes)
        warnings.append(f"it has run with {listed} ranks in turn: its cores are those of its last part")
    return warnings


def number(value: object) -> float:
    """The number, or NaN if `value` is not a finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return math.nan
    try:
        return float(value) if math.isfinite(value) else math.nan
    except OverflowError:  # a whole number of hundreds of digits
        return math.nan


def _columns(records: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
    """All fields of the table. Records with the same keys, as almost all logs have, are read as rows: twice as fast."""
    keys = list(records[0])
    if len(keys) > 1 and fields.NAMES.issuperset(keys) and {*map(len, records)} == {len(keys)}:
        with contextlib.suppress(
            KeyError, ValueError, TypeError, OverflowError
        ):  # other keys, or a value that is no number
            rows = np.array([*map(operator.itemgetter(*keys), records)], np.float64)
            rows[np.isinf(rows)] = np.nan
            unknown = np.full(len(records), np.nan)
            return dict.fromkeys(fields.NAMES, unknown) | dict(zip(keys, rows.T, strict=True))
    return {name: _column([record.get(name) for record in records]) for name in fields.NAMES}


def _column(values: Sequence[object]) -> Column:
    """NaN where a value is not a finite number."""
    return np.array([number(value) for value in values])


def _records(lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """The records of the lines that can be read. Lines are parsed together; one by one where a line is unusual."""
    with contextlib.suppress(ValueError):
        records: list[Any] = from_json(b"[" + b",".join(lines) + b"]", cache_strings="keys")
        if len(records) == len(lines) and all(map(_is_usual, records)):
            return records
    return [record for line in lines if (record := _record(line)) is not None]


def _record(line: bytes) -> dict[str, Any] | None:
    """The record of one update; None if the line is broken or has no steps or time."""
    try:
        record = from_json(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or math.isnan(number(record.get("steps_global"))):
        return None
    has_time = any(not math.isnan(number(record.get(name))) for name in ("elapsed_seconds", "t_iter"))
    return record if has_time else None


def _is_usual(record: object) -> bool:
    return (
        isinstance(record, dict)
        and type(record.get("steps_global")) is int
        and type(record.get("elapsed_seconds")) is float
        and math.isfinite(record["elapsed_seconds"])
    )
