"""The user's own networks: by import path, checked before training, seeded; our kernels where the trunk is ours."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from rlcluster import environments
from rlcluster.environments.interface import EnvironmentSpec
from rlcluster.networks.kernels.build import LIBRARY
from rlcluster.networks.own import OwnNetwork, spaces_of
from rlcluster.networks.policy import make_policy
from rlcluster.settings.schema import EnvSettings, PolicySettings
from rlcluster.system.errors import UserError

VECTOR = EnvironmentSpec((4,), np.dtype(np.float32), 3)
IMAGE = EnvironmentSpec((64, 64, 3), np.dtype(np.uint8), 15, low=0, high=255)
MODULE = """
import torch
from torch import nn
import rlcluster

class Small(nn.Module):
    chunk_size = 32

    def __init__(self, num_inputs, num_actions, layer=None):
        super().__init__()
        self.hidden, self.layer = nn.Linear(num_inputs, 8), layer or nn.Identity()
        self.policy, self.value = nn.Linear(8, num_actions), nn.Linear(8, 1)

    def forward(self, observations):
        hidden = self.layer(torch.relu(self.hidden(observations)))
        return self.policy(hidden), self.value(hidden)

class Trunk(nn.Module):
    def __init__(self, observation_space, action_space):
        super().__init__()
        self.trunk = rlcluster.ImpalaTrunk(observation_space.shape)
        self.heads = nn.Linear(self.trunk.num_features, action_space.n + 1)

    def forward(self, observations):
        features, _ = self.trunk(observations)
        outputs = self.heads(features)
        return outputs[:, :-1], outputs[:, -1]

def make(observations, actions):
    return Small(observations.shape[0], int(actions.n))

def with_dropout(observations, actions):
    return Small(observations.shape[0], int(actions.n), nn.Dropout(0.1))

def with_batch_norm(observations, actions):
    return Small(observations.shape[0], int(actions.n), nn.BatchNorm1d(8))

def of_other_actions(observations, actions):
    return Small(observations.shape[0], 2)

def in_double(observations, actions):
    return make(observations, actions).double()

def scaled(observations, actions):
    high = torch.from_numpy(observations.high)
    network = make(observations, actions)
    network.register_buffer("scale", torch.where(torch.isfinite(high), high, 1.0))
    return network

def not_a_module(observations, actions):
    return 3

def of_one_output(observations, actions):
    return nn.Linear(4, 3)

def of_other_observations(observations, actions):
    return Small(7, int(actions.n))

def raising(observations, actions):
    raise ValueError("two\\nlines")

def of_one_argument(observations):
    return make(observations, observations)
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_network.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("own_network", None)


def own(name: str) -> PolicySettings:
    return PolicySettings(network=f"own_network:{name}")


def test_an_own_network_is_a_policy_with_parameters_of_the_seed() -> None:
    policy = make_policy(own("make"), VECTOR, seed=1)
    output = policy(torch.ones(5, 4))
    assert (list(output.logits.shape), list(output.values.shape)) == ([5, 3], [5])
    assert (policy.chunk_size, policy.kernels, policy.num_actions) == (32, "torch", 3)
    torch.rand(3)  # what others draw in between changes nothing
    same, other = make_policy(own("make"), VECTOR, seed=1), make_policy(own("make"), VECTOR, seed=2)
    assert torch.equal(same(torch.ones(5, 4)).logits, output.logits)
    assert not torch.equal(other(torch.ones(5, 4)).logits, output.logits)


@pytest.mark.parametrize("stack", [1, 2])
def test_it_gets_the_bounds_of_the_environments_observations(stack: int) -> None:
    theirs = gymnasium.make("CartPole-v1").observation_space
    assert isinstance(theirs, gymnasium.spaces.Box)
    spec = environments.describe(EnvSettings(name="CartPole-v1", frame_stack=stack))
    observations, actions = spaces_of(spec)
    assert actions == gymnasium.spaces.Discrete(2)
    assert observations.high.tolist() == [*theirs.high.tolist()] * stack
    assert observations.low.tolist() == [*theirs.low.tolist()] * stack
    assert (observations == theirs) == (stack == 1)


@pytest.mark.parametrize("stack", [1, 3])
def test_images_are_bytes_from_0_to_255(stack: int) -> None:
    observations, actions = spaces_of(environments.describe(EnvSettings(name="coinrun", frame_stack=stack)))
    assert observations == gymnasium.spaces.Box(0, 255, (64, 64, 3 * stack), np.uint8)
    assert actions == gymnasium.spaces.Discrete(15)


def test_a_network_that_scales_by_the_bounds_sees_them() -> None:
    policy = make_policy(own("scaled"), environments.describe(EnvSettings(name="CartPole-v1")), seed=1)
    assert isinstance(policy, OwnNetwork)
    torch.testing.assert_close(policy.module.scale, torch.tensor([4.8, 1.0, 0.41887903, 1.0]))


def test_making_one_leaves_torchs_generator_as_it_was() -> None:
    before = torch.get_rng_state()
    make_policy(own("make"), VECTOR, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_trunk_of_ours_uses_our_kernels_with_the_same_result() -> None:
    ours, torchs = (make_policy(own("Trunk"), IMAGE, seed=1, kernels=kernels) for kernels in ("auto", "torch"))
    assert torchs.kernels == "torch"
    if not LIBRARY.exists():
        pytest.skip("no kernels: there was no compiler to build them")
    assert ours.kernels != "torch"
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), np.uint8))
    torch.testing.assert_close(ours(images).logits, torchs(images).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("with_dropout", ": layer is a Dropout, which would act differently in each process"),
        ("with_batch_norm", ": layer is a BatchNorm1d, which would act differently in each process"),
        ("of_other_actions", " should return logits [B, 3] and values [B] for a batch of B observations; for B = 2"),
        ("in_double", ": hidden.weight is torch.float64, requires_grad=True; all parameters should be float32"),
        ("not_a_module", " returned 3; it should return an nn.Module"),
        ("of_one_output", " should return logits [B, 3] and values [B] for a batch of B observations"),
        ("mak", ": own_network has no mak; did you mean make?"),
        (
            "of_other_observations",
            " fails for a batch of 2 observations: RuntimeError: mat1 and mat2 shapes ",
        ),
        ("raising", " cannot be made: ValueError: two lines ("),
        (
            "of_one_argument",
            " cannot be made: TypeError: of_one_argument() takes 1 positional argument but ",
        ),
    ],
)
def test_a_network_that_cannot_be_trained_is_refused_in_one_line(name: str, problem: str) -> None:
    with pytest.raises(UserError) as error:
        make_policy(own(name), VECTOR, seed=1)
    assert str(error.value).startswith(f"policy.network=own_network:{name}{problem}")
    assert "\n" not in str(error.value)


def test_the_place_of_an_error_is_never_in_our_code() -> None:
    with pytest.raises(UserError) as error:
        make_policy(own("of_one_argument"), VECTOR, seed=1)
    assert str(error.value).endswith("takes 1 positional argument but 2 were given; fix it")


def test_an_error_in_a_network_is_named_with_the_line_of_the_users_that_raised_it(tmp_path: Path) -> None:
    line = 1 + MODULE[: MODULE.index("hidden = ")].count("\n")
    with pytest.raises(UserError) as error:
        make_policy(own("of_other_observations"), VECTOR, seed=1)
    assert str(error.value).endswith(f"({tmp_path / 'own_network.py'}, line {line}); fix it")
