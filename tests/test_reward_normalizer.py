"""Reward normalisation against the literal definition, and its statistics merged over ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from rlcluster.collectives import Ranks
from rlcluster.reward_normalizer import RewardNormalizer


def problem(num_envs: int = 4, n_steps: int = 20) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    rewards = torch.randn(n_steps, num_envs, generator=draws) * 3 + 1
    return rewards, torch.rand(n_steps, num_envs, generator=draws) < 0.1


def test_rewards_are_divided_by_the_deviation_of_all_discounted_returns_so_far() -> None:
    rewards, dones = problem()
    normalizer = RewardNormalizer(range(4), gamma=0.9, clip=1000, ranks=Ranks())
    first = normalizer(rewards[:10], dones[:10])
    second = normalizer(rewards[10:], dones[10:])
    returns = np.zeros((20, 4))
    for n in range(4):
        running = 0.0
        for t in range(20):
            running = running * 0.9 + float(rewards[t, n])
            returns[t, n] = running
            running *= not dones[t, n]
    torch.testing.assert_close(first, rewards[:10] / float(np.std(returns[:10])))
    torch.testing.assert_close(second, rewards[10:] / float(np.std(returns)))


def test_normalised_rewards_are_clipped() -> None:
    rewards = torch.zeros(100, 1)
    rewards[50] = 1000.0
    normalizer = RewardNormalizer(range(1), gamma=0.0, clip=2.0, ranks=Ranks())
    assert normalizer(rewards, torch.zeros(100, 1, dtype=torch.bool)).max() == 2.0


def test_statistics_of_two_ranks_merge_to_those_of_one() -> None:
    rewards, dones = problem()
    whole = RewardNormalizer(range(4), 0.9, 10, Ranks())(rewards, dones)

    class TwoRanks(Ranks):
        """This rank's sums and those that the other one sends."""

        def __init__(self, other: Tensor) -> None:
            self.other = other

        def sum_(self, values: Tensor) -> Tensor:
            return values.add_(self.other)

    moments = []
    for part in (slice(0, 2), slice(2, 4)):
        alone = RewardNormalizer(range(2), 0.9, 10, Ranks())
        alone(rewards[:, part], dones[:, part])
        moments.append(alone.state()["moments"])
    for part, other in ((slice(0, 2), moments[1]), (slice(2, 4), moments[0])):
        dealt = RewardNormalizer(range(2), 0.9, 10, TwoRanks(other))(rewards[:, part], dones[:, part])
        torch.testing.assert_close(dealt, whole[:, part])


def test_no_reward_at_all_gives_no_nan() -> None:
    normalised = RewardNormalizer(range(2), 0.99, 10, Ranks())(torch.zeros(5, 2), torch.zeros(5, 2, dtype=torch.bool))
    assert torch.equal(normalised, torch.zeros(5, 2))


@pytest.mark.parametrize("cut", [1, 7, 19])
def test_a_restored_normaliser_continues_exactly(cut: int) -> None:
    rewards, dones = problem()
    one = RewardNormalizer(range(4), 0.9, 10, Ranks())
    one(rewards[:cut], dones[:cut])
    other = RewardNormalizer(range(4), 0.9, 10, Ranks())
    other.restore(one.state())
    assert torch.equal(one(rewards[cut:], dones[cut:]), other(rewards[cut:], dones[cut:]))
