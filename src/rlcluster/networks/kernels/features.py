"""A network's convolutions as one autograd function, on the parameters of policy.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rlcluster.networks.kernels.library import Trunk


def features(trunk: Trunk, images: Tensor, layers: Sequence[nn.Conv2d]) -> Tensor:
    """[B, H, W, 3] bytes to [B, num_features], channels before pixels, after the last ReLU.

    In training the images must not change before the backward pass, which reads them again.
    """
    images = images.contiguous()
    weights, biases = _parameters(layers)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*weights, *biases)):
        return Features.apply(trunk, images, *weights, *biases)  # type: ignore[no-any-return, no-untyped-call]
    return trunk.forward(images, weights, biases)


def why_not(trunk: Trunk, images: Tensor, layers: Sequence[nn.Conv2d]) -> str | None:
    """What the kernels do not cover of these inputs; None if they cover all."""
    if images.dtype != torch.uint8 or tuple(images.shape[1:]) != trunk.image_shape:
        return f"images of type {images.dtype} and shape {list(images.shape[1:])}"
    weights, biases = _parameters(layers)
    shapes = [tuple(weight.shape) for weight in weights]
    if shapes != trunk.weight_shapes or [tuple(bias.shape) for bias in biases] != [shape[:1] for shape in shapes]:
        return f"weights of the shapes {shapes}, or layers without a bias"
    for tensor in (images, *weights, *biases):
        if tensor.device.type != "cpu":
            return f"a tensor on {tensor.device}"
    for tensor in (*weights, *biases):
        if tensor.dtype != torch.float32:
            return f"parameters of type {tensor.dtype}"
    if not all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights):
        return "weights that are not channels-last"
    return None


class Features(torch.autograd.Function):
    """Saves only what the backward pass needs, in memory that later passes reuse: so one backward pass per forward."""

    @staticmethod
    def forward(ctx: Any, trunk: Trunk, images: Tensor, *parameters: Tensor) -> Tensor:
        count = len(parameters) // 2
        saved = trunk.take_memory(len(images))
        result = trunk.forward(images, parameters[:count], parameters[count:], saved)
        ctx.save_for_backward(images, result, *parameters)
        ctx.trunk, ctx.saved = trunk, saved
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.saved is None:
            raise RuntimeError("the kernels allow one backward pass per forward pass; use hardware.kernels=torch")
        images, result, *parameters = ctx.saved_tensors
        count = len(parameters) // 2
        inputs = images, result, ctx.saved
        gradients = ctx.trunk.backward(inputs, gradient.contiguous(), parameters[:count], parameters[count:])
        ctx.trunk.give_back(ctx.saved)
        ctx.saved = None
        return None, None, *gradients[0], *gradients[1]


def _parameters(layers: Sequence[nn.Conv2d]) -> tuple[list[Tensor], list[Tensor]]:
    biases = [layer.bias for layer in layers if layer.bias is not None]
    return [layer.weight for layer in layers], biases
