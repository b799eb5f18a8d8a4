"""Advantages and returns from rewards and values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Targets(NamedTuple):
    advantages: Tensor  # [T, N]
    returns: Tensor  # [T, N] what the value should have been


class VtraceTargets(NamedTuple):
    advantages: Tensor  # [T, N] without rho
    returns: Tensor  # [T, N]
    rhos: Tensor  # [T, N]

    def weighted(self) -> Targets:
        """For a loss that does not weigh its samples itself: advantages times rho, as in the paper."""
        return Targets(self.rhos * self.advantages, self.returns)

    def unweighted(self) -> Targets:
        """For a loss that multiplies each advantage by its ratio to the policy that acted."""
        return Targets(self.advantages, self.returns)


class VtraceCoefficients(NamedTuple):
    gamma: float
    lambda_: float
    rho_bar: float  # limit of the ratio in the temporal difference: decides the value that is learnt
    c_bar: float  # limit of the ratio in the trace: decides how fast


def gae(rewards: Tensor, values: Tensor, next_values: Tensor, dones: Tensor, gamma: float, lambda_: float) -> Targets:
    """Generalised advantage estimation (arXiv 1506.02438, equation 16), all arguments [T, N]:

        A_t = sum_{k >= 0} (gamma lambda)^k delta_{t+k}  up to the end of the episode or of the rollout,
        delta_t = r_t + gamma V(s_{t+1}) - V(s_t),       returns_t = A_t + V(s_t).

    `next_values` holds V(s_{t+1}) as the bootstrap needs it: 0 after a terminal step, the value of the true last
    state after a truncation. With lambda = 1 the returns are n-step returns.
    """
    if not rewards.shape == values.shape == next_values.shape == dones.shape:
        raise ValueError(f"shapes differ: {rewards.shape}, {values.shape}, {next_values.shape}, {dones.shape}")
    deltas = rewards + gamma * next_values - values
    carry = (gamma * lambda_) * (~dones).to(deltas.dtype)
    advantages = torch.empty_like(deltas)
    advantage = torch.zeros_like(deltas[0])
    for t in range(len(deltas) - 1, -1, -1):
        advantage = deltas[t] + carry[t] * advantage
        advantages[t] = advantage
    return Targets(advantages, advantages + values)


def vtrace(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    dones: Tensor,
    log_ratios: Tensor,
    coefficients: VtraceCoefficients,
) -> VtraceTargets:
    """V-trace (arXiv 1802.01561, equation 1 and section 4.2), all tensors [T, N]:

        v_s = V(x_s) + sum_{t >= s} gamma^(t - s) (c_s ... c_{t-1}) delta_t  up to the end of the episode or rollout,
        delta_t = rho_t (r_t + gamma V(x_{t+1}) - V(x_t)),
        rho_t = min(rho_bar, pi / mu),    c_t = lambda min(c_bar, pi / mu),
        advantage_s = r_s + gamma v_{s+1} - V(x_s),  in the policy gradient times rho_s.

    `log_ratios` is log pi(a) - log mu(a): the policy that learns over the one that acted. `next_values` is as for
    `gae`; where the episode or the rollout ends, it stands for v_{s+1} too. The returns are v_s.
    """
    shapes = {tensor.shape for tensor in (rewards, values, next_values, dones, log_ratios)}
    if len(shapes) > 1:
        raise ValueError(f"shapes differ: {', '.join(str(tuple(shape)) for shape in shapes)}")
    gamma, lambda_, rho_bar, c_bar = coefficients
    ratios = log_ratios.exp()
    rhos, continues = ratios.clamp(max=rho_bar), (~dones).to(values.dtype)
    carry = gamma * lambda_ * ratios.clamp(max=c_bar) * continues
    deltas = rhos * (rewards + gamma * next_values - values)
    corrections = torch.empty_like(deltas)  # v_s - V(x_s)
    correction = torch.zeros_like(deltas[0])
    for t in range(len(deltas) - 1, -1, -1):
        correction = deltas[t] + carry[t] * correction
        corrections[t] = correction
    targets = values + corrections
    next_targets = next_values.clone()
    next_targets[:-1] = torch.where(dones[:-1], next_values[:-1], targets[1:])
    return VtraceTargets(rewards + gamma * next_targets - values, targets, rhos)
