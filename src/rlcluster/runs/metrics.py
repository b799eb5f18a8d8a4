"""The log of a run: one JSON object per update, as it is or as columns."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlcluster.runs import fields
from rlcluster.runs.files import LOG_FOLDER, METRICS_FILE, metrics_file
from rlcluster.settings.schema import Settings
from rlcluster.system.atomic_file import write_atomically
from rlcluster.system.console import counted
from rlcluster.system.errors import UserError

Column = NDArray[np.float64]


@dataclass(frozen=True)
class Metrics:
    """A log as columns [K] by field, a line for each update; NaN where an update has no value."""

    columns: Mapping[str, Column]
    num_broken: int  # lines that could not be read

    def __len__(self) -> int:
        return len(self.columns["update"])

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]


class Columns(dict[str, Column]):
    """The fields of the log's table, each made when it is first asked for: most readers want a few."""

    def __init__(self, records: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self._records = records

    def __missing__(self, name: str) -> Column:
        fields.refuse_unknown([name])
        self[name] = np.array([number(record.get(name)) for record in self._records])
        return self[name]


def find_metrics(path: Path, settings: Settings) -> Path:
    """The metrics file of a run; that of an earlier mode where there is none of its own."""
    file = metrics_file(path, settings)
    return file if file.exists() else next(iter(sorted(path.glob(f"{LOG_FOLDER}/*/{METRICS_FILE}"))), file)


def read_metrics_file(path: Path) -> Metrics:
    """The columns of one metrics file. A run that was killed may have left a broken line."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; the run has logged nothing yet, or it is not a run")
    records, num_broken = [], 0
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    for line in text.splitlines():
        record = _record(line)
        if record is None:
            num_broken += 1
        else:
            records.append(record)
    if not records:
        raise UserError(f"{path}: not one update is logged in it; let the run finish its first update")
    columns = Columns(records)
    columns["update"] = np.where(np.isnan(columns["update"]), np.arange(1, len(records) + 1), columns["update"])
    columns["episode_count"] = np.nan_to_num(columns["episode_count"])
    if np.isnan(columns["elapsed_seconds"]).any():
        columns["elapsed_seconds"] = np.cumsum(np.nan_to_num(columns["t_iter"]))
    return Metrics(columns, num_broken)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics file as they are, until the first broken line; none where there is no such file."""
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


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
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else math.nan  # type: ignore[arg-type]


def _record(line: str) -> dict[str, Any] | None:
    """The record of one update; None if the line is broken or has no steps or time."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or math.isnan(number(record.get("steps_global"))):
        return None
    has_time = any(not math.isnan(number(record.get(name))) for name in ("elapsed_seconds", "t_iter"))
    return record if has_time else None
