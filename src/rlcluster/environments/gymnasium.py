"""Gymnasium environments with Discrete actions and Box observations, several per process.

The state can be saved if every attribute of the environment and its wrappers is plain data (numbers, strings, arrays, a
random generator): these attributes then are the state. CartPole, Acrobot and MountainCar qualify.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rlcluster.environments.interface import EnvironmentSpec, Step, VectorEnvironment
from rlcluster.settings.games import PROCGEN_GAMES
from rlcluster.settings.schema import EnvSettings
from rlcluster.system.errors import UserError

NumpyEnv = gymnasium.Env[Any, Any]


class GymnasiumEnvironments(VectorEnvironment):
    """N environments, stepped one after another; a finished one is reset in the same step."""

    def __init__(self, settings: EnvSettings, seeds: dict[int, int], with_frames: bool) -> None:
        self.indices = list(seeds)
        render_mode = "rgb_array" if with_frames else None
        self._envs = [_make_one(settings.name, render_mode) for _ in self.indices]
        self.spec = _spec_of(self._envs[0], settings.name)
        num = len(self._envs)
        self.observations = np.zeros((num, *self.spec.observation_shape), self.spec.observation_dtype)
        self._rewards = np.zeros(num, np.float32)
        self._terminated = np.zeros(num, np.bool_)
        self._truncated = np.zeros(num, np.bool_)
        for k, (env, seed) in enumerate(zip(self._envs, seeds.values(), strict=True)):
            self.observations[k], _ = env.reset(seed=seed)

    def step(self, actions: NDArray[np.int64]) -> Step:
        final_observations: dict[int, NDArray[np.generic]] = {}
        for k, (env, action) in enumerate(zip(self._envs, actions.tolist(), strict=True)):
            observation, reward, terminated, truncated, _ = env.step(action)
            truncated = truncated and not terminated
            if terminated or truncated:
                if truncated:
                    final_observations[k] = np.array(observation, self.spec.observation_dtype)
                observation, _ = env.reset()
            self.observations[k] = observation
            self._rewards[k] = reward
            self._terminated[k] = terminated
            self._truncated[k] = truncated
        return Step(self._rewards, self._terminated, self._truncated, final_observations)

    def save(self) -> list[bytes] | None:
        try:
            return [
                json.dumps([_to_json(self.observations[k]), [_attributes(layer) for layer in _layers(env)]]).encode()
                for k, env in enumerate(self._envs)
            ]
        except NotPlainError:
            return None

    def restore(self, states: list[bytes]) -> None:
        for k, (env, state) in enumerate(zip(self._envs, states, strict=True)):
            observation, layers = json.loads(state)
            self.observations[k] = _from_json(observation)
            for layer, attributes in zip(_layers(env), layers, strict=True):
                for name, value in attributes.items():
                    setattr(layer, name, _from_json(value))

    def frame(self) -> NDArray[np.uint8]:
        try:
            return np.asarray(self._envs[0].render(), np.uint8)
        except gymnasium.error.DependencyNotInstalled as error:
            raise UserError(f"{self._envs[0]} cannot be rendered: {error}") from None

    def close(self) -> None:
        for env in self._envs:
            env.close()


def describe(settings: EnvSettings) -> EnvironmentSpec:
    env = _make_one(settings.name, None)
    try:
        return _spec_of(env, settings.name)
    finally:
        env.close()


def _make_one(name: str, render_mode: str | None) -> NumpyEnv:
    try:
        return gymnasium.make(name, render_mode=render_mode, disable_env_checker=True)
    except (gymnasium.error.Error, ImportError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"env.name={name}: {reason}; use a Gymnasium id such as CartPole-v1, "
            f"or a Procgen game: {', '.join(PROCGEN_GAMES)}"
        ) from None


def _spec_of(env: NumpyEnv, name: str) -> EnvironmentSpec:
    actions, observations = env.action_space, env.observation_space
    if not isinstance(actions, gymnasium.spaces.Discrete) or actions.start != 0:
        raise UserError(f"env.name={name} has actions {actions}; this suite needs Discrete(n) from 0")
    if not isinstance(observations, gymnasium.spaces.Box):
        raise UserError(f"env.name={name} has observations {observations}; this suite needs a Box")
    is_image = observations.dtype == np.uint8 and len(observations.shape) == 3
    return EnvironmentSpec(observations.shape, np.dtype(np.uint8 if is_image else np.float32), int(actions.n))


class NotPlainError(Exception):
    """An attribute is not plain data: the state cannot be serialised."""


def _layers(env: NumpyEnv) -> Iterator[Any]:
    """The wrappers, outermost first, then the environment itself."""
    layer: Any = env
    while isinstance(layer, gymnasium.Wrapper):
        yield layer
        layer = layer.env
    yield layer


def _attributes(layer: Any) -> dict[str, Any]:
    """The attributes of a layer that may change during an episode."""
    fixed = ("env", "spec", "action_space", "observation_space", "metadata", "render_mode", "_cached_spec")
    constant = (gymnasium.spaces.Space, gymnasium.envs.registration.EnvSpec)
    return {
        name: _to_json(value)
        for name, value in vars(layer).items()
        if name not in fixed and not isinstance(value, constant)
    }


def _to_json(value: Any) -> Any:
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        return {"array": value.tolist(), "dtype": str(value.dtype), "scalar": isinstance(value, np.generic)}
    if isinstance(value, tuple | list):
        return {"items": [_to_json(item) for item in value], "tuple": isinstance(value, tuple)}
    if isinstance(value, np.random.Generator):
        return {"generator": _to_json(value.bit_generator.state)}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _to_json(item) for key, item in value.items()}}
    raise NotPlainError(type(value).__name__)


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "array" in value:
        array = np.array(value["array"], value["dtype"])
        return array[()] if value["scalar"] else array
    if "items" in value:
        items = [_from_json(item) for item in value["items"]]
        return tuple(items) if value["tuple"] else items
    if "generator" in value:
        state = _from_json(value["generator"])
        bit_generator = getattr(np.random, state["bit_generator"])()
        bit_generator.state = state
        return np.random.Generator(bit_generator)
    return {key: _from_json(item) for key, item in value["dict"].items()}
