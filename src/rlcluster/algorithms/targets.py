"""Advantages and returns from rewards and values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Targets(NamedTuple):
    advantages: Tensor  # [T, N]
    returns: Tensor  # [T, N] what the value should have been


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
