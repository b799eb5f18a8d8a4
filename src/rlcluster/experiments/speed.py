"""What decides the speed of a run: every setting but those named here, and the processes that the settings lead to."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from rlcluster.settings.loading import flatten
from rlcluster.settings.schema import BUDGETS, Settings

# These change what is learnt, how long, or where it is written, but not the speed. Counts of processes are not settings
# here: a launcher or the machine may decide them.
WITHOUT_EFFECT = frozenset(
    {
        "mode",
        *("env.seed", "env.start_level", "policy.init_from", "policy.init_with", "hardware.device"),
        *(f"training.{budget}" for budget in BUDGETS),
        *("training.target_reward", "training.learning_rate", "training.anneal_learning_rate", "training.gamma"),
        *("training.gae_lambda", "training.entropy_coefficient", "training.value_coefficient"),
        *(
            "training.max_grad_norm",
            "training.reward_clip",
            "training.rho_bar",
            "training.c_bar",
            "training.adam_epsilon",
        ),
        *("training.rmsprop_decay", "training.rmsprop_epsilon"),
        *("parallel.num_workers", "parallel.workers_per_rank", "parallel.num_envs_per_worker"),
        *("parallel.timeout_seconds", "parallel.max_restarts"),
        *("cluster.num_workers", "cluster.distributed_backend", "cluster.master_addr", "cluster.master_port"),
        *("output.output_dir", "output.checkpoint_dir", "output.log_dir", "output.keep_checkpoints"),
    }
)


def work_of(settings: Settings) -> dict[str, Any]:
    """What an update costs, as JSON values by key."""
    return {key: value for key, value in flatten(settings.to_dict()).items() if key not in WITHOUT_EFFECT}


def helpers_of(settings: Settings) -> int | str | None:
    """The actors or workers of a rank: as given, "chosen" for the machine, or None where there are none."""
    if settings.traits.helpers_in(settings.mode) is None:
        return None
    return settings.given_helpers or "chosen"


def digest(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
