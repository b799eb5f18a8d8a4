"""Randomness belongs to the environment, not to the process.

Every random number is a pure function of (seed, purpose, environment, position), from a counter-based generator
(Philox, Salmon et al. 2011). So partitioning the environments over processes differently changes nothing, and a
checkpoint needs no generator state: the position is the update number.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """Independent streams of one environment."""

    SIMULATOR = 0
    ACTIONS = 1
    SHUFFLE = 2
    EVALUATION = 3
    PARAMETERS = 4


def generator(seed: int, purpose: Purpose, environment: int, position: int = 0) -> np.random.Generator:
    """The stream of one environment for one purpose, at one position (2**64 draws per position)."""
    return np.random.Generator(np.random.Philox(key=[seed, int(purpose)], counter=[0, 0, environment, position]))


def simulator_seed(seed: int, environment: int, position: int = 0) -> int:
    """A seed for one environment's simulator, in the 31 bits that every simulator accepts."""
    return int(generator(seed, Purpose.SIMULATOR, environment, position).integers(0, 2**31 - 1))
