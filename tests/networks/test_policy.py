"""Networks: their sizes, their initial weights, and how actions are drawn from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlcluster.environments.interface import EnvironmentSpec
from rlcluster.networks.policy import ActorCritic, choose_network, make_policy, sample_actions
from rlcluster.settings.schema import PolicySettings
from rlcluster.system.errors import UserError

PROCGEN = EnvironmentSpec((64, 64, 3), np.dtype(np.uint8), 15)
CARTPOLE = EnvironmentSpec((4,), np.dtype(np.float32), 2)


def policy_of(network: str, spec: EnvironmentSpec = PROCGEN, seed: int = 0) -> ActorCritic:
    return make_policy(PolicySettings(network=network), spec, seed)


@pytest.mark.parametrize(
    ("network", "spec", "count"),
    [
        ("impala", PROCGEN, 626_256),  # as published for the Procgen paper's network
        # 8*8*3*32+32, 4*4*32*64+64, 3*3*64*64+64, 1024*512+512, 512*15+15, 512+1
        ("nature", PROCGEN, 6_176 + 32_832 + 36_928 + 524_800 + 7_695 + 513),
        # two towers of 4*64+64 and 64*64+64, heads 64*2+2 and 64+1
        ("mlp", CARTPOLE, 2 * (320 + 4_160) + 130 + 65),
    ],
)
def test_number_of_parameters(network: str, spec: EnvironmentSpec, count: int) -> None:
    assert sum(parameter.numel() for parameter in policy_of(network, spec).parameters()) == count


@pytest.mark.parametrize("network", ["impala", "nature", "mlp"])
def test_output_shapes_and_nearly_uniform_first_policy(network: str) -> None:
    observations = torch.randint(0, 256, (3, 64, 64, 3), dtype=torch.uint8)
    output = policy_of(network)(observations)
    assert output.logits.shape == (3, 15)
    assert output.values.shape == (3,)
    probabilities = torch.softmax(output.logits, -1)
    assert (probabilities - 1 / 15).abs().max() < 0.2


def test_impala_equals_its_literal_definition() -> None:
    """conv, pool, twice x + conv(relu(conv(relu(x)))), three stages; relu, linear, relu; on plain NCHW floats."""
    functional = torch.nn.functional
    policy = policy_of("impala")
    observations = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)
    parameters = {name: value.contiguous() for name, value in policy.state_dict().items()}

    def conv(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.conv2d(x, parameters[f"{name}.weight"], parameters[f"{name}.bias"], padding=1)

    x = observations.permute(0, 3, 1, 2).contiguous() / 255
    for stage in range(3):
        x = functional.max_pool2d(conv(x, f"trunk.stages.{stage}.convolution"), 3, 2, 1)
        for block in range(2):
            name = f"trunk.stages.{stage}.blocks.{block}"
            x = x + conv(torch.relu(conv(torch.relu(x), f"{name}.first")), f"{name}.second")
    x = torch.relu(x).flatten(1) @ parameters["trunk.linear.weight"].T + parameters["trunk.linear.bias"]
    values = torch.relu(x) @ parameters["value_head.weight"].T + parameters["value_head.bias"]
    torch.testing.assert_close(policy(observations).values, values.squeeze(-1), rtol=1e-4, atol=1e-4)


def test_weights_are_orthogonal_and_depend_on_the_seed_alone() -> None:
    first, again, other = policy_of("nature", seed=1), policy_of("nature", seed=1), policy_of("nature", seed=2)
    weight = first.trunk.linear.weight.detach()
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(512), atol=1e-4, rtol=0)
    assert torch.equal(weight, again.trunk.linear.weight)
    assert not torch.equal(weight, other.trunk.linear.weight)


def test_sampling_by_inversion_by_hand() -> None:
    logits = torch.tensor([0.2, 0.3, 0.5]).log().expand(6, 3)
    noise = torch.tensor([0.0, 0.19, 0.21, 0.49, 0.51, 1 - 1e-16], dtype=torch.float64)
    assert sample_actions(logits, noise).tolist() == [0, 0, 1, 1, 2, 2]


def test_an_action_without_probability_is_never_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf]]).expand(3, 3)
    assert sample_actions(logits, torch.tensor([0.0, 0.5, 0.999999], dtype=torch.float64)).tolist() == [1, 1, 1]


def test_the_mlp_sees_bytes_as_fractions() -> None:
    policy = policy_of("mlp")
    observations = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)
    assert torch.equal(policy(observations).values, policy(observations * torch.tensor(1 / 255)).values)


def test_images_take_impala_and_vectors_mlp_unless_the_user_chooses() -> None:
    assert choose_network(PolicySettings(), PROCGEN) == "impala"
    assert choose_network(PolicySettings(), CARTPOLE) == "mlp"
    assert choose_network(PolicySettings(network="nature"), PROCGEN) == "nature"
    with pytest.raises(UserError, match=r"policy\.network=impala needs images"):
        choose_network(PolicySettings(network="impala"), CARTPOLE)
