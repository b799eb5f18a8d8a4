"""Warm start: a new run begins with the parameters of another one's checkpoint (`policy.init_from`), perhaps of another
game. With `policy.init_with: model` it takes over the optimiser's and the rewards' statistics and the counters as well.

Only the beginning differs: from then on the run is like any other, and its own checkpoints are all that a resumption
needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcluster.settings.schema import Settings
from rlcluster.system.errors import UserError

if TYPE_CHECKING:
    from rlcluster.environments.interface import EnvironmentSpec
    from rlcluster.exchange.ranks import Ranks
    from rlcluster.networks.policy import Policy

FURTHER = ("optimizer", "reward_normalizer", "updates", "steps_global")


def with_checkpoint_file(settings: Settings) -> Settings:
    """`init_from` may be a run: the settings that are recorded name the checkpoint that is meant now."""
    given = settings.policy.init_from
    if given is None:
        return settings
    from rlcluster.runs.checkpoints import find_checkpoint

    file = str(find_checkpoint(Path(given), "policy.init_from").path.resolve())
    return settings.model_copy(update={"policy": settings.policy.model_copy(update={"init_from": file})})


def read_initial(settings: Settings, spec: EnvironmentSpec) -> dict[str, Any] | None:
    """What the run begins with, of `Model.state`; None without a warm start. Raises a UserError that names every
    parameter that does not fit the policy for these observations and actions.
    """
    if settings.policy.init_from is None:
        return None
    from rlcluster.networks.policy import make_policy
    from rlcluster.runs.checkpoint import load_checkpoint

    path = Path(settings.policy.init_from)
    checkpoint = load_checkpoint(path)
    old, initial = checkpoint.settings, {"parameters": checkpoint.parameters()}
    if settings.policy.init_with == "model":
        with checkpoint.reading():
            initial |= {name: checkpoint.content["learner"][name] for name in FURTHER}
    policy = make_policy(settings.policy, spec, settings.env.seed, settings.hardware.kernels)
    _refuse_other_shapes(settings, old, initial["parameters"], policy)
    if "optimizer" in initial and settings.optimizer != old.optimizer:
        raise UserError(
            f"policy.init_with=model: {path} has the statistics of {old.optimizer}, this run uses "
            f"{settings.optimizer}; use --init-with parameters, or --optimizer {old.optimizer}"
        )
    return initial


def share_initial(initial: dict[str, Any] | None, ranks: Ranks) -> dict[str, Any] | None:
    """Rank 0's, on every rank: other machines need not see the file."""
    if ranks.world_size == 1:
        return initial
    from rlcluster.runs.checkpoint import checkpoint_bytes, load_checkpoint

    own = bytes(checkpoint_bytes(initial)) if initial is not None else b""
    content = ranks.broadcast(own if ranks.rank == 0 else None)
    return load_checkpoint(Path("rank 0's initial parameters"), content).content if content else None


def _refuse_other_shapes(settings: Settings, old: Settings, given: dict[str, Any], policy: Policy) -> None:
    own = {name: list(value.shape) for name, value in policy.state_dict().items()}
    theirs = {name: list(value.shape) for name, value in given.items()}
    problems = [
        f"{name} is {theirs.get(name, 'missing')} in the checkpoint and {own.get(name, 'missing')} here"
        for name in sorted(own.keys() | theirs.keys())
        if own.get(name) != theirs.get(name)
    ]
    if problems:
        shown = [*problems[:4], *([f"{len(problems) - 4} more"] if len(problems) > 4 else [])]
        raise UserError(
            f"policy.init_from={settings.policy.init_from} has a {old.policy.network} network for {old.env.name}; it "
            f"does not fit the {policy.network} network for {settings.env.name}: {'; '.join(shown)}; use the same "
            "network, and an environment with the same observations and actions"
        )
