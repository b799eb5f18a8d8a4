"""Procgen against the engine's own Python wrapper, and the guarantees of our interface."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gym3.types_np import sample  # noqa: F401 - shows that gym3, the reference, is installed
from numpy.typing import NDArray
from procgen import ProcgenGym3Env

from rlcluster import environments
from rlcluster.environments.interface import VectorEnvironment
from rlcluster.environments.procgen import engine_options
from rlcluster.environments.randomness import simulator_seed
from rlcluster.settings.games import PROCGEN_GAMES, procgen_game
from rlcluster.settings.schema import EnvSettings
from rlcluster.system.errors import UserError


def make(name: str, indices: range = range(4), num_threads: int = 1, **options: object) -> VectorEnvironment:
    return environments.make(EnvSettings(name=name, **options), indices, num_threads=num_threads)


def actions_for(indices: range, n_steps: int) -> NDArray[np.int64]:
    """[T, N] arbitrary, but fixed per environment."""
    columns = [np.random.default_rng(i).integers(0, 15, n_steps) for i in indices]
    return np.stack(columns, 1)


def record(environment: VectorEnvironment, n_steps: int) -> list[NDArray[np.generic]]:
    """The results of n_steps, as arrays [T, N, ...]."""
    rows = []
    for actions in actions_for(range(environment.indices[0], environment.indices[-1] + 1), n_steps):
        step = environment.step(actions)
        rows.append((environment.observations.copy(), step.rewards.copy(), step.terminated.copy()))
    return [np.stack(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("game", ["coinrun", "starpilot", "maze", "bigfish"])
def test_a_thousand_steps_equal_those_of_the_engines_own_wrapper(game: str) -> None:
    settings = EnvSettings(name=game, seed=5, distribution_mode="hard", num_levels=7, use_backgrounds=False)
    ours = environments.make(settings, range(3, 4))
    theirs = ProcgenGym3Env(
        num=1,
        env_name=game,
        distribution_mode="hard",
        num_levels=7,
        use_backgrounds=False,
        rand_seed=simulator_seed(5, 3),
        num_threads=0,
    )
    _, observation, _ = theirs.observe()
    assert np.array_equal(ours.observations, observation["rgb"])
    for actions in actions_for(range(3, 4), 1000):
        step = ours.step(actions)
        theirs.act(actions)
        rewards, observation, first = theirs.observe()
        assert np.array_equal(ours.observations, observation["rgb"])
        assert np.array_equal(step.rewards, rewards)
        assert np.array_equal(step.terminated, first)
        assert ours.level_seeds()[0] == theirs.get_info()[0]["level_seed"]
        assert ours.levels_completed()[0] == theirs.get_info()[0]["prev_level_complete"]


@pytest.mark.parametrize("game", PROCGEN_GAMES)
def test_every_game_plays_and_resumes_from_its_saved_state_in_another_instance(game: str) -> None:
    first = make(game, range(2), seed=1)
    record(first, 30)
    states = first.save()
    before = first.observations.copy()
    second = make(game, range(2), seed=99)
    second.restore(states)
    assert np.array_equal(second.observations, before)
    for ours, theirs in zip(record(first, 60), record(second, 60), strict=True):
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("ranks", [2, 4])
def test_partitioning_the_environments_differently_changes_nothing(ranks: int) -> None:
    together = record(make("coinrun", range(16)), 50)
    size = 16 // ranks
    parts = [record(make("coinrun", range(rank * size, (rank + 1) * size)), 50) for rank in range(ranks)]
    for k, whole in enumerate(together):
        assert np.array_equal(whole, np.concatenate([part[k] for part in parts], axis=1))


def test_all_names_of_a_game_mean_the_same() -> None:
    for name in ("coinrun", "procgen-coinrun-v0", "procgen:procgen-coinrun-v0"):
        assert procgen_game(name) == "coinrun"
    assert procgen_game("CartPole-v1") is None
    assert procgen_game("coinrunner") is None
    assert len(PROCGEN_GAMES) == 16


def test_environments_differ_and_the_seed_matters() -> None:
    one, other = make("coinrun", range(4), num_levels=0), make("coinrun", range(4), num_levels=0, seed=7)
    assert len(set(one.level_seeds().tolist())) > 1
    assert not np.array_equal(one.level_seeds(), other.level_seeds())


@pytest.mark.parametrize(
    "option",
    [
        {"distribution_mode": "hard"},
        {"start_level": 1000, "num_levels": 1},
        {"center_agent": False},
        {"use_backgrounds": False},
        {"use_monochrome_assets": True},
        {"use_generated_assets": True},
        {"restrict_themes": True},
        {"paint_vel_info": True},
    ],
)
def test_every_engine_option_changes_what_is_seen(option: dict[str, object]) -> None:
    default, changed = make("coinrun", range(8)), make("coinrun", range(8), **option)
    assert not np.array_equal(record(default, 3)[0], record(changed, 3)[0])


def test_sequential_levels_continue_without_a_new_episode() -> None:
    plain = EnvSettings(name="coinrun")
    assert engine_options(plain, "coinrun")["use_sequential_levels"] is False
    changed = plain.model_copy(update={"use_sequential_levels": True})
    assert engine_options(changed, "coinrun")["use_sequential_levels"] is True


def test_exploration_mode_is_one_fixed_hard_level() -> None:
    environment = make("coinrun", range(3), distribution_mode="exploration")
    assert environment.level_seeds().tolist() == [1949448038] * 3


@pytest.mark.parametrize(("game", "mode"), [("coinrun", "memory"), ("coinrun", "extreme"), ("bigfish", "exploration")])
def test_a_mode_that_the_game_does_not_have_is_refused_with_the_games_that_have_it(game: str, mode: str) -> None:
    with pytest.raises(UserError, match=f"env.distribution_mode={mode}: {game} has no such mode; use easy"):
        make(game, range(1), distribution_mode=mode)


def test_a_damaged_state_is_refused_before_the_engine_sees_it() -> None:
    environment = make("coinrun", range(1))
    (state,) = environment.save()
    damaged = state[:-1] + bytes([state[-1] ^ 1])
    with pytest.raises(UserError, match="damaged"):
        environment.restore([damaged])


def test_large_frames_do_not_change_the_game() -> None:
    settings = EnvSettings(name="starpilot")
    plain, watched = environments.make(settings, range(2)), environments.make(settings, range(2), with_frames=True)
    assert np.array_equal(record(plain, 20)[0], record(watched, 20)[0])
    assert watched.frame().shape == (512, 512, 3)
    assert plain.frame().shape == (64, 64, 3)


@pytest.mark.parametrize("num_threads", [2, 3, 9])
def test_threads_change_nothing(num_threads: int) -> None:
    settings = EnvSettings(name="starpilot", seed=3)
    alone = environments.make(settings, range(5))
    together = environments.make(settings, range(5), num_threads=num_threads)
    for ours, theirs in zip(record(together, 200), record(alone, 200), strict=True):
        assert np.array_equal(ours, theirs)
    together.close()


def test_an_error_in_a_thread_is_raised() -> None:
    vector: Any = make("coinrun", num_threads=2)
    vector._inner._handles[1] = "not an engine"
    with pytest.raises(TypeError):
        vector.step(np.zeros(4, np.int64))
