"""Gymnasium environments behind our interface."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from rlcluster import environments
from rlcluster.environments.interface import VectorEnvironment
from rlcluster.environments.randomness import simulator_seed
from rlcluster.settings.schema import EnvSettings
from rlcluster.system.errors import UserError


def make(name: str = "CartPole-v1", indices: range = range(4), seed: int = 42) -> VectorEnvironment:
    return environments.make(EnvSettings(name=name, seed=seed), indices)


def record(environment: VectorEnvironment, n_steps: int) -> list[Any]:
    rows = []
    for t in range(n_steps):
        step = environment.step(np.array([(t // (i + 2)) % 2 for i in environment.indices]))
        rows.append(
            [environment.observations.copy(), step.rewards.copy(), step.terminated.copy(), step.truncated.copy()]
        )
    return [np.stack(column) for column in zip(*rows, strict=True)]


def test_one_environment_equals_gymnasiums_own() -> None:
    ours, theirs = make(indices=range(3, 4)), gymnasium.make("CartPole-v1")
    observation, _ = theirs.reset(seed=simulator_seed(42, 3))
    assert np.array_equal(ours.observations[0], observation)
    for t in range(300):
        step = ours.step(np.array([t % 2]))
        observation, reward, terminated, truncated, _ = theirs.step(t % 2)
        assert step.rewards[0] == reward
        assert (bool(step.terminated[0]), bool(step.truncated[0])) == (terminated, truncated)
        if terminated or truncated:
            observation, _ = theirs.reset()
        assert np.array_equal(ours.observations[0], observation)


@pytest.mark.parametrize("ranks", [2, 4])
def test_partitioning_the_environments_differently_changes_nothing(ranks: int) -> None:
    together = record(make(indices=range(16)), 100)
    size = 16 // ranks
    parts = [record(make(indices=range(rank * size, (rank + 1) * size)), 100) for rank in range(ranks)]
    for k, whole in enumerate(together):
        assert np.array_equal(whole, np.concatenate([part[k] for part in parts], axis=1))


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0"])
def test_a_saved_environment_resumes_exactly_in_another_instance(name: str) -> None:
    first = make(name)
    record(first, 130)
    states = first.save()
    assert states is not None
    second = make(name, seed=7)
    second.restore(states)
    for ours, theirs in zip(record(first, 600), record(second, 600), strict=True):
        assert np.array_equal(ours, theirs)


def test_a_truncated_episode_shows_its_true_last_observation_and_is_not_terminated() -> None:
    environment = make("MountainCar-v0", range(1))  # pushing left never reaches the goal: truncated at 200 steps
    reference = gymnasium.make("MountainCar-v0")
    reference.reset(seed=simulator_seed(42, 0))
    for _ in range(199):
        assert not environment.step(np.array([0])).truncated[0]
        reference.step(0)
    step = environment.step(np.array([0]))
    last, *_ = reference.step(0)
    assert step.truncated[0]
    assert not step.terminated[0]
    assert np.array_equal(step.final_observations[0], last)
    assert not np.array_equal(environment.observations[0], last)


class Opaque(gymnasium.Env[Any, Any]):
    """An environment with an attribute that is not plain data."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.engine = object()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 0.0, False, False, {}


def test_an_environment_whose_state_cannot_be_serialised_returns_none() -> None:
    gymnasium.register("Opaque-v0", Opaque)
    assert make("Opaque-v0").save() is None


def test_another_position_gives_other_episodes() -> None:
    settings = EnvSettings(name="CartPole-v1")
    first, later = environments.make(settings, range(2)), environments.make(settings, range(2), position=7)
    assert not np.array_equal(first.observations, later.observations)


def test_an_unknown_name_is_an_error_that_names_the_choices() -> None:
    with pytest.raises(UserError, match=r"env.name=NoSuch-v0: .*use a Gymnasium id such as CartPole-v1.*coinrun"):
        make("NoSuch-v0")


@pytest.mark.parametrize("name", ["Pendulum-v1", "FrozenLake-v1"])
def test_other_spaces_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="this suite needs"):
        environments.describe(EnvSettings(name=name))
