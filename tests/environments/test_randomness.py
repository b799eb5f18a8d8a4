"""Streams: reproducible, and independent of each other."""

from __future__ import annotations

import itertools

import numpy as np

from rlcluster.environments.randomness import Purpose, generator, simulator_seed


def test_the_same_key_gives_the_same_numbers() -> None:
    assert np.array_equal(generator(1, Purpose.ACTIONS, 2, 3).random(5), generator(1, Purpose.ACTIONS, 2, 3).random(5))


def test_seed_purpose_environment_and_position_each_give_different_numbers() -> None:
    keys = itertools.product((0, 1), (Purpose.ACTIONS, Purpose.SHUFFLE), (0, 1), (0, 1))
    firsts = {float(generator(seed, purpose, i, k).random()) for seed, purpose, i, k in keys}
    assert len(firsts) == 16


def test_simulator_seeds_fit_31_bits_and_do_not_repeat() -> None:
    seeds = [simulator_seed(42, i) for i in range(1000)]
    assert len(set(seeds)) == 1000
    assert all(0 <= seed < 2**31 for seed in seeds)
