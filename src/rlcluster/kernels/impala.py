"""The impala network's convolutions as one function of torch's autograd, on the parameters that policy.py holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rlcluster.kernels.library import NUM_LAYERS, Trunk

CHANNELS = [3, 16, 16, 16, 16, 16, *([32] * 9)]  # inputs of each layer, in the order of the parameters


def features(trunk: Trunk, pictures: Tensor, layers: Sequence[nn.Conv2d]) -> Tensor:
    """[B, H, W, 3] bytes to [B, num_features], channels before pixels, after the last ReLU."""
    pictures = pictures.contiguous()
    weights, biases = _parameters(layers)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*weights, *biases)):
        return ImpalaFeatures.apply(trunk, pictures, *weights, *biases)  # type: ignore[no-any-return, no-untyped-call]
    return trunk.forward(pictures, weights, biases)


def why_not(trunk: Trunk, pictures: Tensor, layers: Sequence[nn.Conv2d]) -> str | None:
    """What of these inputs the kernels do not cover; None if they do."""
    if pictures.dtype != torch.uint8 or tuple(pictures.shape[1:]) != trunk.picture_shape:
        return f"pictures of type {pictures.dtype} and shape {list(pictures.shape[1:])}"
    weights, biases = _parameters(layers)
    if [weight.shape[1] for weight in weights] != CHANNELS:
        return f"channels {[weight.shape[1] for weight in weights]}"
    for tensor in (pictures, *weights, *biases):
        if tensor.device.type != "cpu":
            return f"a tensor on {tensor.device}"
    for tensor in (*weights, *biases):
        if tensor.dtype != torch.float32:
            return f"parameters of type {tensor.dtype}"
    if not all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights):
        return "weights that are not channels-last"
    return None


class ImpalaFeatures(torch.autograd.Function):
    """Saves only what the backward pass needs, in memory that the next pass uses again: one backward pass each."""

    @staticmethod
    def forward(ctx: Any, trunk: Trunk, pictures: Tensor, *parameters: Tensor) -> Tensor:
        saved = trunk.take_memory(len(pictures))
        result = trunk.forward(pictures, parameters[:NUM_LAYERS], parameters[NUM_LAYERS:], saved)
        ctx.save_for_backward(pictures, result, *parameters)
        ctx.trunk, ctx.saved = trunk, saved
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.saved is None:
            raise RuntimeError("the kernels allow one backward pass per forward pass; use hardware.kernels=torch")
        pictures, result, *parameters = ctx.saved_tensors
        inputs = pictures, result, ctx.saved
        weights, biases = parameters[:NUM_LAYERS], parameters[NUM_LAYERS:]
        gradients = ctx.trunk.backward(inputs, gradient.contiguous(), weights, biases)
        ctx.trunk.give_back(ctx.saved)
        ctx.saved = None
        return None, None, *gradients[0], *gradients[1]


def _parameters(layers: Sequence[nn.Conv2d]) -> tuple[list[Tensor], list[Tensor]]:
    biases = [layer.bias for layer in layers if layer.bias is not None]
    return [layer.weight for layer in layers], biases
