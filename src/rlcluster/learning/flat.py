"""The parameters of a module and their gradients as two flat buffers: one all-reduce, one norm, one step."""

from __future__ import annotations

import torch
from torch import nn


class FlatParameters:
    """The module's tensors become views of the buffers.

    The loss travels with the gradients, so that all ranks see the same one: `exchanged` holds both.
    """

    def __init__(self, module: nn.Module) -> None:
        tensors = list(module.parameters())
        size = count_parameters(module)
        self.parameters = torch.empty(size)
        self.exchanged = torch.zeros(size + 1)
        self.gradients, self.loss = self.exchanged[:size], self.exchanged[size:]
        start = 0
        for tensor in tensors:
            strides = tensor.stride()
            view = self.parameters.as_strided(tensor.shape, strides, start)
            view.copy_(tensor.detach())
            tensor.data = view
            tensor.grad = self.gradients.as_strided(tensor.shape, strides, start)
            start += tensor.numel()


def count_parameters(module: nn.Module) -> int:
    return sum(tensor.numel() for tensor in module.parameters())
