"""Environments by name."""

from __future__ import annotations

from collections.abc import Sequence

from rlcluster.environments.construction import with_progress
from rlcluster.environments.foreign import ForeignEnvironments, foreign_code
from rlcluster.environments.frame_stack import StackedEnvironments, inner_states, stacked_bytes, stacked_spec
from rlcluster.environments.interface import EnvironmentSpec, Step, VectorEnvironment
from rlcluster.environments.randomness import simulator_seed
from rlcluster.settings.games import procgen_game
from rlcluster.settings.schema import EnvSettings
from rlcluster.system.errors import UserError
from rlcluster.system.heartbeat import MAKING

__all__ = ["EnvironmentSpec", "Step", "VectorEnvironment", "check_states", "describe", "make"]


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
    with foreign_code(settings.name, MAKING):
        inner = _make(settings, indices, with_frames, position, num_threads)
    stacked = inner if settings.frame_stack == 1 else StackedEnvironments(inner, settings.frame_stack)
    return ForeignEnvironments(stacked, settings.name)


def _make(
    settings: EnvSettings, indices: Sequence[int], with_frames: bool, position: int, num_threads: int
) -> VectorEnvironment:
    game = procgen_game(settings.name)
    seeds = {i: simulator_seed(settings.seed, i, position) for i in with_progress(indices, "drew the seeds of")}
    if game is not None:
        from rlcluster.environments.procgen import ProcgenEnvironments

        return ProcgenEnvironments(settings, game, seeds, with_frames, num_threads)
    from rlcluster.environments.gymnasium import GymnasiumEnvironments

    return GymnasiumEnvironments(settings, seeds, with_frames)


def describe(settings: EnvSettings) -> EnvironmentSpec:
    """The observation and action space; raises a UserError for an unknown environment."""
    with foreign_code(settings.name, MAKING):
        return _describe(settings)


def _describe(settings: EnvSettings) -> EnvironmentSpec:
    game = procgen_game(settings.name)
    if game is not None:
        from rlcluster.environments import procgen

        _refuse_arguments(settings, game)
        return stacked_spec(procgen.describe(settings, game), settings.frame_stack)
    from rlcluster.environments import gymnasium

    return stacked_spec(gymnasium.describe(settings), settings.frame_stack)


def _refuse_arguments(settings: EnvSettings, game: str) -> None:
    if settings.kwargs or settings.wrappers:
        given = f"env.kwargs={settings.kwargs}" if settings.kwargs else f"env.wrappers={settings.wrappers[0][0]}"
        raise UserError(
            f"{given} applies to Gymnasium environments; {game} has settings of its own (env.distribution_mode, "
            "env.num_levels, ...) and takes env.frame_stack"
        )


def check_states(settings: EnvSettings, states: Sequence[bytes]) -> None:
    """Raises a DamagedStateError if the environments of a run cannot be restored from these states."""
    with foreign_code(settings.name, MAKING):
        _check_states(settings, states)


def _check_states(settings: EnvSettings, states: Sequence[bytes]) -> None:
    if settings.frame_stack > 1:
        states = inner_states(states, stacked_bytes(_describe(settings)))
    if procgen_game(settings.name) is not None:
        from rlcluster.environments import procgen

        procgen.check_states(states)
    else:
        from rlcluster.environments import gymnasium

        gymnasium.check_states(settings, states)
