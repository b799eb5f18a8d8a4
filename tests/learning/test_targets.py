"""Targets against the literal double sum and against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlcluster.learning.targets import Targets, VtraceCoefficients, gae, vtrace


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


def literal_vtrace(
    rewards: Tensor, values: Tensor, next_values: Tensor, dones: Tensor, log_ratios: Tensor, c: VtraceCoefficients
) -> Targets:
    """Equation 1 of arXiv 1802.01561 and its policy gradient, one element after the other."""
    n_steps, num_envs = rewards.shape
    targets, advantages = torch.zeros(2, n_steps, num_envs, dtype=rewards.dtype)
    for n in range(num_envs):
        for s in range(n_steps):
            targets[s, n], product = values[s, n], 1.0
            for t in range(s, n_steps):
                ratio = math.exp(log_ratios[t, n])
                delta = min(c.rho_bar, ratio) * (rewards[t, n] + c.gamma * next_values[t, n] - values[t, n])
                targets[s, n] += c.gamma ** (t - s) * product * delta
                if dones[t, n]:
                    break
                product *= c.lambda_ * min(c.c_bar, ratio)
        for s in range(n_steps):
            is_last = s == n_steps - 1 or bool(dones[s, n])
            next_target = next_values[s, n] if is_last else targets[s + 1, n]
            rho = min(c.rho_bar, math.exp(log_ratios[s, n]))
            advantages[s, n] = rho * (rewards[s, n] + c.gamma * next_target - values[s, n])
    return Targets(advantages, targets)


def trajectories(n_steps: int, num_envs: int, seed: int) -> tuple[Tensor, ...]:
    """Rewards, values, next values, dones and log ratios."""
    draws = torch.Generator().manual_seed(seed)
    rewards, values, next_values, log_ratios = torch.randn(4, n_steps, num_envs, generator=draws, dtype=torch.float64)
    dones = torch.rand(n_steps, num_envs, generator=draws) < 0.3
    return rewards, values, next_values, dones, log_ratios


UNIT = st.floats(0, 1)
BAR = st.floats(0.1, 3)
COEFFICIENTS = st.builds(VtraceCoefficients, UNIT, UNIT, BAR, BAR)


@given(st.integers(1, 10), st.integers(1, 3), st.integers(0, 2**31), COEFFICIENTS)
def test_vtrace_equals_the_literal_equation(
    n_steps: int, num_envs: int, seed: int, coefficients: VtraceCoefficients
) -> None:
    arguments = trajectories(n_steps, num_envs, seed)
    ours, expected = vtrace(*arguments, coefficients), literal_vtrace(*arguments, coefficients)
    torch.testing.assert_close(ours.returns, expected.returns)
    torch.testing.assert_close(ours.weighted().advantages, expected.advantages)
    torch.testing.assert_close(ours.rhos * ours.unweighted().advantages, expected.advantages)


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 2**31), UNIT, UNIT)
def test_vtrace_equals_gae_targets_when_the_policies_agree(
    n_steps: int, num_envs: int, seed: int, gamma: float, lam: float
) -> None:
    rewards, values, next_values, dones, _ = trajectories(n_steps, num_envs, seed)
    ours = vtrace(
        rewards, values, next_values, dones, torch.zeros_like(values), VtraceCoefficients(gamma, lam, 1.0, 1.0)
    )
    torch.testing.assert_close(ours.returns, gae(rewards, values, next_values, dones, gamma, lam).returns)


def test_vtrace_equals_n_step_returns_when_the_policies_agree_and_lambda_is_one() -> None:
    """By hand: rewards 1, 2, 3, the value of the last state is 8, gamma a half."""
    rewards, values = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[5.0], [6.0], [7.0]])
    next_values = torch.tensor([[6.0], [7.0], [8.0]])
    zeros, dones = torch.zeros(3, 1), torch.zeros(3, 1, dtype=torch.bool)
    targets = vtrace(rewards, values, next_values, dones, zeros, VtraceCoefficients(0.5, 1.0, 1.0, 1.0))
    assert targets.returns.flatten().tolist() == pytest.approx([3.75, 5.5, 7.0])
    assert targets.advantages.flatten().tolist() == pytest.approx([3.75 - 5, 5.5 - 6, 7 - 7])


def test_rho_bar_limits_the_difference_and_c_bar_the_trace() -> None:
    """Two steps, both ratios 4, gamma and lambda 1, values 0, rewards 1: v_0 = rho + c rho, v_1 = rho."""
    ones, zeros, dones = torch.ones(2, 1), torch.zeros(2, 1), torch.zeros(2, 1, dtype=torch.bool)
    log_ratios = torch.full((2, 1), math.log(4.0))
    for rho_bar, c_bar, expected in ((1, 1, 2), (3, 1, 6), (3, 2, 9), (9, 9, 20)):
        targets = vtrace(ones, zeros, zeros, dones, log_ratios, VtraceCoefficients(1.0, 1.0, rho_bar, c_bar))
        rho = min(rho_bar, 4)
        assert targets.returns.flatten().tolist() == pytest.approx([expected, rho])
        assert targets.weighted().advantages.flatten().tolist() == pytest.approx([rho * (1 + rho), rho])
        assert targets.unweighted().advantages.flatten().tolist() == pytest.approx([1 + rho, 1])


def test_vtrace_learns_nothing_from_an_action_that_the_policy_never_takes() -> None:
    rewards, values, next_values, dones, _ = trajectories(3, 2, seed=1)
    never = torch.full((3, 2), -math.inf, dtype=torch.float64)
    targets = vtrace(rewards, values, next_values, dones, never, VtraceCoefficients(0.9, 1.0, 1.0, 1.0))
    torch.testing.assert_close(targets.returns, values)
    assert not targets.weighted().advantages.any()


def test_vtrace_does_not_change_its_arguments_and_refuses_different_shapes() -> None:
    arguments = trajectories(4, 2, seed=3)
    copies = [argument.clone() for argument in arguments]
    vtrace(*arguments, VtraceCoefficients(0.9, 0.9, 1.0, 1.0))
    assert all(torch.equal(argument, copy) for argument, copy in zip(arguments, copies, strict=True))
    with pytest.raises(ValueError, match="shapes differ"):
        vtrace(*arguments[:4], torch.zeros(4, 1), VtraceCoefficients(0.9, 0.9, 1.0, 1.0))
