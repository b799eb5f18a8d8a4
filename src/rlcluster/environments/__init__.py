"""Environments by name."""

from __future__ import annotations

from collections.abc import Sequence

from rlcluster.config import EnvSettings
from rlcluster.environments.interface import EnvironmentSpec, Step, VectorEnvironment
from rlcluster.environments.names import procgen_game

__all__ = ["EnvironmentSpec", "Step", "VectorEnvironment", "describe", "make"]


def make(settings: EnvSettings, indices: Sequence[int], with_pictures: bool = False) -> VectorEnvironment:
    """The environments numbered `indices` of a run. `with_pictures` renders large pictures for videos."""
    game = procgen_game(settings.name)
    if game is not None:
        from rlcluster.environments.procgen import ProcgenEnvironments

        return ProcgenEnvironments(settings, game, indices, with_pictures)
    from rlcluster.environments.gymnasium import GymnasiumEnvironments

    return GymnasiumEnvironments(settings, indices, with_pictures)


def describe(settings: EnvSettings) -> EnvironmentSpec:
    """What a policy must know of these environments; raises a UserError where there are none of that name."""
    if procgen_game(settings.name) is not None:
        from rlcluster.environments import procgen

        return procgen.SPEC
    from rlcluster.environments import gymnasium

    return gymnasium.describe(settings)
