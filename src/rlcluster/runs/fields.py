"""The table of logged fields: one object per update in the log has these, TensorBoard shows them under their tags,
readers get them as columns, and ARCHITECTURE.md lists them.

To log a number, add its row here and let its producer tell it; a record with another field is refused.
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
    producer: Producer  # impala and a3c: with actors or workers only
    tag: str | None  # in TensorBoard; None: it is the axis


FIELDS = (
    Field("update", "updates", "updates so far", "loop", "progress/update"),
    Field("steps_global", "steps", "environment steps so far, over all ranks", "loop", None),
    Field("world_size", "", "ranks", "loop", "progress/world_size"),
    Field(
        "fps", "1/s", "environment steps per second of this update, rollout and learning together", "loop", "speed/fps"
    ),
    Field("t_iter", "s", "the whole update, on rank 0", "loop", "speed/t_iter"),
    Field(
        "t_rollout",
        "s",
        "acting, on rank 0; with actors: waiting for their rollouts; a3c: mean over the workers",
        "loop",
        "speed/t_rollout",
    ),
    Field("t_learn", "s", "learning, on rank 0; a3c: mean over the workers", "loop", "speed/t_learn"),
    Field(
        "t_sync",
        "s",
        "every collective on rank 0, waiting for the last rank included",
        "loop",
        "speed/t_sync",
    ),
    Field(
        "loss",
        "",
        "what is minimised; losses are means over all samples",
        "learner",
        "loss/total",
    ),
    Field("policy_loss", "", "its part of the policy", "learner", "loss/policy"),
    Field("value_loss", "", "its part of the value, without its coefficient", "learner", "loss/value"),
    Field("entropy", "nats", "of the policy", "learner", "policy/entropy"),
    Field(
        "approx_kl",
        "nats",
        "mean of (r − 1) − log r, r = new / old probability of the action taken",
        "learner",
        "policy/approx_kl",
    ),
    Field(
        "clip_frac",
        "share",
        "of samples whose ratio r lies outside 1 ± clip_range; 1 ± 0.2 where the algorithm does not clip",
        "learner",
        "policy/clip_frac",
    ),
    Field(
        "explained_variance",
        "",
        "1 − Var[return − value] / Var[return]; null when all returns are equal",
        "learner",
        "value/explained_variance",
    ),
    Field("grad_norm", "", "before clipping, mean over the optimiser's steps", "learner", "optimizer/grad_norm"),
    Field("learning_rate", "", "of this update", "learner", "optimizer/learning_rate"),
    Field(
        "policy_lag_mean",
        "updates",
        "between the policy that acted and the one that learns",
        "impala",
        "asynchrony/policy_lag_mean",
    ),
    Field("policy_lag_max", "updates", "the largest of these", "impala", "asynchrony/policy_lag_max"),
    Field(
        "slot_occupancy",
        "share",
        "of slots that hold rollouts when the learner begins",
        "impala",
        "asynchrony/slot_occupancy",
    ),
    Field("learner_idle", "share", "of its time that the learner waits", "impala", "asynchrony/learner_idle"),
    Field("actor_idle", "share", "of its time that an actor waits for a free slot", "impala", "asynchrony/actor_idle"),
    Field(
        "staleness_mean",
        "steps",
        "of the optimiser by others between a worker's pull and its own step",
        "a3c",
        "asynchrony/staleness_mean",
    ),
    Field("staleness_max", "steps", "the largest of these", "a3c", "asynchrony/staleness_max"),
    Field("episode_count", "", "episodes that finished in this update", "episodes", "episodes/count"),
    Field("episode_reward_mean", "", "their raw rewards; null when none", "episodes", "episodes/reward_mean"),
    Field("episode_reward_std", "", "deviation of these", "episodes", "episodes/reward_std"),
    Field("episode_length_mean", "steps", "their lengths", "episodes", "episodes/length_mean"),
    Field(
        "episode_reward_recent",
        "",
        "mean over the last 100 episodes",
        "episodes",
        "episodes/reward_mean_last_100",
    ),
    Field("episode_reward_recent_std", "", "deviation of these", "episodes", "episodes/reward_std_last_100"),
    Field("memory_gb", "GB", "resident memory of all processes together, now", "machine", "memory/current_gb"),
    Field("peak_memory_gb", "GB", "… and at most", "machine", "memory/peak_gb"),
    Field(
        "elapsed_seconds",
        "s",
        "training time so far, earlier parts of a resumed run included",
        "loop",
        "progress/elapsed_seconds",
    ),
)
NAMES = frozenset(field.name for field in FIELDS)
TAGS = {field.name: field.tag for field in FIELDS if field.tag is not None}


def refuse_unknown(names: Iterable[str]) -> None:
    """A number that nobody can look up is a mistake of ours."""
    unknown = sorted(set(names) - NAMES)
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: not in the table of logged fields (runs/fields.py)")


def markdown() -> str:
    """The table of ARCHITECTURE.md."""
    rows = [f"| `{field.name}` | {field.unit} | {field.producer} | {field.meaning} |" for field in FIELDS]
    return "\n".join(["| field | unit | told by | meaning |", "|---|---|---|---|", *rows])
