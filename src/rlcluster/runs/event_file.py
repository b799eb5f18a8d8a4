"""TensorBoard events of a run: every number of the log under a readable tag."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

FLUSH_SECONDS = 10

TAGS = {
    "update": "progress/update",
    "world_size": "progress/world_size",
    "elapsed_seconds": "progress/elapsed_seconds",
    "fps": "speed/fps",
    "t_iter": "speed/t_iter",
    "t_rollout": "speed/t_rollout",
    "t_learn": "speed/t_learn",
    "t_sync": "speed/t_sync",
    "loss": "loss/total",
    "policy_loss": "loss/policy",
    "value_loss": "loss/value",
    "entropy": "policy/entropy",
    "approx_kl": "policy/approx_kl",
    "clip_frac": "policy/clip_frac",
    "explained_variance": "value/explained_variance",
    "learning_rate": "optimizer/learning_rate",
    "grad_norm": "optimizer/grad_norm",
    "episode_reward_mean": "episodes/reward_mean",
    "episode_reward_std": "episodes/reward_std",
    "episode_reward_recent": "episodes/reward_mean_last_100",
    "episode_reward_recent_std": "episodes/reward_std_last_100",
    "episode_length_mean": "episodes/length_mean",
    "episode_count": "episodes/count",
    "policy_lag_mean": "asynchrony/policy_lag_mean",
    "policy_lag_max": "asynchrony/policy_lag_max",
    "slot_occupancy": "asynchrony/slot_occupancy",
    "learner_idle": "asynchrony/learner_idle",
    "actor_idle": "asynchrony/actor_idle",
    "staleness_mean": "asynchrony/staleness_mean",
    "staleness_max": "asynchrony/staleness_max",
    "memory_gb": "memory/current_gb",
    "peak_memory_gb": "memory/peak_gb",
}


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
