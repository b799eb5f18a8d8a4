"""TensorBoard events of a run: every number of the log under a readable tag."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

FLUSH_SECONDS = 10

TAGS = {
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
    "episode_length_mean": "episodes/length_mean",
    "episode_count": "episodes/count",
    "memory_gb": "memory/current_gb",
    "peak_memory_gb": "memory/peak_gb",
}


class EventFile:
    """Appends one event per update. `first_step` hides what an interrupted run wrote beyond its last checkpoint."""

    def __init__(self, folder: Path, first_step: int = 0) -> None:
        self._writer = EventFileWriter(str(folder), flush_secs=FLUSH_SECONDS)
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=first_step + 1, session_log=start))

    def add(self, record: dict[str, Any]) -> None:
        values = [
            Summary.Value(tag=tag, simple_value=record[name])
            for name, tag in TAGS.items()
            if record.get(name) is not None
        ]
        event = Event(wall_time=time.time(), step=record["steps_global"], summary=Summary(value=values))
        self._writer.add_event(event)

    def close(self) -> None:
        self._writer.close()
