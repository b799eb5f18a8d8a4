"""The losses of PPO and A2C. Each returns sums over its samples: the caller divides by the global count,
so that cutting a minibatch into chunks, or partitioning it over ranks, changes only rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from rlcluster.networks.policy import PolicyOutput
from rlcluster.settings.algorithms import LossName
from rlcluster.settings.schema import TrainingSettings

UNCLIPPED_RANGE = 0.2  # PPO's default: what `clip_frac` counts for losses that do not clip, so that it can be compared


class Samples(NamedTuple):
    """What a rollout says about each of B samples."""

    actions: Tensor  # [B] int64
    log_probs: Tensor  # [B] of the actions, when they were taken
    values: Tensor  # [B] when the actions were taken
    advantages: Tensor  # [B]
    returns: Tensor  # [B]


class LossSums(NamedTuple):
    """Sums over samples."""

    loss: Tensor  # what is minimised
    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor  # sum of (r - 1) - log r, an unbiased estimate of KL(old || new) that is never negative
    clip_frac: Tensor  # number of samples whose ratio lies outside the clip range
    probabilities: Tensor  # [A] of each action


SCALARS = LossSums._fields[:-1]


class Change(NamedTuple):
    """How far the policy has moved since it acted."""

    log_ratio: Tensor  # [B] log of new over old probability of the actions
    clip_range: float  # `clip_frac` counts the ratios outside 1 +- this


def ppo_loss(output: PolicyOutput, samples: Samples, training: TrainingSettings) -> LossSums:
    """PPO (arXiv 1707.06347, equations 7 and 9), with the value clipped in the same manner if asked for:

    policy: -min(r A, clip(r, 1 - eps, 1 + eps) A),   r = pi(a) / pi_old(a)
    value:  1/2 max((V - R)^2, (V_old + clip(V - V_old, -eps_v, eps_v) - R)^2)
    """
    log_probs, policy = _policy_of(output.logits, samples.actions)
    log_ratio = log_probs - samples.log_probs
    ratio = log_ratio.exp()
    clip_range = training.clip_range
    assert clip_range is not None, "the settings refuse this"
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    policy_loss = -torch.min(ratio * samples.advantages, clipped * samples.advantages)
    value_error = (output.values - samples.returns).square()
    if training.clip_value_range is not None:
        change = (output.values - samples.values).clamp(-training.clip_value_range, training.clip_value_range)
        value_error = torch.max(value_error, (samples.values + change - samples.returns).square())
    return _sums(policy_loss, 0.5 * value_error, policy, Change(log_ratio, clip_range), training)


def a2c_loss(output: PolicyOutput, samples: Samples, training: TrainingSettings) -> LossSums:
    """Advantage actor-critic (arXiv 1602.01783): -A log pi(a) and 1/2 (V - R)^2."""
    log_probs, policy = _policy_of(output.logits, samples.actions)
    policy_loss = -samples.advantages * log_probs
    value_error = (output.values - samples.returns).square()
    change = Change(log_probs - samples.log_probs, UNCLIPPED_RANGE)
    return _sums(policy_loss, 0.5 * value_error, policy, change, training)


LossFunction = Callable[[PolicyOutput, Samples, TrainingSettings], LossSums]
Loss = Callable[[PolicyOutput, Samples], LossSums]  # of a run, whose settings it knows
LOSSES: Mapping[LossName, LossFunction] = {"ppo_loss": ppo_loss, "a2c_loss": a2c_loss}


class PolicySums(NamedTuple):
    """Sums over samples."""

    entropy: Tensor
    probabilities: Tensor  # [A]


def _policy_of(logits: Tensor, actions: Tensor) -> tuple[Tensor, PolicySums]:
    """The log-probabilities [B] of the actions, and sums over the whole distributions."""
    log_distribution = torch.log_softmax(logits, -1)
    log_probs = log_distribution.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    distribution = log_distribution.exp()
    entropy = -(distribution * log_distribution).sum(-1)
    return log_probs, PolicySums(entropy.sum(), distribution.detach().sum(0))


def _sums(
    policy_loss: Tensor, value_loss: Tensor, policy: PolicySums, change: Change, training: TrainingSettings
) -> LossSums:
    policy_sum, value_sum = policy_loss.sum(), value_loss.sum()
    with torch.no_grad():
        ratio = change.log_ratio.exp()
        approx_kl = ((ratio - 1) - change.log_ratio).sum()
        clip_frac = ((ratio - 1).abs() > change.clip_range).sum()
    loss = policy_sum + training.value_coefficient * value_sum - training.entropy_coefficient * policy.entropy
    return LossSums(loss, policy_sum, value_sum, policy.entropy, approx_kl, clip_frac, policy.probabilities)
