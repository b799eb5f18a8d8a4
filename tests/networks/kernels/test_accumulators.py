"""Backward passes on more than eight threads: the same bits."""

from __future__ import annotations

import pytest
import torch

from rlcluster.networks.kernels.library import WEIGHT_SHAPES, Trunk


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
