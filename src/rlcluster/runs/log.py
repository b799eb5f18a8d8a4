"""The log of a run as its writer sees it: metrics.jsonl and TensorBoard's events, in step with each other."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TextIO

from rlcluster.runs import fields
from rlcluster.runs.event_file import EventFile
from rlcluster.runs.files import METRICS_FILE
from rlcluster.runs.metrics import read_metrics
from rlcluster.system.atomic_file import write_atomically
from rlcluster.system.errors import EXIT_STORAGE, UserError


class RunLog:
    """Appends one record per update. What was logged after `update` (at step `steps_global`) is dropped: a resumed run
    will log it again.
    """

    def __init__(self, folder: Path, update: int = 0, steps_global: int = 0) -> None:
        self._folder = folder
        metrics = folder / METRICS_FILE
        if metrics.exists():
            kept = [record for record in read_metrics(metrics) if record["update"] <= update]
            write_atomically(metrics, "".join(json.dumps(record) + "\n" for record in kept).encode())
        try:
            self._metrics: TextIO = metrics.open("a", encoding="utf-8")
            self._events = EventFile(folder, steps_global)
        except OSError as error:
            raise self._not_writable(error) from None

    def add(self, record: dict[str, Any]) -> None:
        fields.refuse_unknown(record)
        try:
            self._metrics.write(json.dumps(record, allow_nan=False) + "\n")
            self._metrics.flush()
            self._events.add(record)
        except OSError as error:
            raise self._not_writable(error) from None

    def sync(self) -> None:
        """What was added is on the disk when this returns."""
        try:
            self._metrics.flush()
            os.fsync(self._metrics.fileno())
            self._events.flush()
        except OSError as error:
            raise self._not_writable(error) from None

    def close(self, quietly: bool) -> None:
        """Closing writes what is still buffered; `quietly` where a first error is already on its way to the user."""
        for file in (self._metrics, self._events):
            try:
                file.close()
            except OSError as error:
                if not quietly:
                    raise self._not_writable(error) from None

    def _not_writable(self, error: OSError) -> UserError:
        reason = f"{self._folder} cannot be written ({error.strerror})"
        return UserError(f"{reason}; free space and --resume", EXIT_STORAGE)
