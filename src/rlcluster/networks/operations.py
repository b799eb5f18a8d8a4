"""What each layer of a network computes and moves per sample: the work of a roofline."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rlcluster.environments.interface import EnvironmentSpec
from rlcluster.networks.policy import make_policy
from rlcluster.settings.schema import PolicySettings

FLOAT_BYTES = 4


class LayerWork(NamedTuple):
    """Of one sample. Operations are those of a direct convolution, two per multiply-add, whatever the kernels do; bytes
    are the activations and gradients that must be read and written, without weights, which a chunk shares.
    """

    name: str
    is_convolution: bool
    forward_flop: float
    backward_flop: float
    forward_bytes: float
    backward_bytes: float


def layer_works(settings: PolicySettings, spec: EnvironmentSpec) -> list[LayerWork]:
    """Of every convolution and linear layer, in their order."""
    policy = make_policy(settings, spec, 0, "torch")
    works: list[LayerWork] = []

    def measure(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        works.append(_work(layer, inputs[0], output, is_first=not works))

    layers = [layer for layer in policy.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(measure) for layer in layers]
    with torch.no_grad():
        policy(torch.zeros(1, *spec.observation_shape, dtype=torch.uint8 if spec.is_image else torch.float32))
    for hook in hooks:
        hook.remove()
    return works


def _work(layer: nn.Module, inputs: Tensor, output: Tensor, is_first: bool) -> LayerWork:
    """The first layer needs no gradient of its input."""
    assert isinstance(layer, nn.Conv2d | nn.Linear)
    flop = 2.0 * output.numel() * layer.weight[0].numel()
    read, written = FLOAT_BYTES * inputs.numel(), FLOAT_BYTES * output.numel()
    if isinstance(layer, nn.Conv2d):
        shape = f"{layer.in_channels} → {layer.out_channels} at {inputs.shape[2]}×{inputs.shape[3]}"
    else:
        shape = f"linear {layer.in_features} → {layer.out_features}"
    back = read + written + (0 if is_first else read)
    return LayerWork(shape, isinstance(layer, nn.Conv2d), flop, flop * (1 if is_first else 2), read + written, back)
