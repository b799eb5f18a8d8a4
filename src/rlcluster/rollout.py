"""Rollout: the record of T steps in N environments that goes from the actor to the learner."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from rlcluster.environments.interface import EnvironmentSpec


@dataclass(frozen=True)
class Rollout:
    """Preallocated once and filled again for every update."""

    observations: Tensor  # [T, N, ...] bytes for images
    actions: Tensor  # [T, N] int64
    log_probs: Tensor  # [T, N] of the actions taken, under the policy that took them
    values: Tensor  # [T, N]
    next_values: Tensor  # [T, N] of the state after the step: 0 where terminated, the true last state's where truncated
    rewards: Tensor  # [T, N] raw
    dones: Tensor  # [T, N] bool, terminated or truncated
    last_observations: Tensor  # [N, ...] of the state after the last step, in which the next rollout begins

    @property
    def n_steps(self) -> int:
        return self.rewards.shape[0]

    @property
    def num_envs(self) -> int:
        return self.rewards.shape[1]

    def first(self, n_steps: int) -> Rollout:
        """The first steps, as views."""
        columns = {field.name: getattr(self, field.name)[:n_steps] for field in fields(self)}
        return Rollout(**{**columns, "last_observations": self.last_observations})

    @classmethod
    def allocate(cls, n_steps: int, num_envs: int, spec: EnvironmentSpec) -> Rollout:
        shape = (n_steps, num_envs)
        dtype = torch.from_numpy(np.zeros(0, spec.observation_dtype)).dtype
        return cls(
            observations=torch.zeros(*shape, *spec.observation_shape, dtype=dtype),
            actions=torch.zeros(shape, dtype=torch.int64),
            log_probs=torch.zeros(shape),
            values=torch.zeros(shape),
            next_values=torch.zeros(shape),
            rewards=torch.zeros(shape),
            dones=torch.zeros(shape, dtype=torch.bool),
            last_observations=torch.zeros(num_envs, *spec.observation_shape, dtype=dtype),
        )
