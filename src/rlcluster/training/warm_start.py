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
    from rlcluster.runs.checkpoint import Checkpoint

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
    parameter that does not fit the policy for these observations and actions, or what else of the model is odd.
    """
    if settings.policy.init_from is None:
        return None
    from rlcluster.networks.policy import make_policy
    from rlcluster.runs.checkpoint import load_checkpoint

    checkpoint = load_checkpoint(Path(settings.policy.init_from))
    parameters = checkpoint.parameters()
    policy = make_policy(settings.policy, spec, settings.env.seed, settings.hardware.kernels)
    _refuse_other_shapes(settings, checkpoint.settings, parameters, policy)
    further = _further(checkpoint, settings, policy) if settings.policy.init_with == "model" else {}
    return {"parameters": parameters, **further}


def _further(checkpoint: Checkpoint, settings: Settings, policy: Policy) -> dict[str, Any]:
    """The statistics and counters, which must be as this run would write them."""
    from rlcluster.runs.checkpoint import CheckpointError
    from rlcluster.training.restoring import refuse_other_statistics

    old = checkpoint.settings
    with checkpoint.reading():
        has_parameters_alone = not {*FURTHER[:2]} & {*checkpoint.content["learner"]}
    if has_parameters_alone:
        reason = "has the parameters alone, as agents and the best checkpoint have"
        raise CheckpointError(checkpoint.path, reason, is_damaged=False, remedy="use --init-with parameters")
    if settings.optimizer != old.optimizer:
        raise UserError(
            f"policy.init_with=model: {checkpoint.path} has the statistics of {old.optimizer}, this run uses "
            f"{settings.optimizer}; use --init-with parameters, or --optimizer {old.optimizer}"
        )
    with checkpoint.reading():
        refuse_other_statistics(checkpoint.content["learner"], settings, policy)
        return {name: checkpoint.content["learner"][name] for name in FURTHER}


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
