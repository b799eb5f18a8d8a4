"""Environments by name."""

from __future__ import annotations

from collections.abc import Sequence

from rlcluster.environments.interface import EnvironmentSpec, Step, VectorEnvironment
from rlcluster.environments.randomness import simulator_seed
from rlcluster.settings.games import procgen_game
from rlcluster.settings.schema import EnvSettings

__all__ = ["EnvironmentSpec", "Step", "VectorEnvironment", "describe", "make"]


def make(
    settings: EnvSettings,
    indices: Sequence[int],
    with_frames: bool = False,
    position: int = 0,
    num_threads: int = 1,
) -> VectorEnvironment:
    """The environments `indices` of a run. `with_frames` renders large frames for videos; a different `position` gives
    different episodes. `num_threads` threads step them, where the simulator allows it.
    """
    game = procgen_game(settings.name)
    seeds = {i: simulator_seed(settings.seed, i, position) for i in indices}
    if game is not None:
        from rlcluster.environments.procgen import ProcgenEnvironments

        return ProcgenEnvironments(settings, game, seeds, with_frames, num_threads)
    from rlcluster.environments.gymnasium import GymnasiumEnvironments

    return GymnasiumEnvironments(settings, seeds, with_frames)


def describe(settings: EnvSettings) -> EnvironmentSpec:
    """The observation and action space; raises a UserError for an unknown environment."""
    game = procgen_game(settings.name)
    if game is not None:
        from rlcluster.environments import procgen

        return procgen.describe(settings, game)
    from rlcluster.environments import gymnasium

    return gymnasium.describe(settings)
