"""ActorCritic: observation -> action logits and value. Networks: impala, nature (images) and mlp (vectors).

Images stay NHWC bytes until the first convolution: a permuted view of them is a channels-last tensor.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlcluster.environments.interface import EnvironmentSpec
from rlcluster.environments.randomness import Purpose, generator
from rlcluster.networks.kernels import features
from rlcluster.networks.kernels.library import WEIGHT_SHAPES, KernelsMissingError, Trunk, num_accumulators
from rlcluster.settings.schema import HardwareSettings, KernelsName, PolicySettings
from rlcluster.settings.values import is_import_path
from rlcluster.system.console import warn
from rlcluster.system.errors import UserError
from rlcluster.system.phases import clock

_has_warned_of_fallback = False


class PolicyOutput(NamedTuple):
    logits: Tensor  # [B, A]
    values: Tensor  # [B]


class Policy(nn.Module):
    """Any network that acts and values: one of ours, or one of the user's own (`own.py`)."""

    network: str  # its name, or its import path
    num_actions: int

    @property
    def chunk_size(self) -> int:
        """Samples per forward and backward pass: enough to keep the cores busy, few enough for the caches. Measured."""
        raise NotImplementedError

    @property
    def trunks(self) -> list[ConvolutionalTrunk]:
        """The parts that may use our own convolutions."""
        raise NotImplementedError

    @property
    def kernels(self) -> str:
        """The instruction set of our own convolutions; "torch" without them, or if any pass fell back to torch."""
        used = [trunk.kernels for trunk in self.trunks if trunk.kernels is not None and not trunk.has_fallen_back]
        return used[0].instruction_set if used and len(used) == len(self.trunks) else "torch"

    def keep_threads_for_kernels(self, num_threads: int) -> None:
        """Fixes the thread count of our own convolutions, if there are any, independently of torch's."""
        for trunk in self.trunks:
            if trunk.kernels is not None:
                trunk.kernels.num_threads = num_threads

    def __call__(self, observations: Tensor) -> PolicyOutput:
        """[B, H, W, C] bytes, or [B, ...] floats."""
        output: PolicyOutput = super().__call__(observations)
        return output


class ActorCritic(Policy):
    """A feature trunk with a policy head and a value head."""

    def __init__(self, spec: EnvironmentSpec, network: str, hidden_sizes: tuple[int, ...] = (64, 64)) -> None:
        super().__init__()
        self.network, self.num_actions = network, spec.num_actions
        if network == "mlp":
            self.trunk: MlpTrunk | NatureTrunk | ImpalaTrunk = MlpTrunk(math.prod(spec.observation_shape), hidden_sizes)
            num_features = hidden_sizes[-1]
        elif network == "impala":
            self.trunk = ImpalaTrunk(spec.observation_shape)
            num_features = ImpalaTrunk.num_features
        else:
            self.trunk = NatureTrunk(spec.observation_shape)
            num_features = NatureTrunk.num_features
        self.policy_head = nn.Linear(num_features, spec.num_actions)
        self.value_head = nn.Linear(num_features, 1)

    @property
    def chunk_size(self) -> int:
        return self.trunk.chunk_size

    @property
    def trunks(self) -> list[ConvolutionalTrunk]:
        return [self.trunk] if isinstance(self.trunk, ConvolutionalTrunk) else []

    def forward(self, observations: Tensor) -> PolicyOutput:
        policy_features, value_features = self.trunk(observations)
        with clock("linear", len(observations)):
            return PolicyOutput(self.policy_head(policy_features), self.value_head(value_features).squeeze(-1))


class MlpTrunk(nn.Module):
    """Two towers of tanh layers, one for the policy and one for the value."""

    chunk_size = 4096

    def __init__(self, num_inputs: int, hidden_sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.policy_tower = self._tower(num_inputs, hidden_sizes)
        self.value_tower = self._tower(num_inputs, hidden_sizes)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        inputs = observations.flatten(1).float()
        if observations.dtype == torch.uint8:
            inputs.mul_(1 / 255)
        with clock("linear", len(inputs)):
            return self.policy_tower(inputs), self.value_tower(inputs)

    @staticmethod
    def _tower(num_inputs: int, hidden_sizes: tuple[int, ...]) -> nn.Sequential:
        sizes = (num_inputs, *hidden_sizes)
        layers: list[nn.Module] = []
        for k in range(len(hidden_sizes)):
            layers += [nn.Linear(sizes[k], sizes[k + 1]), nn.Tanh()]
        return nn.Sequential(*layers)


class ConvolutionalTrunk(nn.Module):
    """Convolutions, with our own kernels if they support the input, and a linear layer."""

    num_features: int
    torch_chunk_size: int
    kernels_chunk_size: int  # for 64x64 images
    linear: nn.Linear

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Trunk | None = None
        self.must_use_kernels = False
        self.has_fallen_back = False  # an unsupported input went through torch

    @property
    def chunk_size(self) -> int:
        return self.torch_chunk_size if self.kernels is None else self.chunk_size_with(self.kernels)

    @classmethod
    def chunk_size_with(cls, kernels: Trunk) -> int:
        height, width, _ = kernels.image_shape
        return max(1, cls.kernels_chunk_size * 64 * 64 // (height * width))

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        features = self._convolve(observations)
        with clock("linear", len(features)):
            hidden = functional.relu_(self.linear(features))
        return hidden, hidden

    def _convolve(self, observations: Tensor) -> Tensor:
        """[B, channels * height * width] after the last ReLU."""
        if self.kernels is not None:
            layers = [layer for layer in self.modules() if isinstance(layer, nn.Conv2d)]
            problem = features.why_not(self.kernels, observations, layers)
            if problem is None:
                return features.features(self.kernels, observations, layers)
            if self.must_use_kernels:
                raise UserError(f"hardware.kernels=native does not support {problem}; use auto")
            self.has_fallen_back = True
            _warn_of_fallback(f"the kernels do not support {problem}")
        with clock("torch convolutions", len(observations)):
            return self._convolve_with_torch(_to_channels_last(observations)).flatten(1)

    def _convolve_with_torch(self, hidden: Tensor) -> Tensor:
        raise NotImplementedError


class NatureTrunk(ConvolutionalTrunk):
    """The network of Mnih et al. 2015 (Nature)."""

    num_features = 512
    torch_chunk_size = 512
    kernels_chunk_size = 512

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            [nn.Conv2d(shape[2], 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)]
        )
        height, width = (_nature_output(side) for side in shape[:2])
        self.linear = nn.Linear(64 * height * width, self.num_features)

    def _convolve_with_torch(self, hidden: Tensor) -> Tensor:
        for convolution in self.convolutions:
            hidden = functional.relu_(convolution(hidden))
        return hidden


class ImpalaTrunk(ConvolutionalTrunk):
    """The deep residual network of IMPALA (arXiv 1802.01561, figure 3), as Procgen uses it."""

    channels = (16, 32, 32)
    num_features = 256
    torch_chunk_size = 64
    kernels_chunk_size = 256

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        sizes = (shape[2], *self.channels)
        self.stages = nn.ModuleList(ImpalaStage(sizes[k], sizes[k + 1]) for k in range(len(self.channels)))
        height, width = (math.ceil(side / 2 ** len(self.channels)) for side in shape[:2])
        self.linear = nn.Linear(self.channels[-1] * height * width, self.num_features)

    def _convolve_with_torch(self, hidden: Tensor) -> Tensor:
        for stage in self.stages:
            hidden = stage(hidden)
        return functional.relu(hidden)


TRUNKS: dict[str, type[ConvolutionalTrunk]] = {"impala": ImpalaTrunk, "nature": NatureTrunk}


class ImpalaStage(nn.Module):
    """Convolution, 3x3/2 max-pool, two residual blocks."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(num_inputs, num_outputs, 3, padding=1)
        self.blocks = nn.ModuleList(ResidualBlock(num_outputs) for _ in range(2))

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = functional.max_pool2d(self.convolution(hidden), 3, stride=2, padding=1)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(num_channels, num_channels, 3, padding=1)
        self.second = nn.Conv2d(num_channels, num_channels, 3, padding=1)

    def forward(self, hidden: Tensor) -> Tensor:
        inner = functional.relu_(self.first(functional.relu(hidden)))
        outer: Tensor = self.second(inner)
        return outer.add_(hidden)


def make_policy(settings: PolicySettings, spec: EnvironmentSpec, seed: int, kernels: KernelsName = "auto") -> Policy:
    """The network in the settings, with orthogonal parameters drawn from the seed; or the user's own."""
    network = choose_network(settings, spec)
    if is_import_path(network):
        from rlcluster.networks.own import make_own

        return make_own(network, spec, seed, kernels)
    policy = ActorCritic(spec, network, settings.hidden_sizes)
    if isinstance(policy.trunk, ConvolutionalTrunk):
        policy.trunk.kernels = choose_kernels(kernels, policy.network, spec)
        policy.trunk.must_use_kernels = kernels == "native"
    _initialise(policy, seed)
    return policy.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def choose_network(settings: PolicySettings, spec: EnvironmentSpec) -> str:
    """The network's name; raises a UserError if it does not fit the observations."""
    if settings.network is None:
        return "impala" if spec.is_image else "mlp"
    if is_import_path(settings.network):
        return settings.network
    if settings.network != "mlp" and not spec.is_image:
        raise UserError(
            f"policy.network={settings.network} needs images, but the observations have shape "
            f"{list(spec.observation_shape)} and type {spec.observation_dtype}; use mlp"
        )
    if settings.network == "nature":
        _nature_output(min(spec.observation_shape[:2]))
    return settings.network


def choose_kernels(kernels: KernelsName, network: str, spec: EnvironmentSpec) -> Trunk | None:
    """Our own convolutions, or None for torch's; raises a UserError if they are required but unavailable."""
    if kernels == "torch" or (network not in WEIGHT_SHAPES and kernels == "auto"):
        return None
    try:
        if network not in WEIGHT_SHAPES or spec.observation_shape[2] != 3:
            names = " and ".join(WEIGHT_SHAPES)
            given = f"{network} on observations of shape {list(spec.observation_shape)}"
            raise KernelsMissingError(f"supports the networks {names} on 3-channel images, not {given}")
        return Trunk(network, spec.observation_shape[0], spec.observation_shape[1])
    except KernelsMissingError as error:
        if kernels == "native":
            raise UserError(f"hardware.kernels=native: {error}; or use auto") from None
        _warn_of_fallback(str(error))
        return None


def kernels_of(settings: PolicySettings, spec: EnvironmentSpec, seed: int, kernels: KernelsName) -> str:
    """The instruction set of the convolutions that such a policy would have, or "torch". One of ours is not made for
    it: whether it fits into memory is not known yet.
    """
    network = choose_network(settings, spec)
    if is_import_path(network):
        return make_policy(settings, spec, seed, kernels).kernels
    chosen = choose_kernels(kernels, network, spec)
    return "torch" if chosen is None else chosen.instruction_set


def threads_that_pay(settings: PolicySettings, hardware: HardwareSettings, spec: EnvironmentSpec) -> int | None:
    """What the backward pass of a chunk can use with our convolutions; None without them: nothing limits torch's."""
    network = choose_network(settings, spec)
    kernels = None if is_import_path(network) else choose_kernels(hardware.kernels, network, spec)
    if kernels is None:
        return None
    return num_accumulators(hardware.chunk_size or TRUNKS[network].chunk_size_with(kernels))


def log_probs_of(logits: Tensor, actions: Tensor) -> Tensor:
    """[...] log-probabilities of the actions [...] under the logits [..., A]."""
    return torch.log_softmax(logits, -1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def sample_actions(logits: Tensor, noise: Tensor) -> Tensor:
    """[B] actions by inversion: the first whose cumulative probability exceeds the noise [B], uniform in [0, 1)."""
    cumulative = torch.softmax(logits.double(), -1).cumsum(-1)
    below = cumulative <= noise.unsqueeze(-1) * cumulative[:, -1:]
    return below.sum(-1).clamp_(max=logits.shape[-1] - 1)


def _warn_of_fallback(problem: str) -> None:
    """Warns once per process: every further pass would repeat it."""
    global _has_warned_of_fallback  # noqa: PLW0603 - a process warns once, however many policies it has
    if not _has_warned_of_fallback:
        _has_warned_of_fallback = True
        warn(f"hardware.kernels=auto: {problem}; PyTorch runs these convolutions")


def _to_channels_last(observations: Tensor) -> Tensor:
    """[B, H, W, C] bytes to [B, C, H, W] floats in [0, 1], with the memory layout unchanged."""
    return observations.permute(0, 3, 1, 2).float().mul_(1 / 255)


def _nature_output(side: int) -> int:
    for kernel, stride in ((8, 4), (4, 2), (3, 1)):
        side = (side - kernel) // stride + 1
    if side < 1:
        raise UserError("policy.network=nature needs images of at least 36x36; use impala or mlp")
    return side


@torch.no_grad()
def _initialise(policy: ActorCritic, seed: int) -> None:
    """Orthogonal weights, zero biases. Gains: 0.01 policy head, 1 value head, sqrt(2) before ReLU or tanh.

    The convolutions of the impala trunk have gain 1: the variance of train-procgen's Glorot weights, which keeps
    the sums of its residual blocks from growing.
    """
    draws = generator(seed, Purpose.PARAMETERS, 0)
    torch_draws = torch.Generator().manual_seed(int(draws.integers(0, 2**63 - 1)))
    for name, module in policy.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            gain = {"policy_head": 0.01, "value_head": 1.0}.get(name, math.sqrt(2))
            if isinstance(module, nn.Conv2d) and policy.network == "impala":
                gain = 1.0
            nn.init.orthogonal_(module.weight, gain, generator=torch_draws)
            if module.bias is not None:
                module.bias.zero_()
