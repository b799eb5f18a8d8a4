"""The one interface behind which all environments stand: a batch of them, stepped together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class EnvironmentSpec(NamedTuple):
    """What a policy must know of an environment."""

    observation_shape: tuple[int, ...]  # images are [H, W, C]
    observation_dtype: np.dtype[np.generic]
    num_actions: int

    @property
    def is_image(self) -> bool:
        return len(self.observation_shape) == 3 and self.observation_dtype == np.uint8


class Step(NamedTuple):
    """What one step gave. The arrays belong to the environments and are overwritten by the next step.

    Where an episode ended, `VectorEnvironment.observations` already shows the first frame of the next one.
    """

    rewards: NDArray[np.float32]  # [N], raw
    terminated: NDArray[np.bool_]  # [N] the episode ended by the rules of the game
    truncated: NDArray[np.bool_]  # [N] the episode was cut off, its last state still had a future
    final_observations: dict[int, NDArray[np.generic]]  # the true last observation where truncated


class VectorEnvironment(ABC):
    """N environments. Environment i is numbered over the whole run: its randomness is (seed, i)."""

    spec: EnvironmentSpec
    indices: Sequence[int]  # the numbers of these environments in the run
    observations: NDArray[np.generic]  # [N, ...] the current ones, one preallocated buffer

    @property
    def num_envs(self) -> int:
        return len(self.indices)

    @abstractmethod
    def step(self, actions: NDArray[np.int64]) -> Step:
        """Steps every environment once; a finished one starts its next episode at once."""

    @abstractmethod
    def save(self) -> list[bytes] | None:
        """Each environment's whole state, or None if these environments cannot tell theirs."""

    @abstractmethod
    def restore(self, states: list[bytes]) -> None:
        """Continues exactly where `save` was called, in this or another process."""

    def levels_completed(self) -> NDArray[np.bool_] | None:
        """[N] whether the episode that just ended completed its level; None where there are no levels."""
        return None

    def level_seeds(self) -> NDArray[np.int32] | None:
        """[N] the level that each environment is playing; None where there are no levels."""
        return None

    @abstractmethod
    def frame(self) -> NDArray[np.uint8]:
        """[H, W, 3] the first environment as a person would like to see it."""

    @abstractmethod
    def close(self) -> None: ...
