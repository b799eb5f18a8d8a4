"""The table of logged fields: one object per update in the log has these, TensorBoard shows them under their tags,
readers get them as columns, and ARCHITECTURE.md lists them.

To log a number, add its row here and report it from its producer. Records with other fields are refused. The tags are
those that users know from other libraries: rollout/, time/ and train/.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

Producer = Literal["loop", "learner", "episodes", "machine", "impala", "a3c"]
WINDOW = 100  # episodes in a moving average: `episode_reward_recent`, and the rewards of the summary

Unit = Literal["", "s", "1/s", "GB", "nats", "steps", "updates", "share"]


class Field(NamedTuple):
    name: str
    unit: Unit
    meaning: str
    producer: Producer  # impala, a3c: only with actors or workers
    tag: str | None  # in TensorBoard; None: it is the axis


FIELDS = (
    Field("update", "updates", "updates so far", "loop", "time/updates"),
    Field("steps_global", "steps", "environment steps so far, over all ranks", "loop", None),
    Field("world_size", "", "number of ranks", "loop", "time/world_size"),
    Field(
        "fps", "1/s", "environment steps per second in this update, rollout and learning together", "loop", "time/fps"
    ),
    Field("t_iter", "s", "duration of the update on rank 0", "loop", "time/t_iter"),
    Field(
        "t_rollout",
        "s",
        "time acting on rank 0; with actors: time waiting for rollouts; a3c: mean over workers",
        "loop",
        "time/t_rollout",
    ),
    Field("t_learn", "s", "time learning on rank 0; a3c: mean over workers", "loop", "time/t_learn"),
    Field(
        "t_sync", "s", "time in collectives on rank 0, including the wait for the slowest rank", "loop", "time/t_sync"
    ),
    Field(
        "rank_fps_min",
        "1/s",
        "of the slowest rank: steps of its environments per second without synchronisation (with several ranks)",
        "loop",
        "time/rank_fps_min",
    ),
    Field("rank_fps_max", "1/s", "the same of the fastest rank", "loop", "time/rank_fps_max"),
    Field("rank_slowest", "", "number of the slowest rank", "loop", "time/rank_slowest"),
    Field(
        "loss",
        "",
        "total loss; this and the losses below are means over all samples of the update",
        "learner",
        "train/loss",
    ),
    Field("policy_loss", "", "policy loss", "learner", "train/policy_loss"),
    Field("value_loss", "", "value loss, before its coefficient", "learner", "train/value_loss"),
    Field("entropy", "nats", "mean entropy of the policy", "learner", "train/entropy"),
    Field(
        "action_information",
        "nats",
        "H(mean of π over samples) − mean H(π): how much the action depends on the observation; 0 for a blind policy",
        "learner",
        "train/action_information",
    ),
    Field(
        "approx_kl",
        "nats",
        "mean of (r − 1) − log r, where r is the new over the old probability of the action taken",
        "learner",
        "train/approx_kl",
    ),
    Field(
        "clip_frac",
        "share",
        "samples whose r lies outside 1 ± clip_range (1 ± 0.2 for algorithms that do not clip)",
        "learner",
        "train/clip_fraction",
    ),
    Field(
        "explained_variance",
        "",
        "1 − Var[return − value] / Var[return]; null if all returns are equal",
        "learner",
        "train/explained_variance",
    ),
    Field(
        "grad_norm",
        "",
        "gradient norm before clipping, mean over the optimiser steps",
        "learner",
        "train/grad_norm",
    ),
    Field("learning_rate", "", "learning rate of this update", "learner", "train/learning_rate"),
    Field(
        "policy_lag_mean",
        "updates",
        "mean lag of the policy that acted behind the policy that learns",
        "impala",
        "asynchrony/policy_lag_mean",
    ),
    Field("policy_lag_max", "updates", "largest such lag", "impala", "asynchrony/policy_lag_max"),
    Field(
        "slot_occupancy",
        "share",
        "slots that hold a rollout when learning starts",
        "impala",
        "asynchrony/slot_occupancy",
    ),
    Field("learner_idle", "share", "time the learner waits for rollouts", "impala", "asynchrony/learner_idle"),
    Field("actor_idle", "share", "time an actor waits for a free slot", "impala", "asynchrony/actor_idle"),
    Field(
        "staleness_mean",
        "steps",
        "optimiser steps by other workers between a worker's pull and its own step, mean",
        "a3c",
        "asynchrony/staleness_mean",
    ),
    Field("staleness_max", "steps", "largest such staleness", "a3c", "asynchrony/staleness_max"),
    Field("episode_count", "", "episodes finished in this update", "episodes", "rollout/episodes"),
    Field(
        "episode_reward_mean",
        "",
        "mean raw reward of these episodes; null if there are none",
        "episodes",
        "rollout/ep_rew_mean_of_update",
    ),
    Field("episode_reward_std", "", "standard deviation of these rewards", "episodes", "rollout/ep_rew_std_of_update"),
    Field("episode_length_mean", "steps", "mean length of these episodes", "episodes", "rollout/ep_len_mean"),
    Field(
        "episode_reward_recent",
        "",
        "mean raw reward of the last 100 episodes",
        "episodes",
        "rollout/ep_rew_mean",
    ),
    Field(
        "episode_reward_recent_std",
        "",
        "standard deviation of these rewards",
        "episodes",
        "rollout/ep_rew_std",
    ),
    Field("memory_gb", "GB", "resident memory of all processes", "machine", "memory/current_gb"),
    Field(
        "peak_memory_gb", "GB", "peak resident memory of all processes, over the whole run", "machine", "memory/peak_gb"
    ),
    Field(
        "elapsed_seconds",
        "s",
        "training time so far, including earlier parts of a resumed run; not while the run is stopped (Ctrl-Z)",
        "loop",
        "time/time_elapsed",
    ),
)
NAMES = frozenset(field.name for field in FIELDS)
TAGS = {field.name: field.tag for field in FIELDS if field.tag is not None}


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record by tag, as loggers get them."""
    return {tag: record[name] for name, tag in TAGS.items() if record.get(name) is not None}


def refuse_unknown(names: Iterable[str]) -> None:
    """A number that nobody can look up is a bug."""
    unknown = sorted(set(names) - NAMES)
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: not in the table of logged fields (runs/fields.py)")


def markdown() -> str:
    """The table of ARCHITECTURE.md."""
    rows = [f"| `{field.name}` | {field.unit} | {field.producer} | {field.meaning} |" for field in FIELDS]
    return "\n".join(["| field | unit | producer | meaning |", "|---|---|---|---|", *rows])
