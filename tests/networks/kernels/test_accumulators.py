"""Backward passes on more than eight threads: the same bits."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from rlcluster.environments.interface import EnvironmentSpec
from rlcluster.networks.kernels.library import WEIGHT_SHAPES, Trunk, num_accumulators
from rlcluster.networks.policy import threads_that_pay
from rlcluster.settings.loading import load_settings

IMAGES = EnvironmentSpec((64, 64, 3), np.dtype(np.uint8), 15)
NATIVE = Path(__file__).parents[3] / "src/rlcluster/networks/kernels/native"


@pytest.mark.parametrize("network", WEIGHT_SHAPES)
def test_a_large_chunk_gives_the_same_bits_on_sixteen_threads(network: str) -> None:
    count = 4 * 8 * 16 + 3  # groups of 4 images, eight of them for each of 16 accumulators
    trunk = Trunk(network, 64, 64)
    weights = [torch.randn(s).mul_(0.1).contiguous(memory_format=torch.channels_last) for s in trunk.weight_shapes]
    biases = [torch.randn(shape[0]) for shape in trunk.weight_shapes]
    images = torch.randint(0, 256, (count, 64, 64, 3), dtype=torch.uint8)
    saved = trunk.take_memory(count)
    features = trunk.forward(images, weights, biases, saved)
    gradients = []
    for num_threads in (1, 16):
        trunk.num_threads = num_threads
        parts = trunk.backward((images, features, saved), torch.ones_like(features), weights, biases)
        gradients.append([*parts[0], *parts[1]])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


@pytest.mark.parametrize(
    ("num_images", "expected"), [(1, 1), (20, 5), (64, 8), (256, 8), (512, 16), (2048, 64), (9000, 64)]
)
def test_a_backward_pass_uses_a_thread_for_every_thirty_two_images(num_images: int, expected: int) -> None:
    """... at least 8 and at most 64, and no more than there are groups of 4 images."""
    assert num_accumulators(num_images) == expected


def test_the_library_has_the_same_constants() -> None:
    text = "".join((NATIVE / name).read_text() for name in ("library.cpp", "impala.hpp", "nature.hpp"))
    names = ("kItemsPerAccumulator", "kMinAccumulators", "kMaxAccumulators", "kImpalaGroup", "kNatureGroup")
    assert [int(re.search(rf"{name} = (\d+)", text)[1]) for name in names] == [8, 8, 64, 4, 4]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"policy.network": "impala"}, 8),  # chunks of 256
        ({}, 8),
        ({"policy.network": "nature"}, 16),
        ({"policy.network": "impala", "hardware.chunk_size": "512"}, 16),
        ({"policy.network": "impala", "hardware.kernels": "torch"}, None),
        ({"policy.network": "mlp"}, None),
    ],
)
def test_the_threads_that_pay_follow_the_chunks_of_the_network(flags: dict[str, str], expected: int | None) -> None:
    settings = load_settings("ppo", flags=flags)
    assert threads_that_pay(settings.policy, settings.hardware, IMAGES) == expected
