"""The kernels' own clock, and the peaks that they are compared with."""

from __future__ import annotations

import time

import pytest
import torch

from rlcluster.networks.kernels.library import WEIGHT_SHAPES, Trunk, load


@pytest.mark.parametrize("network", WEIGHT_SHAPES)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_layers_are_timed_only_when_asked_and_nothing_else_changes(network: str, num_threads: int) -> None:
    trunk = Trunk(network, 64, 64)
    trunk.num_threads = num_threads
    weights = [torch.randn(s).mul_(0.1).contiguous(memory_format=torch.channels_last) for s in trunk.weight_shapes]
    biases = [torch.randn(shape[0]) for shape in trunk.weight_shapes]
    images = torch.randint(0, 256, (9, 64, 64, 3), dtype=torch.uint8)

    def both() -> tuple[torch.Tensor, list[torch.Tensor]]:
        saved = trunk.take_memory(len(images))
        features = trunk.forward(images, weights, biases, saved)
        gradients = trunk.backward((images, features, saved), torch.ones_like(features), weights, biases)
        trunk.give_back(saved)
        return features, [*gradients[0], *gradients[1]]

    expected = both()
    assert all(seconds == 0 for row in trunk.layer_seconds().values() for seconds in row)
    trunk.time_layers(True)
    start = time.perf_counter()
    timed = both()
    elapsed = time.perf_counter() - start
    rows = trunk.layer_seconds()
    assert all(len(row) == len(trunk.weight_shapes) and min(row) > 0 for row in rows.values())
    assert sum(map(sum, rows.values())) <= num_threads * elapsed
    assert torch.equal(timed[0], expected[0])
    assert all(torch.equal(one, other) for one, other in zip(timed[1], expected[1], strict=True))
    trunk.time_layers(False)
    both()
    assert all(seconds == 0 for row in trunk.layer_seconds().values() for seconds in row)


def test_the_peaks_are_rates_of_this_machine() -> None:
    library = load()
    for instruction_set in library.supported():
        assert 1e9 < library.peak_flops(1, 0.02, instruction_set) < 1e12
    assert library.peak_bandwidth(2, 2**18, 0.02) > 1e9
    assert library.peak_bandwidth(1, 2**24, 0.02) > 1e9
