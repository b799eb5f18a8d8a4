"""TensorBoard events of a run: every number of the log under a readable tag."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from rlcluster.runs.fields import TAGS

FLUSH_SECONDS = 10


class EventFile:
    """Appends one event per update. `first_step` hides what an interrupted run wrote beyond its last checkpoint."""

    def __init__(self, folder: Path, first_step: int = 0) -> None:
        self._file = (folder / f"events.out.tfevents.{time.time_ns()}").open("wb")
        self._writer = RecordWriter(self._file)
        self._flushed_at = time.perf_counter()
        self._write(Event(file_version="brain.Event:2"))
        self._write(Event(step=first_step + 1, session_log=SessionLog(status=SessionLog.START)))

    def add(self, record: dict[str, Any]) -> None:
        values = [
            Summary.Value(tag=tag, simple_value=record[name])
            for name, tag in TAGS.items()
            if record.get(name) is not None
        ]
        self._write(Event(step=record["steps_global"], summary=Summary(value=values)))
        if time.perf_counter() - self._flushed_at >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        self._file.flush()
        self._flushed_at = time.perf_counter()

    def close(self) -> None:
        self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._writer.write(event.SerializeToString())
