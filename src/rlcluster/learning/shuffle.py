"""Which samples of an update go into which minibatch: the same sets for any number of ranks.

Every order comes from a stream of (seed, environment, position), so it does not depend on how the environments are
partitioned. A sample's index is t * M + m, for step t of the m-th trajectory of this rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rlcluster.environments.randomness import Purpose, generator


def sample_slices(seed: int, envs: Sequence[int], position: int, n_steps: int, num_minibatches: int) -> list[Tensor]:
    """Stratified: the steps of each trajectory are shuffled by its environment's stream; minibatch k is the k-th slice
    of each.
    """
    if num_minibatches == 1:
        return [torch.arange(n_steps * len(envs))]
    streams = (generator(seed, Purpose.SHUFFLE, env, position) for env in envs)
    order = np.stack([stream.permutation(n_steps) for stream in streams], 1) * len(envs) + np.arange(len(envs))
    parts = np.array_split(order, num_minibatches)  # each [T / K, M]
    return [torch.from_numpy(part.reshape(-1)) for part in parts]


def trajectory_slices(
    seed: int, envs: Sequence[int], position: int, n_steps: int, num_minibatches: int, num_envs: int
) -> list[Tensor]:
    """Whole trajectories: all `num_envs` environments are ordered by a draw from each one's stream; minibatch k has the
    trajectories of the k-th part of them. Without lag between actors each part has as many trajectories.
    """
    draws = [generator(seed, Purpose.SHUFFLE, env, position).random() for env in range(num_envs)]
    minibatch_of = np.empty(num_envs, np.int64)
    minibatch_of[np.argsort(draws, kind="stable")] = np.arange(num_envs) * num_minibatches // num_envs
    own, steps = minibatch_of[list(envs)], np.arange(n_steps)[:, None] * len(envs)
    parts = [np.flatnonzero(own == k) for k in range(num_minibatches)]
    return [torch.from_numpy((steps + part).reshape(-1)) for part in parts]
