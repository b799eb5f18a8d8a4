"""Gymnasium environments behind our interface."""

from __future__ import annotations

import re
from pathlib import Path
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


class Thermometer(gymnasium.Env[np.float32, int]):
    """Its observation is one number, without an axis."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (), np.float32)
    action_space = gymnasium.spaces.Discrete(2)


@pytest.mark.parametrize("name", ["Pendulum-v1", "FrozenLake-v1", "Thermometer-v0"])
def test_other_spaces_are_refused(name: str) -> None:
    gymnasium.register("Thermometer-v0", Thermometer)
    with pytest.raises(UserError, match="this suite needs"):
        environments.describe(EnvSettings(name=name))


class NeverRendered(Opaque):
    """An environment whose constructor takes no render_mode."""

    def __init__(self) -> None:
        super().__init__()


def test_an_environment_without_render_mode_can_be_played_but_not_shown() -> None:
    gymnasium.register("NeverRendered-v0", NeverRendered)
    assert make("NeverRendered-v0").step(np.zeros(4, np.int64)).rewards.tolist() == [0.0] * 4
    with pytest.raises(UserError, match=r"env.name=NeverRendered-v0 .*render_mode.*leave out --video and --render"):
        environments.make(EnvSettings(name="NeverRendered-v0"), range(1), with_frames=True)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("\n1 / 0", r"ZeroDivisionError: division by zero \(.*broken\.py, line 2\)"),
        ("raise SystemExit(0)", r"SystemExit: 0 \(.*broken\.py, line 1\)"),
        ("import no_such_package", r"ModuleNotFoundError: No module named 'no_such_package' \(.*broken\.py, line 1\)"),
        ("import json\n\njson.loads('x')", r"JSONDecodeError: .* \(.*broken\.py, line 3\)"),
        ("raise ValueError('two\\nlines')", r"ValueError: two lines \(.*broken\.py, line 1\)"),
        ("raise ValueError", r"ValueError \(.*broken\.py, line 1\)"),
        ("def", r"SyntaxError: .*"),
    ],
)
def test_a_module_that_raises_when_it_is_imported_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    (tmp_path / "broken.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        UserError, match=rf"^env.name=broken:Any-v0: the module broken cannot be imported: {reason}; fix it$"
    ):
        environments.describe(EnvSettings(name="broken:Any-v0"))


class Faulty(gymnasium.Env[Any, Any]):
    """Returns `reward` and `observation` from its third step on, or exits there."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, reward: float, observation: float, exits: bool, is_cut: bool, render_mode: None = None) -> None:
        self.fault, self.exits, self.is_cut, self.steps = (reward, observation), exits, is_cut, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        self.steps += 1
        is_faulty = self.steps >= 3
        if is_faulty and self.exits:
            raise SystemExit(0)
        reward, observation = self.fault if is_faulty else (0.0, 0.0)
        return np.array([0.0, observation]), reward, False, is_faulty and self.is_cut, {}


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"reward": float("nan")}, "environment 5 returned the reward nan in step 3"),
        ({"reward": float("-inf")}, "environment 5 returned the reward -inf in step 3"),
        ({"reward": 1e300}, "environment 5 returned the reward 1e+300, too large for float32, in step 3"),
        ({"observation": float("nan")}, "environment 5 returned an observation that is NaN or infinite in step 3"),
        ({"observation": float("inf"), "is_cut": True}, "environment 5 returned an observation that is NaN"),
        ({"observation": 1e300}, "environment 5 returned an observation that is NaN or infinite in step 3"),
        ({"exits": True}, "the environment called sys.exit(0)"),
    ],
    ids=["NaN", "infinite", "too large", "observation", "last observation", "large observation", "exit"],
)
@pytest.mark.filterwarnings("error:overflow encountered in cast")
def test_an_environment_at_fault_is_named_with_its_step(fault: dict[str, Any], message: str) -> None:
    gymnasium.register("Faulty-v0", Faulty, kwargs={"reward": 0.0, "observation": 0.0, "exits": False, "is_cut": False})
    try:
        gymnasium.registry["Faulty-v0"].kwargs.update(fault)
        vector = make("Faulty-v0", range(5, 7))
        for _ in range(2):
            vector.step(np.zeros(2, np.int64))
        with pytest.raises(UserError, match=re.escape(f"env.name=Faulty-v0: {message}")) as caught:
            vector.step(np.zeros(2, np.int64))
        assert caught.value.exit_code == 1
    finally:
        gymnasium.registry.pop("Faulty-v0")


def test_the_largest_finite_rewards_are_accepted() -> None:
    gymnasium.register("Faulty-v0", Faulty, kwargs={"reward": 3e38, "observation": 1, "exits": False, "is_cut": False})
    try:
        vector = make("Faulty-v0", range(3))
        rewards = [vector.step(np.zeros(3, np.int64)).rewards.tolist() for _ in range(3)]
        assert rewards[-1] == [float(np.float32(3e38))] * 3
    finally:
        gymnasium.registry.pop("Faulty-v0")
