"""Rollouts that wait in a checkpoint: their order, and whose they are."""

from __future__ import annotations

import numpy as np
import torch

from rlcluster.environments.interface import EnvironmentSpec
from rlcluster.exchange.ranks import Ranks
from rlcluster.learning.actor import Collected
from rlcluster.learning.rollout import Rollout
from rlcluster.runs.episodes import Episode
from rlcluster.training.pending import from_checkpoint, to_checkpoint


def ready(first: int, num_envs: int, number: int) -> Collected:
    """The rollout `number` of some environments, each of which has finished an episode with that reward."""
    rollout = Rollout.allocate(3, num_envs, EnvironmentSpec((2,), np.dtype(np.float32), 2))
    rollout.envs.copy_(torch.arange(first, first + num_envs))
    rollout.rewards.fill_(number)
    return Collected(rollout, [Episode(0, env, float(number), 5) for env in range(first, first + num_envs)])


def described(content: dict[str, list[torch.Tensor]], envs: range) -> list[tuple[list[int], float, list[int]]]:
    return [
        (one.rollout.envs.tolist(), float(one.rollout.rewards[0, 0]), [episode.env for episode in one.episodes])
        for one in from_checkpoint(content, envs)
    ]


def test_the_first_of_each_environment_comes_before_the_second_whoever_was_faster() -> None:
    arrived = [ready(0, 2, 1), ready(0, 2, 2), ready(2, 2, 1), ready(2, 2, 2)]
    content = {"pending": to_checkpoint(arrived, Ranks())}
    assert [(envs, number) for envs, number, _ in described(content, range(4))] == [
        ([0, 1], 1.0),
        ([2, 3], 1.0),
        ([0, 1], 2.0),
        ([2, 3], 2.0),
    ]


def test_a_rank_takes_the_trajectories_and_episodes_of_its_own_environments() -> None:
    content = {"pending": to_checkpoint([ready(0, 3, 1), ready(3, 1, 1)], Ranks())}
    assert described(content, range(2, 4)) == [([2], 1.0, [2]), ([3], 1.0, [3])]
    assert not from_checkpoint({}, range(4))
