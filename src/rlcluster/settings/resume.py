"""Which settings a resumed run keeps, which it may change, and which its launcher decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlcluster.settings.algorithms import OPTIMIZER_SPECIFIC_SETTINGS
from rlcluster.settings.loading import Files, flatten, load_settings, without
from rlcluster.settings.schema import BUDGETS, Settings, budgets
from rlcluster.system.console import warn
from rlcluster.system.errors import UserError
from rlcluster.system.launcher import launched

# Speed, length and storage. (The length changes an annealed learning rate: `resumed_settings` warns.)
CHANGEABLE_ON_RESUME = {
    *(f"training.{budget}" for budget in BUDGETS),
    "training.target_reward",
    "mode",
    "parallel.num_workers",
    "parallel.workers_per_rank",
    "parallel.num_envs_per_worker",
    "parallel.pin_workers",
    "parallel.timeout_seconds",
    "parallel.max_restarts",
    "cluster.num_workers",
    "cluster.distributed_backend",
    "cluster.master_addr",
    "cluster.master_port",
    "hardware.num_threads",
    "hardware.kernels",
    "hardware.rollout_dir",
    "output.output_dir",
    "output.checkpoint_seconds",
    "output.checkpoint_updates",
    "output.keep_checkpoints",
    "output.callbacks",
    "output.loggers",
    "training.eval_interval",
    "training.eval_episodes",
    "output.profile",
    "output.profile_updates",
}
DECIDED_BY_LAUNCHER = {"parallel.num_workers", "parallel.max_restarts", "cluster.num_workers"}


def resumed_settings(
    algorithm: str | None,
    mode: str | None,
    file: Files,
    flags: Mapping[str, Any],
    read_settings: Callable[[Path], Mapping[str, Any]],
) -> Settings:
    """The settings of the run in the flag output.output_dir, from `read_settings`, updated by `file` and `flags`.
    Raises a UserError for changes that a resumed run may not make.
    """
    placement = launched()
    if placement is not None and placement.rank > 0:  # only rank 0 reads the run: other machines need not see it
        return load_settings(algorithm, mode or "distributed", file, flags)
    folder = flags.get("output.output_dir")
    if folder is None:
        raise UserError("--resume: give the run to continue with --output-dir DIR")
    base = read_settings(Path(folder))
    if placement is not None:
        base = without(base, DECIDED_BY_LAUNCHER)
    old = load_settings(base=base)
    if algorithm not in (None, old.algorithm):
        raise UserError(f"--resume: {folder} is a run of {old.algorithm}, not {algorithm}; leave {algorithm} out")
    if mode not in (None, old.mode) and old.traits.helpers:
        base = without(base, {"parallel.num_workers"})  # counts ranks in one mode, a rank's helpers in the other
    settings = load_settings(algorithm, mode, file, flags, base)
    differences = resume_differences(old, settings)
    if differences:
        raise UserError("--resume: a run keeps its settings; leave these out: " + "; ".join(differences))
    if settings.training.anneal_learning_rate and budgets(settings) != budgets(old):
        warn("the new budget rescales the annealed learning rate from here on")
    return settings


def resume_differences(old: Settings, new: Settings) -> list[str]:
    """The changed settings that a resumed run may not change, with both values."""
    old_values, new_values = flatten(old.to_dict()), flatten(new.to_dict())
    implied = OPTIMIZER_SPECIFIC_SETTINGS if old.optimizer != new.optimizer else frozenset()
    return [
        f"{key}={new_values.get(key)} but the run has {old_values.get(key)}"
        for key in sorted(old_values.keys() | new_values.keys())
        if key not in CHANGEABLE_ON_RESUME | implied
        and old_values.get(key) != new_values.get(key)
        and not (key == "policy.network" and new_values[key] is None)  # null: as chosen before
    ]
