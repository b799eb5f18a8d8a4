"""Networks of the user's own, by import path: `--network my_module:make_network`.

`make_network(observation_space, action_space)` gets Gymnasium's spaces and returns an `nn.Module`, which maps a batch
of observations (images as bytes [B, H, W, C], others as floats [B, ...]) to logits [B, A] and values [B] or [B, 1].
What it draws from torch's generator is seeded, so all processes begin with the same parameters. Trunks of ours inside
it use our kernels.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from rlcluster.environments.interface import EnvironmentSpec
from rlcluster.environments.randomness import Purpose, generator
from rlcluster.networks.policy import (
    ConvolutionalTrunk,
    ImpalaTrunk,
    Policy,
    PolicyOutput,
    choose_kernels,
)
from rlcluster.settings.schema import KernelsName
from rlcluster.system.errors import UserError, fault_of
from rlcluster.system.import_path import load_object

CHUNK_SIZE = 256  # samples per pass, unless the module has a `chunk_size` of its own
# They act differently each time, or keep statistics that are not parameters: ranks and resumed runs would differ.
UNSUPPORTED = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)


class OwnNetwork(Policy):
    """A module of the user's as a policy."""

    def __init__(self, path: str, module: nn.Module, num_actions: int) -> None:
        super().__init__()
        self.network, self.module, self.num_actions = path, module, num_actions

    @property
    def chunk_size(self) -> int:
        return int(getattr(self.module, "chunk_size", CHUNK_SIZE))

    @property
    def trunks(self) -> list[ConvolutionalTrunk]:
        return [layer for layer in self.module.modules() if isinstance(layer, ConvolutionalTrunk)]

    def forward(self, observations: Tensor) -> PolicyOutput:
        logits, values = self.module(observations)
        return PolicyOutput(logits, values.squeeze(-1) if values.dim() == 2 else values)


def make_own(path: str, spec: EnvironmentSpec, seed: int, kernels: KernelsName) -> OwnNetwork:
    """Raises a UserError if it is not a network that can be trained here."""
    make = load_object(path, "policy.network")
    with torch.random.fork_rng(devices=[]), fault_of(f"policy.network={path} cannot be made"):
        torch.manual_seed(int(generator(seed, Purpose.PARAMETERS, 0).integers(0, 2**63 - 1)))
        module = make(*spaces_of(spec))
    if not isinstance(module, nn.Module):
        raise UserError(f"policy.network={path} returned {module!r:.100}; it should return an nn.Module")
    _refuse_unsupported(path, module)
    policy = OwnNetwork(path, module, spec.num_actions)
    for trunk in policy.trunks:
        name = "impala" if isinstance(trunk, ImpalaTrunk) else "nature"
        trunk.kernels, trunk.must_use_kernels = choose_kernels(kernels, name, spec), kernels == "native"
        trunk.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    _refuse_other_shapes(path, policy, spec)
    return policy


def spaces_of(spec: EnvironmentSpec) -> tuple[gymnasium.spaces.Box, gymnasium.spaces.Discrete]:
    """As the environment has them, after wrappers and stacking; what are no images are floats."""
    low, high = spec.bounds()
    dtype: Any = spec.observation_dtype.type
    return gymnasium.spaces.Box(low, high, dtype=dtype), gymnasium.spaces.Discrete(spec.num_actions)  # type: ignore[arg-type]


def _refuse_unsupported(path: str, module: nn.Module) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, UNSUPPORTED):
            raise UserError(
                f"policy.network={path}: {name or 'it'} is a {type(layer).__name__}, which would act differently in "
                "each process and after a resumption; use LayerNorm or GroupNorm"
            )
    for name, parameter in module.named_parameters():
        if parameter.dtype != torch.float32 or not parameter.requires_grad:
            raise UserError(
                f"policy.network={path}: {name} is {parameter.dtype}, requires_grad={parameter.requires_grad}; all "
                "parameters should be float32 and trained; keep constants as buffers"
            )


@torch.inference_mode()
def _refuse_other_shapes(path: str, policy: OwnNetwork, spec: EnvironmentSpec) -> None:
    observations = torch.from_numpy(np.zeros((2, *spec.observation_shape), spec.observation_dtype))
    expected = f"logits [B, {spec.num_actions}] and values [B] for a batch of B observations"
    with fault_of(f"policy.network={path} fails for a batch of 2 observations"):
        outputs = policy.module(observations)
    try:
        logits, values = outputs
        shapes = list(logits.shape), list(values.shape)
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"policy.network={path} should return {expected} ({error})") from None
    if shapes[0] != [2, spec.num_actions] or shapes[1] not in ([2], [2, 1]):
        raise UserError(
            f"policy.network={path} should return {expected}; for B = 2 it returns {shapes[0]}, {shapes[1]}"
        )
