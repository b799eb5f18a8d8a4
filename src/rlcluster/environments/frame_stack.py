"""The last k observations of each environment as one, for any kind of environment (`env.frame_stack`).

They are concatenated along the last axis, the oldest first: images [H, W, C] become [H, W, k * C], vectors [D] become
[k * D]. An episode begins with k copies of its first observation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlcluster.environments.interface import EnvironmentSpec, Step, VectorEnvironment, bound_of


class StackedEnvironments(VectorEnvironment):
    def __init__(self, inner: VectorEnvironment, size: int) -> None:
        self._inner, self._width = inner, inner.spec.observation_shape[-1]
        self.indices, self.spec = inner.indices, stacked_spec(inner.spec, size)
        self.observations = np.concatenate([inner.observations] * size, -1)  # [N, ..., k * width]
        self._size = size

    def step(self, actions: NDArray[np.int64]) -> Step:
        step = self._inner.step(actions)
        older = self.observations[..., self._width :].copy()
        self.observations[..., : -self._width] = older
        self.observations[..., -self._width :] = self._inner.observations
        for k in np.flatnonzero(step.terminated | step.truncated):
            self.observations[k] = np.concatenate([self._inner.observations[k]] * self._size, -1)
        finals = {k: np.concatenate([older[k], last], -1) for k, last in step.final_observations.items()}
        return step._replace(final_observations=finals)

    def save(self) -> list[bytes] | None:
        """The inner state, then the stack."""
        states = self._inner.save()
        if states is None:
            return None
        return [state + stack.tobytes() for state, stack in zip(states, self.observations, strict=True)]

    def restore(self, states: list[bytes]) -> None:
        size = stacked_bytes(self.spec)
        self._inner.restore(inner_states(states, size))
        for k, state in enumerate(states):
            stack = np.frombuffer(state[-size:], self.spec.observation_dtype)
            self.observations[k] = stack.reshape(self.spec.observation_shape)

    def levels_completed(self) -> NDArray[np.bool_] | None:
        return self._inner.levels_completed()

    def level_seeds(self) -> NDArray[np.int32] | None:
        return self._inner.level_seeds()

    def frame(self) -> NDArray[np.uint8]:
        return self._inner.frame()

    def close(self) -> None:
        self._inner.close()


def inner_states(states: Sequence[bytes], size: int) -> list[bytes]:
    """Without the stacks, of `size` bytes each."""
    return [state[:-size] for state in states]


def stacked_bytes(spec: EnvironmentSpec) -> int:
    """Of one stack."""
    return math.prod(spec.observation_shape) * spec.observation_dtype.itemsize


def stacked_spec(spec: EnvironmentSpec, size: int) -> EnvironmentSpec:
    *others, width = spec.observation_shape
    low, high = (bound_of(np.concatenate([bound] * size, -1)) for bound in spec.bounds())
    return spec._replace(observation_shape=(*others, size * width), low=low, high=high)
