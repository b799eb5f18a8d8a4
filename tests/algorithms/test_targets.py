"""Targets against the literal double sum and against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlcluster.algorithms.targets import gae


def literal_gae(
    rewards: Tensor, values: Tensor, next_values: Tensor, dones: Tensor, gamma: float, lam: float
) -> Tensor:
    """The double sum of arXiv 1506.02438, one element after the other."""
    n_steps, num_envs = rewards.shape
    advantages = torch.zeros(n_steps, num_envs, dtype=rewards.dtype)
    for n in range(num_envs):
        for t in range(n_steps):
            for k in range(t, n_steps):
                delta = rewards[k, n] + gamma * next_values[k, n] - values[k, n]
                advantages[t, n] += (gamma * lam) ** (k - t) * delta
                if dones[k, n]:
                    break
    return advantages


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 2**31), st.floats(0, 1), st.floats(0, 1))
def test_gae_equals_the_literal_double_sum(n_steps: int, num_envs: int, seed: int, gamma: float, lam: float) -> None:
    draws = torch.Generator().manual_seed(seed)
    rewards, values, next_values = torch.randn(3, n_steps, num_envs, generator=draws, dtype=torch.float64)
    dones = torch.rand(n_steps, num_envs, generator=draws) < 0.3
    targets = gae(rewards, values, next_values, dones, gamma, lam)
    expected = literal_gae(rewards, values, next_values, dones, gamma, lam)
    torch.testing.assert_close(targets.advantages, expected)
    torch.testing.assert_close(targets.returns, expected + values)


def test_gae_of_two_steps_by_hand() -> None:
    column = lambda *numbers: torch.tensor(numbers, dtype=torch.float64).reshape(-1, 1)  # noqa: E731
    targets = gae(column(1, 2), column(3, 4), column(4, 10), torch.zeros(2, 1, dtype=torch.bool), 0.5, 0.5)
    # delta_1 = 2 + .5 * 10 - 4 = 3, delta_0 = 1 + .5 * 4 - 3 = 0, A_0 = 0 + .25 * 3
    torch.testing.assert_close(targets.advantages, column(0.75, 3))
    torch.testing.assert_close(targets.returns, column(3.75, 7))


def test_lambda_one_gives_n_step_returns() -> None:
    rewards = torch.tensor([[1.0], [2.0], [3.0]])
    values, next_values = torch.zeros(3, 1), torch.tensor([[0.0], [0.0], [8.0]])
    targets = gae(rewards, values, next_values, torch.zeros(3, 1, dtype=torch.bool), 0.5, 1.0)
    # 1 + .5 * 2 + .25 * 3 + .125 * 8
    assert targets.returns[0].item() == pytest.approx(3.75)


def test_gae_does_not_change_its_arguments_and_refuses_different_shapes() -> None:
    zeros, dones = torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.bool)
    rewards = torch.ones(2, 2)
    gae(rewards, zeros, zeros, dones, 0.9, 0.9)
    assert torch.equal(rewards, torch.ones(2, 2))
    assert not zeros.any()
    with pytest.raises(ValueError, match="shapes differ"):
        gae(rewards, zeros, zeros, torch.zeros(2, 1, dtype=torch.bool), 0.9, 0.9)
