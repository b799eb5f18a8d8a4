"""The table of logged fields: one object per update in the log has these, TensorBoard shows them under their tags,
readers get them as columns, and ARCHITECTURE.md lists them.

To log a number, add its row here and report it from its producer. Records with other fields are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

Producer = Literal["loop", "learner", "episodes", "machine", "impala", "a3c"]
Unit = Literal["", "s", "1/s", "GB", "nats", "steps", "updates", "share"]


class Field(NamedTuple):
    name: str
    unit: Unit
    meaning: str
    producer: Producer  # impala, a3c: only with actors or workers
    tag: str | None  # in TensorBoard; None: it is the axis


FIELDS = (
    Field("update", "updates", "updates so far", "loop", "progress/update"),
    Field("steps_global", "steps", "environment steps so far, over all ranks", "loop", None),
    Field("world_size", "", "number of ranks", "loop", "progress/world_size"),
    Field(
        "fps", "1/s", "environment steps per second in this update, rollout and learning together", "loop", "speed/fps"
    ),
    Field("t_iter", "s", "duration of the update on rank 0", "loop", "speed/t_iter"),
    Field(
        "t_rollout",
        "s",
        "time acting on rank 0; with actors: time waiting for rollouts; a3c: mean over workers",
        "loop",
        "speed/t_rollout",
    ),
    Field("t_learn", "s", "time learning on rank 0; a3c: mean over workers", "loop", "speed/t_learn"),
    Field(
        "t_sync", "s", "time in collectives on rank 0, including the wait for the slowest rank", "loop", "speed/t_sync"
    ),
    Field(
        "loss",
        "",
        "total loss; this and the losses below are means over all samples of the update",
        "learner",
        "loss/total",
    ),
    Field("policy_loss", "", "policy loss", "learner", "loss/policy"),
    Field("value_loss", "", "value loss, before its coefficient", "learner", "loss/value"),
    Field("entropy", "nats", "mean entropy of the policy", "learner", "policy/entropy"),
    Field(
        "action_information",
        "nats",
        "H(mean of π over samples) − mean H(π): how much the action depends on the observation; 0 for a blind policy",
        "learner",
        "policy/action_information",
    ),
    Field(
        "approx_kl",
        "nats",
        "mean of (r − 1) − log r, where r is the new over the old probability of the action taken",
        "learner",
        "policy/approx_kl",
    ),
    Field(
        "clip_frac",
        "share",
        "samples whose r lies outside 1 ± clip_range (1 ± 0.2 for algorithms that do not clip)",
        "learner",
        "policy/clip_frac",
    ),
    Field(
        "explained_variance",
        "",
        "1 − Var[return − value] / Var[return]; null if all returns are equal",
        "learner",
        "value/explained_variance",
    ),
    Field(
        "grad_norm",
        "",
        "gradient norm before clipping, mean over the optimiser steps",
        "learner",
        "optimizer/grad_norm",
    ),
    Field("learning_rate", "", "learning rate of this update", "learner", "optimizer/learning_rate"),
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
    Field("episode_count", "", "episodes finished in this update", "episodes", "episodes/count"),
    Field(
        "episode_reward_mean",
        "",
        "mean raw reward of these episodes; null if there are none",
        "episodes",
        "episodes/reward_mean",
    ),
    Field("episode_reward_std", "", "standard deviation of these rewards", "episodes", "episodes/reward_std"),
    Field("episode_length_mean", "steps", "mean length of these episodes", "episodes", "episodes/length_mean"),
    Field(
        "episode_reward_recent",
        "",
        "mean raw reward of the last 100 episodes",
        "episodes",
        "episodes/reward_mean_last_100",
    ),
    Field(
        "episode_reward_recent_std",
        "",
        "standard deviation of these rewards",
        "episodes",
        "episodes/reward_std_last_100",
    ),
    Field("memory_gb", "GB", "resident memory of all processes", "machine", "memory/current_gb"),
    Field(
        "peak_memory_gb", "GB", "peak resident memory of all processes, over the whole run", "machine", "memory/peak_gb"
    ),
    Field(
        "elapsed_seconds",
        "s",
        "training time so far, including earlier parts of a resumed run",
        "loop",
        "progress/elapsed_seconds",
    ),
)
NAMES = frozenset(field.name for field in FIELDS)
TAGS = {field.name: field.tag for field in FIELDS if field.tag is not None}


def refuse_unknown(names: Iterable[str]) -> None:
    """A number that nobody can look up is a bug."""
    unknown = sorted(set(names) - NAMES)
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: not in the table of logged fields (runs/fields.py)")


def markdown() -> str:
    """The table of ARCHITECTURE.md."""
    rows = [f"| `{field.name}` | {field.unit} | {field.producer} | {field.meaning} |" for field in FIELDS]
    return "\n".join(["| field | unit | producer | meaning |", "|---|---|---|---|", *rows])
