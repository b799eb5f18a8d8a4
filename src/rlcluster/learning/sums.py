"""Sums over samples, which merge over chunks, minibatches and ranks by addition; and the means that they become."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rlcluster.learning.losses import SCALARS, LossSums, Samples
from rlcluster.networks.information import action_information

NUM_SCALARS = len(SCALARS) + 1  # and the number of samples


class Normal(NamedTuple):
    """What advantages are shifted and divided by; 0 and 1 where they are not to be normalised."""

    mean: float = 0.0
    std: float = 1.0

    def applied_to(self, samples: Samples) -> Samples:
        return samples._replace(advantages=(samples.advantages - self.mean) / self.std)


def no_losses(num_actions: int) -> Tensor:
    """Zeros for `loss_sums`."""
    return torch.zeros(NUM_SCALARS + num_actions, dtype=torch.float64)


def loss_sums(losses: LossSums) -> Tensor:
    """SCALARS, a place for the number of samples, and the probability of each action."""
    scalars = torch.stack([value.detach().double() for value in losses[:-1]])
    return torch.cat([scalars, scalars.new_zeros(1), losses.probabilities.double()])


def mean_losses(totals: Tensor) -> dict[str, float]:
    """Per sample, from the `loss_sums` of all ranks."""
    *losses, num_samples = totals[:NUM_SCALARS].tolist()
    return {name: total / num_samples for name, total in zip(SCALARS, losses, strict=True)}


def information(totals: Tensor) -> float:
    """The action information, from the `loss_sums` of all ranks."""
    scalars = dict(zip(SCALARS, totals.tolist(), strict=False))
    return action_information(totals[NUM_SCALARS:], scalars["entropy"], float(totals[NUM_SCALARS - 1]))


def moments(values: Tensor) -> Tensor:
    """Count, sum and sum of squares."""
    values = values.double()
    return torch.stack([values.new_tensor(values.numel()), values.sum(), values.square().sum()])


def normal_from(count: float, total: float, squares: float) -> Normal:
    """From the moments of all ranks."""
    mean = total / count
    return Normal(mean, math.sqrt(max(0.0, squares / count - mean * mean)) + 1e-8)


def spread(returns: Tensor, values: Tensor) -> Tensor:
    """Sums and sums of squares of the value's errors and of the returns."""
    errors, returns = (returns - values).double(), returns.double()
    return torch.stack([errors.sum(), errors.square().sum(), returns.sum(), returns.square().sum()])


def explained_variance(spread_of_all: Tensor, count: float) -> float | None:
    """1 - Var[R - V] / Var[R]: 1 is a perfect value function, 0 is no better than a constant."""
    error_sum, error_squares, return_sum, return_squares = (float(value) for value in spread_of_all)
    variance = return_squares / count - (return_sum / count) ** 2
    if variance <= 1e-12:
        return None
    return 1 - (error_squares / count - (error_sum / count) ** 2) / variance
