"""Reward normalisation against the literal definition, and its statistics merged over ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from rlcluster.environments.interface import EnvironmentSpec
from rlcluster.exchange.ranks import Ranks
from rlcluster.learning.reward_normalizer import RewardNormalizer
from rlcluster.learning.rollout import Rollout


def problem(num_envs: int = 4, n_steps: int = 20) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    rewards = torch.randn(n_steps, num_envs, generator=draws) * 3 + 1
    return rewards, torch.rand(n_steps, num_envs, generator=draws) < 0.1


def rollout(rewards: Tensor, dones: Tensor, first: int = 0) -> Rollout:
    """With these rewards and ends of episodes, of the environments from `first` on."""
    n_steps, num_envs = rewards.shape
    empty = Rollout.allocate(n_steps, num_envs, EnvironmentSpec((1,), np.dtype(np.float32), 2))
    return replace(empty, rewards=rewards, dones=dones, envs=torch.arange(first, first + num_envs))


def test_rewards_are_divided_by_the_deviation_of_all_discounted_returns_so_far() -> None:
    rewards, dones = problem()
    normalizer = RewardNormalizer(range(4), gamma=0.9, clip=1000, ranks=Ranks())
    (first,) = normalizer([rollout(rewards[:10], dones[:10])])
    (second,) = normalizer([rollout(rewards[10:], dones[10:])])
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
    (normalised,) = normalizer([rollout(rewards, torch.zeros(100, 1, dtype=torch.bool))])
    assert normalised.max() == 2.0


def test_statistics_of_two_ranks_merge_to_those_of_one() -> None:
    rewards, dones = problem()
    (whole,) = RewardNormalizer(range(4), 0.9, 10, Ranks())([rollout(rewards, dones)])

    class TwoRanks(Ranks):
        """This rank's sums and those that the other one sends."""

        def __init__(self, other: Tensor) -> None:
            self.other = other

        def sum_(self, values: Tensor) -> Tensor:
            return values.add_(self.other)

    moments = []
    for part in (slice(0, 2), slice(2, 4)):
        alone = RewardNormalizer(range(2), 0.9, 10, Ranks())
        alone([rollout(rewards[:, part], dones[:, part])])
        moments.append(alone.state()["moments"])
    for part, other in ((slice(0, 2), moments[1]), (slice(2, 4), moments[0])):
        own = rollout(rewards[:, part], dones[:, part], part.start)
        (part_rewards,) = RewardNormalizer(range(part.start, part.stop), 0.9, 10, TwoRanks(other))([own])
        torch.testing.assert_close(part_rewards, whole[:, part])


def test_no_reward_at_all_gives_no_nan() -> None:
    nothing = rollout(torch.zeros(5, 2), torch.zeros(5, 2, dtype=torch.bool))
    (normalised,) = RewardNormalizer(range(2), 0.99, 10, Ranks())([nothing])
    assert torch.equal(normalised, torch.zeros(5, 2))


@pytest.mark.parametrize("cut", [1, 7, 19])
def test_a_restored_normaliser_continues_exactly(cut: int) -> None:
    rewards, dones = problem()
    one = RewardNormalizer(range(4), 0.9, 10, Ranks())
    one([rollout(rewards[:cut], dones[:cut])])
    other = RewardNormalizer(range(4), 0.9, 10, Ranks())
    other.restore(one.state())
    rest = [rollout(rewards[cut:], dones[cut:])]
    assert torch.equal(*one(rest), *other(rest))


def test_rollouts_of_some_environments_merge_to_one_of_all_in_any_order() -> None:
    """Two actors with two environments each; the second is a rollout ahead of the first."""
    rewards, dones = problem()
    early, late, left, right = slice(0, 10), slice(10, 20), slice(0, 2), slice(2, 4)
    one = RewardNormalizer(range(4), 0.9, 10, Ranks())
    one([rollout(rewards[early], dones[early])])
    (expected,) = one([rollout(rewards[late], dones[late])])
    other = RewardNormalizer(range(4), 0.9, 10, Ranks())
    parts = [(early, right, 2), (early, left, 0), (late, right, 2), (late, left, 0)]
    scaled = other([rollout(rewards[time, envs], dones[time, envs], first) for time, envs, first in parts])
    torch.testing.assert_close(torch.cat([scaled[3], scaled[2]], 1), expected)
