"""TensorBoard events of a run: every number of the log, and of its evaluations, under a readable tag; the settings as
hyper-parameters.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf.struct_pb2 import Value
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo
from tensorboard.summary.writer.record_writer import RecordWriter

from rlcluster.runs.files import EVALUATION_EVENTS_FOLDER, EVENT_FILE
from rlcluster.runs.loggers import EVALUATION, Logger, LogStart
from rlcluster.runs.status import StateName

FLUSH_SECONDS = 10
EVALUATION_TAGS = {
    "reward_mean": f"{EVALUATION}mean_reward",
    "length_mean": f"{EVALUATION}mean_ep_length",
    "levels_completed": f"{EVALUATION}levels_completed",
    "action_information": f"{EVALUATION}action_information",
}
LEVELS = {"test": "", "train": "_training_levels"}  # after the tag


class EventFile(Logger):
    """Appends one event per update. The first step hides what an interrupted run wrote beyond its last checkpoint; None
    hides nothing.
    """

    def __init__(self, start: LogStart) -> None:
        self._file = (start.events / EVENT_FILE.format(time.time_ns())).open("wb")
        self._writer = RecordWriter(self._file)
        self._flushed_at = time.perf_counter()
        self._write(Event(file_version="brain.Event:2"))
        if start.step is not None:
            self._write(Event(step=start.step + 1, session_log=SessionLog(status=SessionLog.START)))
        if start.step == 0:
            self._write(Event(summary=_hyper_parameters(start.hyper_parameters)))

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._write(Event(step=step, summary=Summary(value=values)))
        if time.perf_counter() - self._flushed_at >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        self._file.flush()
        self._flushed_at = time.perf_counter()

    def close(self, status: StateName) -> None:
        del status
        self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._writer.write(event.SerializeToString())


def _hyper_parameters(values: Mapping[str, Any]) -> Summary:
    """What TensorBoard's HParams page compares runs by. Lists are shown as text."""
    info = SessionStartInfo(start_time_secs=time.time())
    for key, value in values.items():
        if isinstance(value, bool):
            info.hparams[key].CopyFrom(Value(bool_value=value))
        elif isinstance(value, int | float):
            info.hparams[key].CopyFrom(Value(number_value=value))
        elif value is not None:
            info.hparams[key].CopyFrom(Value(string_value=str(value)))
    content = HParamsPluginData(session_start_info=info, version=metadata.PLUGIN_DATA_VERSION).SerializeToString()
    plugin = SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME, content=content)
    value = Summary.Value(tag=metadata.SESSION_START_INFO_TAG, metadata=SummaryMetadata(plugin_data=plugin))
    return Summary(value=[value])


def write_evaluation_events(run: Path, steps_global: int, results: Mapping[str, Mapping[str, Any]]) -> None:
    """In a folder of its own: the events of a run that is resumed would hide those of a later step next to them."""
    folder = run / EVALUATION_EVENTS_FOLDER
    folder.mkdir(exist_ok=True)
    events = EventFile(LogStart(run, folder, folder, {}, None))
    try:
        for levels, result in results.items():
            events.add(steps_global, evaluation_scalars(result, levels))
    finally:
        events.close("finished")


def evaluation_scalars(result: Mapping[str, Any], levels: str = "test") -> dict[str, float]:
    """The numbers of an evaluation by tag, as loggers get them."""
    end = LEVELS.get(levels, f"_{levels}")
    return {tag + end: result[name] for name, tag in EVALUATION_TAGS.items() if result.get(name) is not None}
