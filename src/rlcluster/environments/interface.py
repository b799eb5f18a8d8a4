"""The interface of all environments: a batch of them, stepped together."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlcluster.system.errors import EXIT_RUN_FAILED, UserError

Bound = float | tuple[float, ...]  # of all numbers of an observation, or of each, flattened


class EnvironmentSpec(NamedTuple):
    """The observation and action space of an environment. Plain values: specs are compared and sent to processes."""

    observation_shape: tuple[int, ...]  # images are [H, W, C]
    observation_dtype: np.dtype[np.generic]
    num_actions: int
    low: Bound = -math.inf
    high: Bound = math.inf

    @property
    def is_image(self) -> bool:
        return len(self.observation_shape) == 3 and self.observation_dtype == np.uint8

    def bounds(self) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """The lowest and the highest observation, as arrays of its shape and type."""
        return self._spread(self.low), self._spread(self.high)

    def _spread(self, bound: Bound) -> NDArray[np.generic]:
        values = np.array(bound, self.observation_dtype)
        return values.reshape(self.observation_shape) if values.ndim else np.full(self.observation_shape, values)


def bound_of(values: NDArray[np.generic]) -> Bound:
    """One number if all are equal, as for images."""
    flat = values.reshape(-1).tolist()
    return flat[0] if len({*flat}) == 1 else tuple(flat)


class Step(NamedTuple):
    """The result of one step. The environments own the arrays and overwrite them at the next step.

    Where an episode ended, `VectorEnvironment.observations` already holds the first observation of the next one.
    """

    rewards: NDArray[np.float32]  # [N], raw
    terminated: NDArray[np.bool_]  # [N] the episode reached a terminal state
    truncated: NDArray[np.bool_]  # [N] the episode was cut off in a non-terminal state
    final_observations: dict[int, NDArray[np.generic]]  # the true last observation where truncated


class DamagedStateError(UserError):
    """The saved state of a simulator is not what `save` returned."""

    def __init__(self, environment: int, reason: str) -> None:
        message = f"the saved state of environment {environment} is damaged ({reason}); use an earlier checkpoint"
        super().__init__(message, EXIT_RUN_FAILED)


class VectorEnvironment(ABC):
    """N environments. Environment i is numbered over the whole run: its randomness depends on (seed, i) alone."""

    spec: EnvironmentSpec
    indices: Sequence[int]  # these environments' numbers in the run
    observations: NDArray[np.generic]  # [N, ...] current, in one preallocated buffer

    @property
    def num_envs(self) -> int:
        return len(self.indices)

    @abstractmethod
    def step(self, actions: NDArray[np.int64]) -> Step:
        """Steps every environment once; a finished one starts its next episode immediately."""

    @abstractmethod
    def save(self) -> list[bytes] | None:
        """Each environment's full state, or None if it cannot be serialised."""

    @abstractmethod
    def restore(self, states: list[bytes]) -> None:
        """Resumes exactly where `save` was called, in this or another process."""

    def levels_completed(self) -> NDArray[np.bool_] | None:
        """[N] whether the episode that just ended completed its level; None where there are no levels."""
        return None

    def level_seeds(self) -> NDArray[np.int32] | None:
        """[N] the level that each environment is playing; None where there are no levels."""
        return None

    @abstractmethod
    def frame(self) -> NDArray[np.uint8]:
        """[H, W, 3] the first environment, rendered for people."""

    @abstractmethod
    def close(self) -> None: ...
