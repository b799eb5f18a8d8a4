"""Minibatches: every sample once, and the same global sets for any number of ranks."""

from __future__ import annotations

import pytest
import torch

from rlcluster.learning.shuffle import sample_slices, trajectory_slices

SEED, STEPS, ENVS = 5, 12, 6


def pairs(indices: torch.Tensor, envs: range) -> set[tuple[int, int]]:
    """(step, environment) of each sample."""
    return {(int(i) // len(envs), envs[int(i) % len(envs)]) for i in indices}


@pytest.mark.parametrize("shares", [[range(6)], [range(2), range(2, 6)], [range(3), range(3, 4), range(4, 6)]])
def test_the_global_minibatch_does_not_depend_on_the_ranks(shares: list[range]) -> None:
    whole = range(ENVS)
    samples, trajectories = (SEED, whole, 7, STEPS, 3), (SEED, whole, 7, STEPS, 3, ENVS)
    for k in range(3):
        parts = [pairs(sample_slices(SEED, share, 7, STEPS, 3)[k], share) for share in shares]
        assert set().union(*parts) == pairs(sample_slices(*samples)[k], whole)
        parts = [pairs(trajectory_slices(SEED, share, 7, STEPS, 3, ENVS)[k], share) for share in shares]
        assert set().union(*parts) == pairs(trajectory_slices(*trajectories)[k], whole)


def test_trajectories_stay_whole_and_are_partitioned_evenly() -> None:
    slices = trajectory_slices(SEED, range(ENVS), 0, STEPS, 3, ENVS)
    envs = [sorted({env for _, env in pairs(one, range(ENVS))}) for one in slices]
    assert sorted(env for part in envs for env in part) == list(range(ENVS))
    assert [len(part) for part in envs] == [2, 2, 2]
    assert all(len(one) == 2 * STEPS for one in slices)
    assert trajectory_slices(SEED, range(ENVS), 1, STEPS, 3, ENVS)[0].tolist() != slices[0].tolist()


def test_a_trajectory_that_comes_twice_stays_with_its_environment() -> None:
    """Asynchronous actors: environment 1 has two rollouts in this update, environment 0 none."""
    slices = trajectory_slices(SEED, [1, 1], 0, STEPS, 2, 2)
    assert sorted(len(one) for one in slices) == [0, 2 * STEPS]
