"""Samples per second of each network, forward as in acting and forward+backward as in learning, and their share of what
the cores can do: multiply-adds in registers, by a loop of our own. (PyTorch's sgemm does not reach it everywhere.)
Convolutional networks are measured with PyTorch at its best (channels-last, chunks that fit the caches) and with our
kernels, alternating; then each layer of the impala network alone.

    .venv/bin/python benchmarks/network.py                        # one thread, the best instructions there are
    .venv/bin/python benchmarks/network.py --num-threads 2
    .venv/bin/python benchmarks/network.py --instruction-set avx2  # PyTorch is limited to AVX2 as well

GFLOP/s count direct convolution, two operations per multiply-add, whatever the algorithm does. Values are medians.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from rlcluster.settings.schema import NETWORK_NAMES, KernelsName, PolicySettings
from rlcluster.system import cores, machine

if TYPE_CHECKING:  # torch and numpy must be imported after the threads are limited
    from torch import Tensor, nn

    from rlcluster.environments.interface import EnvironmentSpec
    from rlcluster.networks.policy import ActorCritic

REPEATS = 7
SGEMM_SIZES = (1024, 1536, 2048)
LAYER_IMAGES = 64
SHARE_BAR = 0.42  # of the sgemm peak: impala forward+backward with PyTorch's convolutions, one thread
RATIO_BARS = {"portable": 1.0, "avx2": 1.3, "avx512": 2.0}  # our kernels over PyTorch with the same instructions

# Limits PyTorch to an instruction set; set before it is imported.
TORCH_LIMITS = {
    "portable": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "avx512": {},
}


class Flop(NamedTuple):
    """Floating-point operations per sample."""

    forward: float
    training: float


def main() -> None:
    options = _options()
    os.environ.update(TORCH_LIMITS[options.instruction_set])
    cores.limit_threads(options.num_threads)
    import torch

    used = f"{options.num_threads} threads of {cores.allowed()} cores, {options.instruction_set}"
    print(f"{machine.cpu_model()}, {used}, torch {torch.__version__}, commit {machine.git_commit()}")
    from rlcluster.networks.kernels.library import load

    peak = load().peak_flops(options.num_threads, options.seconds, options.instruction_set)
    sgemm = max(sgemm_peak(options.seconds) for _ in range(3))
    print(f"peak {peak / 1e9:.0f} GFLOP/s; PyTorch's sgemm {sgemm / 1e9:.0f}, {sgemm / peak:.0%} of it")
    options.share_bar = SHARE_BAR * sgemm / peak
    lines = [line for network in NETWORK_NAMES for line in measure_network(network, options, peak)]
    print(f"{'network':8}{'pass':18}{'kernels':10}{'samples/s':>12}{'GFLOP/s':>10}{'share':>8}{'ratio':>8}{'bar':>8}")
    print("\n".join(lines), flush=True)
    if options.num_threads == 1:
        measure_layers(options, peak)


def count_flop(policy: nn.Module, observations: Tensor) -> Flop:
    """Counts by a hook on every Conv2d and Linear: each output value takes one multiply-add per weight."""
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
    """FLOP/s of the fastest product of two square float32 matrices."""
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


def measure_network(network: str, options: argparse.Namespace, peak: float) -> list[str]:
    """The table rows of one network; two kinds of kernels are measured alternately."""
    from rlcluster.experiments.check import forward_pass, random_observations, samples_per_second, training_pass

    spec = _spec(network)
    kinds: tuple[KernelsName, ...] = ("torch",) if network == "mlp" else ("torch", "native")
    policies = [_policy(network, spec, kind, options.instruction_set) for kind in kinds]
    observations = [random_observations(spec, policy.chunk_size) for policy in policies]
    flop = count_flop(policies[0], observations[0])
    lines = []
    for name, make_pass, work in (
        ("forward", forward_pass, flop.forward),
        ("forward+backward", training_pass, flop.training),
    ):
        rates: list[list[float]] = [[] for _ in kinds]
        for _ in range(REPEATS):
            for policy, batch, results in zip(policies, observations, rates, strict=True):
                results.append(samples_per_second(make_pass(policy, batch), len(batch), options.seconds))
        for k, policy in enumerate(policies):
            speed, ratio = median(rates[k]), median(rates[k]) / median(rates[0])
            bar, is_training = "-", name == "forward+backward"
            if k and network == "impala":
                bar = f"{RATIO_BARS[options.instruction_set]:.1f}"
            elif not k and network == "impala" and is_training and options.num_threads == 1:
                bar = f"{options.share_bar:.0%}"
            figures = f"{speed:12,.0f}{speed * work / 1e9:10.1f}{speed * work / peak:8.1%}{ratio:8.2f}{bar:>8}"
            lines.append(f"{network:8}{name:18}{policy.kernels:10}{figures}")
    return lines


def measure_layers(options: argparse.Namespace, peak: float) -> None:
    """Each kind of convolution of the impala network alone, on 64 images, with fused operations: ours and torch's."""
    print(f"\n{'layer':24}{'pass':18}{'torch GFLOP/s':>14}{'ours GFLOP/s':>14}{'share':>8}{'ratio':>8}")
    layers = (
        (0, "3->16 at 64x64"),
        (2, "16->16 at 32x32"),
        (5, "16->32 at 32x32"),
        (7, "32->32 at 16x16"),
        (12, "32->32 at 8x8"),
    )
    for index, name in layers:
        for backward in (False, True):
            ours, torchs, work = _layer_passes(index, backward, options.instruction_set)
            rates: tuple[list[float], list[float]] = [], []
            for _ in range(REPEATS):
                for step, results in zip((torchs, ours), rates, strict=True):
                    results.append(_calls_per_second(step, options.seconds / 2) * work)
            slow, fast = median(rates[0]), median(rates[1])
            kind = "backward" if backward else "forward"
            figures = f"{slow / 1e9:14.0f}{fast / 1e9:14.0f}{fast / peak:8.0%}{fast / slow:8.2f}"
            print(f"{name:24}{kind:18}{figures}", flush=True)


def _layer_passes(
    index: int, backward: bool, instruction_set: str
) -> tuple[Callable[[], object], Callable[[], object], float]:
    """Our pass of layer `index`, torch's, and the number of operations.

    Forward: from bytes (layer 0), convolution and bias (first of a stage), or these with residual sum and ReLU (second
    of a block). Backward: all gradients, ReLU included; for layer 0 only those of the weights and biases.
    """
    import torch
    from torch.nn import functional

    policy = _policy("impala", _spec("impala"), "torch", instruction_set)
    convolutions = [layer for layer in policy.trunk.modules() if isinstance(layer, torch.nn.Conv2d)]
    parameters = [layer.weight.detach() for layer in convolutions], [layer.bias.detach() for layer in convolutions]
    weight, bias = parameters[0][index], parameters[1][index]
    outputs, inputs = weight.shape[:2]
    side = 64 // (1, 2, 4, 8)[(index + 4) // 5]
    images = LayerImages.draw(side, inputs, outputs)
    x, residual, gradient = (image.permute(0, 3, 1, 2) for image in images[1:])
    rectified, mask = torch.relu(x), [index != 0, True, True]

    @torch.inference_mode()
    def torch_forward() -> Tensor:
        if index == 0:
            scaled = images.raw.permute(0, 3, 1, 2).float().mul_(1 / 255)
            return functional.conv2d(scaled, weight, bias, padding=1)
        if index % 5 == 0:
            return functional.conv2d(x, weight, bias, padding=1)
        return torch.relu(functional.conv2d(rectified, weight, bias, padding=1).add_(residual))

    @torch.inference_mode()
    def torch_backward() -> object:
        steps = [1, 1], [1, 1], [1, 1]
        results = torch.ops.aten.convolution_backward(gradient, x, weight, [outputs], *steps, False, [0, 0], 1, mask)
        return torch.ops.aten.threshold_backward(results[0], x, 0) if index % 5 else results

    forward_work = 2 * 9 * inputs * outputs * side * side * LAYER_IMAGES
    work = forward_work * (sum(mask[:2]) if backward else 1)
    ours = _our_layer_pass(index, backward, images, parameters, instruction_set)
    return ours, torch_backward if backward else torch_forward, work


class LayerImages(NamedTuple):
    """The inputs of one layer's measurement, [B, H, W, C]."""

    raw: Tensor  # bytes, the input of layer 0
    x: Tensor
    residual: Tensor
    gradient: Tensor

    @classmethod
    def draw(cls, side: int, inputs: int, outputs: int) -> LayerImages:
        import torch

        sizes = LAYER_IMAGES, side, side
        raw = torch.randint(0, 256, (*sizes, 3), dtype=torch.uint8)
        return cls(raw, *(torch.randn(*sizes, count) for count in (inputs, outputs, outputs)))


def _our_layer_pass(
    index: int,
    backward: bool,
    images: LayerImages,
    parameters: tuple[list[Tensor], list[Tensor]],
    instruction_set: str,
) -> Callable[[], None]:
    import torch
    from torch.nn import functional

    from rlcluster.networks.kernels.library import Trunk

    def pad(image: Tensor) -> Tensor:
        return functional.pad(image, (0, 0, 1, 1, 1, 1)).contiguous()

    tensors = {
        "images": images.raw,
        "input": pad(torch.relu(images.x)),
        "residual": images.residual,
        "sum": torch.empty_like(images.residual),
        "output": torch.empty_like(images.x if backward else images.residual),
        "gradient": images.gradient if index == 0 else pad(images.gradient),
        "weight_gradient": torch.empty_like(parameters[0][index]),
        "bias_gradient": torch.empty_like(parameters[1][index]),
    }
    trunk = Trunk("impala", 64, 64, instruction_set)
    kind, sizes = "backward" if backward else "forward", tuple(images.raw.shape[:3])
    return lambda: trunk.layer(kind, index, sizes, tensors, parameters)


def _calls_per_second(step: Callable[[], object], seconds: float) -> float:
    from rlcluster.experiments.check import samples_per_second

    return samples_per_second(step, 1, seconds)


def _policy(network: str, spec: EnvironmentSpec, kind: KernelsName, instruction_set: str) -> ActorCritic:
    from rlcluster.networks.kernels.library import Trunk
    from rlcluster.networks.policy import ConvolutionalTrunk, make_policy

    policy = make_policy(PolicySettings.model_validate({"network": network}), spec, 0, kind)
    if kind == "native":
        assert isinstance(policy.trunk, ConvolutionalTrunk)
        policy.trunk.kernels = Trunk(network, 64, 64, instruction_set)
    return policy


def _spec(network: str) -> EnvironmentSpec:
    """Procgen's images, or CartPole's 4 numbers and 2 actions."""
    import numpy as np

    from rlcluster.environments.interface import EnvironmentSpec
    from rlcluster.environments.procgen import SPEC

    return EnvironmentSpec((4,), np.dtype(np.float32), 2) if network == "mlp" else SPEC


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-threads", type=int, default=1, help="threads of torch and of the kernels (1)")
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of each measurement (1)")
    parser.add_argument("--instruction-set", choices=TORCH_LIMITS, help="of the kernels (the processor's best)")
    options = parser.parse_args()
    supported = [one for one in TORCH_LIMITS if one.replace("avx512", "avx512f") in ("portable", *cpu_flags())]
    options.instruction_set = options.instruction_set or supported[-1]
    if options.instruction_set not in supported:
        parser.error(f"--instruction-set {options.instruction_set}: not supported by this processor")
    if options.num_threads < 1 or options.seconds <= 0:
        parser.error(f"--num-threads {options.num_threads} --seconds {options.seconds:g}: both should be positive")
    return options


def cpu_flags() -> list[str]:
    """The processor's features, as Linux names them; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    return next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), [])


if __name__ == "__main__":
    main()
