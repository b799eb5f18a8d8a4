"""The log of a run as its writer sees it: metrics.jsonl and the loggers, such as TensorBoard's, in step with it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from rlcluster.runs import fields
from rlcluster.runs.event_file import evaluation_scalars
from rlcluster.runs.files import INTERIM_FILE, METRICS_FILE
from rlcluster.runs.loggers import LogStart, make_loggers
from rlcluster.runs.metrics import number, read_metrics
from rlcluster.runs.status import StateName
from rlcluster.system.atomic_file import StorageError, write_atomically
from rlcluster.system.console import counted, warn
from rlcluster.system.errors import EXIT_STORAGE, UserError

OF_EVALUATIONS = ("steps_global", "elapsed_seconds", "reward_mean")  # numbers that every evaluation has


class RunLog:
    """Appends one record per update. What was logged after `update` (at `start.step`) is dropped: a resumed run will
    log it again.
    """

    def __init__(self, start: LogStart, update: int = 0, loggers: Sequence[str] = ("tensorboard",)) -> None:
        self._folder = start.folder
        metrics, self._interim = start.folder / METRICS_FILE, start.folder / INTERIM_FILE
        if metrics.exists() or update:
            kept = _records_until(metrics, update)
            if len(kept) < update:
                lost = f"{counted(update - len(kept), 'update')} of the {update} before the checkpoint"
                warn(f"{metrics} has lost {lost} (missing or not readable); the run resumes, its curves have gaps")
            write_atomically(metrics, "".join(map(_line, kept)).encode())
        if self._interim.exists():
            _keep_evaluations(self._interim, update)
        try:
            self._metrics: TextIO = metrics.open("a", encoding="utf-8")
            self._loggers = make_loggers(loggers, start)
        except OSError as error:
            raise self._not_writable(error) from None

    def add(self, record: dict[str, Any]) -> None:
        fields.refuse_unknown(record)
        try:
            self._metrics.write(_line(record))
            self._metrics.flush()
            scalars = fields.scalars(record)
            for logger in self._loggers:
                logger.add(record["steps_global"], scalars)
        except OSError as error:
            raise self._not_writable(error) from None

    def add_evaluation(self, result: Mapping[str, Any]) -> None:
        """One during training, at the step of its parameters."""
        scalars = evaluation_scalars(result)
        try:
            with self._interim.open("a", encoding="utf-8") as file:
                file.write(_line(result))
            for logger in self._loggers:
                logger.add(result["steps_global"], scalars)
        except OSError as error:
            raise self._not_writable(error) from None

    def evaluations(self) -> list[dict[str, Any]]:
        """Those during training so far, oldest first."""
        return read_metrics(self._interim)

    def sync(self) -> None:
        """What was added is on the disk when this returns."""
        try:
            self._metrics.flush()
            os.fsync(self._metrics.fileno())
            for logger in self._loggers:
                logger.flush()
        except OSError as error:
            raise self._not_writable(error) from None

    def close(self, status: StateName) -> None:
        """Closing writes what is still buffered. Of a failed run, the first error is already on its way to the user."""
        closing: list[Callable[[], None]] = [partial(logger.close, status) for logger in self._loggers]
        for close in (self._metrics.close, *closing):
            try:
                close()
            except Exception as error:
                if status == "failed":
                    continue
                if isinstance(error, OSError):
                    raise self._not_writable(error) from None
                raise

    def _not_writable(self, error: OSError) -> StorageError:
        return StorageError(str(self._folder), error)


def _keep_evaluations(file: Path, update: int) -> None:
    """Those up to `update` that later ones can be compared with."""
    records = _records_until(file, math.inf)
    usable = [one for one in records if not any(math.isnan(number(one.get(name))) for name in OF_EVALUATIONS)]
    num_whole = _content(file).count(b"\n")  # a kill leaves a half line at the end, which is no loss
    if len(usable) < num_whole:
        lost = counted(num_whole - len(usable), "line")
        warn(f"{file} has {lost} that cannot be read; the best evaluation from now on is the best of those that can")
    kept = [one for one in usable if one["update"] <= update]
    write_atomically(file, "".join(map(_line, kept)).encode())


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes() if file.exists() else b""
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror})", EXIT_STORAGE) from None


def _records_until(metrics: Path, update: float) -> list[dict[str, Any]]:
    """The readable records of a log up to `update`, each update once and in order."""
    kept: list[dict[str, Any]] = []
    for line in _content(metrics).splitlines():
        try:
            record = json.loads(line, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            continue
        number = record.get("update") if isinstance(record, dict) else None
        if type(number) is int and (kept[-1]["update"] if kept else 0) < number <= update:
            kept.append(record)
    return kept


def _line(record: Mapping[str, Any]) -> str:
    """JSON has no NaN and no infinity: such a metric has no value."""
    values = {name: None if isinstance(one, float) and not math.isfinite(one) else one for name, one in record.items()}
    return json.dumps(values, allow_nan=False) + "\n"
