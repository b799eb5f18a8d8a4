"""Can a run be restored from this checkpoint? Found out before anything of the run is changed."""

from __future__ import annotations

from typing import Any

from rlcluster import environments
from rlcluster.environments.interface import DamagedStateError, EnvironmentSpec
from rlcluster.exchange.ranks import Ranks
from rlcluster.learning import actor_state
from rlcluster.learning.actor_state import ActorState
from rlcluster.learning.model import Model
from rlcluster.networks.policy import make_policy
from rlcluster.runs.checkpoint import Checkpoint, CheckpointError
from rlcluster.runs.episodes import EpisodeHistory
from rlcluster.settings.schema import Settings
from rlcluster.training import pending
from rlcluster.training.hogwild import unlogged

NUMBERS = ("elapsed_seconds", "peak_memory_gb")
NUMBER_LISTS = ("recent_seconds", "recent_steps")


def refuse_unrestorable(checkpoint: Checkpoint, settings: Settings, spec: EnvironmentSpec) -> None:
    """Restores every part on trial, by the code that will restore it. A part that is missing or of another shape is a
    refusal; a damaged simulator, which an earlier checkpoint may replace, counts as a damaged file.
    """
    checkpoint.parameters()
    content, envs = checkpoint.content, range(settings.env.num_envs)
    with checkpoint.reading():
        policy = make_policy(settings.policy, spec, settings.env.seed, "torch")
        Model(settings, policy, envs, Ranks()).restore(content["learner"])
        EpisodeHistory().restore(content["episodes"])
        pending.from_checkpoint(content, envs)
        unlogged(content)
        for name in NUMBERS:
            float(content[name])
        for name in NUMBER_LISTS:
            sum(map(float, content[name]))
        _refuse_other_sizes(content["actor"], len(envs))
        state = actor_state.share(content["actor"], envs)
    try:
        environments.check_states(settings.env, state.simulators or [])
    except DamagedStateError as error:
        raise CheckpointError(checkpoint.path, str(error)) from None


def _refuse_other_sizes(actor: dict[str, Any], num_envs: int) -> None:
    """One entry for each environment of the run: slices and copies would accept more."""
    shapes = {name: list(actor[name].shape) for name in ActorState._fields[1:]}
    if actor["simulators"] is not None:
        shapes["simulators"] = [len(actor["simulators"])]
    wrong = [f"{name} of shape {shape}" for name, shape in shapes.items() if shape != [num_envs]]
    if wrong:
        raise ValueError(f"{', '.join(wrong)}, for {num_envs} environments")
