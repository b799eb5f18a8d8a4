"""What torch's layers achieve, on recordings made by hand, and what the page says without any figures."""

from __future__ import annotations

from typing import Any

import pytest
from test_findings import CONVOLUTION, LINEAR, findings, process

from rlcluster.networks.operations import LayerWork
from rlcluster.profiling.page import page_text
from rlcluster.profiling.roofline import LayerRate


def with_seconds_of_linear_layers(seconds: float, **changes: Any) -> dict[str, Any]:
    """300 forward passes, each with two phases: the trunk's linear layers and the heads'."""
    recording = process(0, {}, **changes)
    recording["seconds"][recording["paths"].index(["update", "forward", "linear"])] = seconds
    return recording


def test_linear_layers_have_rates_of_one_thread_from_the_time_of_their_phase() -> None:
    second = LayerWork("linear 2 → 1", False, 500.0, 1e3, 20.0, 40.0)
    found = findings([with_seconds_of_linear_layers(3.0, threads=2)], works=(CONVOLUTION, LINEAR, second))
    # 300 samples of 1500 operations and 120 bytes, in 3 s of 2 threads
    (rate,) = found.layers
    assert rate == LayerRate("linear layers", "forward", 6.0, pytest.approx(75e3), pytest.approx(6e3))


def test_convolutions_of_torch_have_rates_too() -> None:
    recording = process(0, {"torch convolutions": 6.0})
    recording["amounts"][-1] = 300.0
    (rate,) = findings([recording]).layers
    assert rate == LayerRate("convolutions by torch", "forward", 6.0, pytest.approx(1e10), pytest.approx(5e7))


def test_the_page_of_an_mlp_has_a_roofline() -> None:
    text = page_text(findings([with_seconds_of_linear_layers(3.0)], works=(LINEAR,)))
    # 300 samples of 1000 operations and 100 bytes in 3 s, compared with 1 GFLOP/s and 1 GB/s
    cells = ("linear layers", "forward", "100.0%", "0.0001", "0.01%", "1e-05", "0.001%")
    assert "".join(f"<td>{cell}</td>" for cell in cells) in text
    assert text.count('class="dot forward"') == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "No roofline: the network of this run records no times of its layers."),
        (
            {"peaks": [None]},
            "No roofline: our kernels, which measure the peaks, are not compiled here (make clean setup).",
        ),
    ],
)
def test_a_page_without_a_roofline_says_why(changes: dict[str, Any], reason: str) -> None:
    assert f"<h2>Roofline</h2><p>{reason}</p>" in page_text(findings([process(0, {})], works=(LINEAR,), **changes))
