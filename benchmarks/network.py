"""How fast the networks are, and how much of the machine's arithmetic they use.

Per network: samples/s of acting (forward) and of learning (forward+backward) in chunks as the learner cuts them, as
GFLOP/s and as a share of the sgemm peak, which is measured in between with the same threads. Every figure is the
median of REPEATS interleaved repeats: peak, forward, forward+backward, peak, ...

A multiply-add counts as 2 FLOP, a convolution as its direct sum. Only Conv2d and Linear count. The backward pass
counts twice the forward pass, less the gradient by the observations, which nobody needs.

Bar: impala forward+backward on one thread at 42 % of the sgemm peak or more.

    .venv/bin/python benchmarks/network.py --num-threads 1 --seconds 1
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from rlcluster import machine
from rlcluster.config import NETWORK_NAMES, PolicySettings

if TYPE_CHECKING:  # torch and numpy are imported for real after the threads are limited
    from torch import Tensor, nn

    from rlcluster.environments.interface import EnvironmentSpec

REPEATS = 5
SGEMM_SIZES = (1024, 1536, 2048)
BARS = {("impala", "forward+backward"): 0.42}  # share of the sgemm peak, on one thread


class Flop(NamedTuple):
    """Floating-point operations per sample."""

    forward: float
    training: float


class Rates(NamedTuple):
    peak: float  # FLOP/s of sgemm
    forward: float  # samples/s
    training: float  # samples/s


def main() -> None:
    options = _options()
    machine.limit_threads(options.num_threads)
    import torch

    cores = f"{options.num_threads} threads of {machine.cores_allowed()} cores"
    print(f"{machine.cpu_model()}, {cores}, torch {torch.__version__}, commit {machine.git_commit()}")
    print(f"{'network':8}{'pass':18}{'samples/s':>12}{'GFLOP/s':>10}{'sgemm':>8}{'share':>8}{'bar':>8}")
    for network in NETWORK_NAMES:
        _measure(network, options)


def count_flop(policy: nn.Module, observations: Tensor) -> Flop:
    """By a hook on every Conv2d and Linear: each output value takes as many multiply-adds as it has weights."""
    from torch import nn

    counts: list[Flop] = []

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        forward = 2 * output[0].numel() * layer.weight[0].numel()
        counts.append(Flop(forward, forward * (3 if inputs[0].requires_grad else 2)))

    layers = [layer for layer in policy.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    policy(observations)
    for hook in hooks:
        hook.remove()
    return Flop(*(sum(column) for column in zip(*counts, strict=True)))


def sgemm_peak(seconds: float) -> float:
    """FLOP/s of the fastest single product of square float32 matrices."""
    import torch

    best = 0.0
    for size in SGEMM_SIZES:
        left, right, product = torch.rand(3, size, size)
        start = time.perf_counter()
        while time.perf_counter() - start < seconds / len(SGEMM_SIZES):
            before = time.perf_counter()
            torch.mm(left, right, out=product)
            best = max(best, 2 * size**3 / (time.perf_counter() - before))
    return best


def _measure(network: str, options: argparse.Namespace) -> None:
    """Measures one network and prints its two lines."""
    from rlcluster.learner import CHUNK_SIZES
    from rlcluster.policy import make_policy
    from rlcluster.reports.check import forward_pass, random_observations, samples_per_second, training_pass

    spec = _spec(network)
    policy = make_policy(PolicySettings.model_validate({"network": network}), spec, seed=0)
    observations = random_observations(spec, CHUNK_SIZES[network])
    flop = count_flop(policy, observations)
    passes = forward_pass(policy, observations), training_pass(policy, observations)
    repeats = [
        Rates(
            sgemm_peak(options.seconds),
            *(samples_per_second(step, len(observations), options.seconds) for step in passes),
        )
        for _ in range(REPEATS)
    ]
    rates = Rates(*(median(column) for column in zip(*repeats, strict=True)))
    _print_line(network, "forward", rates.forward, flop.forward, rates.peak)
    bar = BARS.get((network, "forward+backward")) if options.num_threads == 1 else None
    _print_line(network, "forward+backward", rates.training, flop.training, rates.peak, bar)


def _spec(network: str) -> EnvironmentSpec:
    """Procgen's pictures, or CartPole's 4 numbers and 2 actions."""
    import numpy as np

    from rlcluster.environments.interface import EnvironmentSpec
    from rlcluster.environments.procgen import SPEC

    return EnvironmentSpec((4,), np.dtype(np.float32), 2) if network == "mlp" else SPEC


def _print_line(
    network: str, name: str, samples_per_second: float, flop: float, peak: float, bar: float | None = None
) -> None:
    rate = samples_per_second * flop
    bar_text = "-" if bar is None else f"{bar:.0%}"
    figures = f"{samples_per_second:12,.0f}{rate / 1e9:10.1f}{peak / 1e9:8.0f}{rate / peak:8.1%}{bar_text:>8}"
    print(f"{network:8}{name:18}{figures}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-threads", type=int, default=1, help="threads of torch (1)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of each measurement (1)")
    options = parser.parse_args()
    if options.num_threads < 1 or options.seconds <= 0:
        parser.error(f"--num-threads {options.num_threads} --seconds {options.seconds:g}: both should be positive")
    return options


if __name__ == "__main__":
    main()
