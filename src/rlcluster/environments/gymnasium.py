"""Gymnasium environments with Discrete actions and Box observations, several per process.

The state can be saved if every attribute of the environment and its wrappers is plain data (numbers, strings, arrays, a
random generator): these attributes then are the state. CartPole, Acrobot and MountainCar qualify.
"""

from __future__ import annotations

import difflib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rlcluster.environments.construction import with_progress
from rlcluster.environments.interface import (
    DamagedStateError,
    EnvironmentSpec,
    Step,
    VectorEnvironment,
    bound_of,
)
from rlcluster.settings.games import PROCGEN_GAMES
from rlcluster.settings.schema import EnvSettings
from rlcluster.settings.values import is_import_path
from rlcluster.system.errors import EXIT_RUN_FAILED, UserError, fault_of
from rlcluster.system.heartbeat import CALLS
from rlcluster.system.import_path import load_module, load_object

NumpyEnv = gymnasium.Env[Any, Any]


class GymnasiumEnvironments(VectorEnvironment):
    """N environments, stepped one after another; a finished one is reset in the same step."""

    def __init__(self, settings: EnvSettings, seeds: dict[int, int], with_frames: bool) -> None:
        self.indices = list(seeds)
        render_mode = "rgb_array" if with_frames else None
        self._name, self._num_steps = settings.name, 0
        self._envs = [_make_one(settings, render_mode) for _ in with_progress(self.indices)]
        self.spec = _spec_of(self._envs[0], settings.name)
        num = len(self._envs)
        self.observations = np.zeros((num, *self.spec.observation_shape), self.spec.observation_dtype)
        self._given_rewards, self._rewards = np.zeros(num), np.zeros(num, np.float32)
        self._numbers = None if self.spec.is_image else self.observations.reshape(-1)  # a view; bytes are finite
        self._no_rewards, self._no_numbers = np.zeros(num, np.float32), np.zeros(self.observations.size, np.float32)
        self._terminated = np.zeros(num, np.bool_)
        self._truncated = np.zeros(num, np.bool_)
        for k, (env, seed) in enumerate(zip(self._envs, with_progress(seeds.values(), "reset"), strict=True)):
            self.observations[k], _ = env.reset(seed=seed)
        self._refuse_not_finite({})

    def step(self, actions: NDArray[np.int64]) -> Step:
        self._num_steps += 1
        with np.errstate(over="ignore"):  # what is too large for float32 is refused below
            final_observations = self._step_each(actions)
            self._rewards[:] = self._given_rewards
        self._refuse_not_finite(final_observations)
        return Step(self._rewards, self._terminated, self._truncated, final_observations)

    def _step_each(self, actions: NDArray[np.int64]) -> dict[int, NDArray[np.generic]]:
        """Returns the true last observations of truncated episodes."""
        final_observations: dict[int, NDArray[np.generic]] = {}
        for k, (env, action) in enumerate(zip(self._envs, actions.tolist(), strict=True)):
            CALLS.advance()
            observation, reward, terminated, truncated, _ = env.step(action)
            truncated = truncated and not terminated
            if terminated or truncated:
                if truncated:
                    final_observations[k] = np.array(observation, self.spec.observation_dtype)
                observation, _ = env.reset()
            self.observations[k] = observation
            self._given_rewards[k] = reward
            self._terminated[k] = terminated
            self._truncated[k] = truncated
        return final_observations

    def _refuse_not_finite(self, final_observations: Mapping[int, NDArray[np.generic]]) -> None:
        """NaN and infinity are the environment's fault, and named here, before they reach the policy. Only products of
        finite numbers with 0 are 0, so two dot products tell; the check costs 1 % of CartPole's step.
        """
        is_nan = self._rewards.dot(self._no_rewards) or (
            self._numbers is not None and self._numbers.dot(self._no_numbers)
        )
        if not is_nan and not final_observations:
            return
        for k, index in enumerate(self.indices):
            observations = (self.observations[k], final_observations.get(k, 0.0))
            if not np.isfinite(self._rewards[k]):
                reward = self._given_rewards[k]
                size = ", too large for float32," if np.isfinite(reward) else ""
                raise self._at_fault(index, f"the reward {reward}{size}")
            if not all(np.isfinite(one).all() for one in observations):
                raise self._at_fault(index, "an observation that is NaN or infinite")

    def _at_fault(self, index: int, what: str) -> UserError:
        when = f"in step {self._num_steps} since the start" if self._num_steps else "when it was reset"
        return UserError(f"env.name={self._name}: environment {index} returned {what} {when}; fix it", EXIT_RUN_FAILED)

    def save(self) -> list[bytes] | None:
        try:
            return [_saved(env, self.observations[k]) for k, env in enumerate(self._envs)]
        except NotPlainError:
            return None

    def restore(self, states: list[bytes]) -> None:
        for k, (env, state) in enumerate(zip(self._envs, states, strict=True)):
            CALLS.advance()
            self.observations[k] = _restore_one(env, state)

    def frame(self) -> NDArray[np.uint8]:
        try:
            frame: Any = self._envs[0].render()
        except gymnasium.error.DependencyNotInstalled as error:
            raise UserError(f"env.name={self._name} cannot be rendered: {error}") from None
        except NotImplementedError:
            frame = None
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] != 3:
            raise UserError(
                f"env.name={self._name} cannot be rendered: its render() gives no frames [H, W, 3] with "
                'render_mode="rgb_array"; evaluate it without --video and --render'
            )
        return frame.astype(np.uint8, copy=False)

    def close(self) -> None:
        for env in self._envs:
            CALLS.advance()
            env.close()


def describe(settings: EnvSettings) -> EnvironmentSpec:
    env = _make_one(settings, None)
    try:
        return _spec_of(env, settings.name)
    finally:
        env.close()


def check_states(settings: EnvSettings, states: Sequence[bytes]) -> None:
    """Restores one environment from each of them in turn."""
    if not states:
        return
    env = _make_one(settings, None)
    shape = _spec_of(env, settings.name).observation_shape
    try:
        for k, state in enumerate(states):
            CALLS.advance()
            try:
                observation = _restore_one(env, state)
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                raise DamagedStateError(k, f"{type(error).__name__}: {error}") from None
            if np.shape(observation) != shape:
                raise DamagedStateError(k, f"an observation of shape {np.shape(observation)}, not {shape}")
    finally:
        env.close()


def _make_one(settings: EnvSettings, render_mode: str | None) -> NumpyEnv:
    """Not every constructor takes a `render_mode`: it is passed only where something is to be rendered."""
    name, kwargs = settings.name, settings.kwargs
    rendering: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    if is_import_path(name):
        load_module(name.partition(":")[0], f"env.name={name}")  # also of the current folder; it registers the id
    given = f" with env.kwargs={kwargs}" if kwargs else ""
    faulty = "env.kwargs, or the environment" if kwargs else "the environment"
    remedy = f"fix {faulty}" if render_mode is None else "fix it, or leave out --video and --render"
    with fault_of(f"env.name={name}{given} cannot be made", remedy), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*possible render_modes")  # `frame` sees whether it renders
        try:
            env: NumpyEnv = gymnasium.make(name, disable_env_checker=True, **rendering, **kwargs)
        except (gymnasium.error.Error, ImportError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise UserError(f"env.name={name}: {reason}; {_remedy(name)}") from None
    for path, arguments in settings.wrappers:
        env = _wrapped(env, path, arguments)
    return env


def _wrapped(env: NumpyEnv, path: str, arguments: dict[str, Any]) -> NumpyEnv:
    wrapper = load_object(path, "env.wrappers")
    with fault_of(f"env.wrappers={path} with the arguments {arguments}"):
        wrapped: NumpyEnv = wrapper(env, **arguments)
    if not isinstance(wrapped, gymnasium.Env):
        raise UserError(f"env.wrappers={path} made a {type(wrapped).__name__}; it should make a gymnasium.Env")
    return wrapped


def _remedy(name: str) -> str:
    """The name that was perhaps meant, or the kinds of names there are."""
    close = difflib.get_close_matches(name, [*PROCGEN_GAMES, *gymnasium.registry], n=1)
    if close:
        return f"did you mean {close[0]}?"
    kinds = "use a Gymnasium id such as CartPole-v1, your own as my_module:Corridor-v0 (the module registers it)"
    return f"{kinds}, or a Procgen game: {', '.join(PROCGEN_GAMES)}"


def _spec_of(env: NumpyEnv, name: str) -> EnvironmentSpec:
    actions, observations = env.action_space, env.observation_space
    if not isinstance(actions, gymnasium.spaces.Discrete) or actions.start != 0:
        raise UserError(f"env.name={name} has actions {actions}; this suite needs Discrete(n) from 0")
    if not isinstance(observations, gymnasium.spaces.Box) or not observations.shape:
        raise UserError(f"env.name={name} has observations {observations}; this suite needs a Box of one or more axes")
    is_image = observations.dtype == np.uint8 and len(observations.shape) == 3
    dtype = np.dtype(np.uint8 if is_image else np.float32)
    with np.errstate(over="ignore"):  # a bound too large for float32 is none
        low, high = (bound_of(bound.astype(dtype)) for bound in (observations.low, observations.high))
    return EnvironmentSpec(observations.shape, dtype, int(actions.n), low, high)


class NotPlainError(Exception):
    """An attribute is not plain data: the state cannot be serialised."""


def _layers(env: NumpyEnv) -> Iterator[Any]:
    """The wrappers, outermost first, then the environment itself."""
    layer: Any = env
    while isinstance(layer, gymnasium.Wrapper):
        yield layer
        layer = layer.env
    yield layer


def _saved(env: NumpyEnv, observation: NDArray[np.generic]) -> bytes:
    """The attributes of an environment and its wrappers, and its observation."""
    CALLS.advance()
    return json.dumps([_to_json(observation), [_attributes(layer) for layer in _layers(env)]]).encode()


def _restore_one(env: NumpyEnv, state: bytes) -> Any:
    """Sets the attributes of an environment and its wrappers to a saved state; returns the observation."""
    observation, layers = json.loads(state)
    for layer, attributes in zip(_layers(env), layers, strict=True):
        for name, value in attributes.items():
            setattr(layer, name, _from_json(value))
    return _from_json(observation)


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
