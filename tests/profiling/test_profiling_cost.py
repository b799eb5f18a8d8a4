"""The estimator of `benchmarks/profiling_cost.py`: the median of paired ratios, and a verdict by its interval alone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "profiling_cost.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("profiling_cost", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["profiling_cost"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.99, 1.009, "met"), (1.011, 1.02, "missed"), (1.0, 1.02, "not decided"), (1.0, 1.01, "not decided")],
)
def test_the_bar_is_decided_only_by_a_whole_interval(benchmark, low: float, high: float, expected: str) -> None:
    assert benchmark.verdict(low, high) == expected


def test_a_pair_carries_its_part_of_start_and_stop(benchmark) -> None:
    assert benchmark.Pair(profiled=1.0, plain=1.0, fixed=0.2).ratio == pytest.approx(1.01)  # over 20 updates


def test_the_interval_holds_the_median_and_one_disturbed_pair_does_not_move_it(benchmark) -> None:
    ratios = [1.0 + 0.001 * k for k in range(-10, 11)]
    low, high = benchmark.interval(ratios)
    assert -0.01 <= low - 1.0 < 0.0 < high - 1.0 <= 0.01
    assert benchmark.interval([*ratios[:-1], 9.0])[1] < 1.01
