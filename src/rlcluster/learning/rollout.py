"""Rollout: the record of T steps in N environments that an actor passes to the learner, in the memory of one process or
in slots of a file that several processes have mapped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlcluster.environments.interface import EnvironmentSpec
from rlcluster.system.shared_memory import SharedFile, map_file, round_up_to_cache_line

PER_ENVIRONMENT = ("last_observations", "envs", "versions")  # [N, ...]; the other columns are [T, N, ...]


class Column(NamedTuple):
    """One field of a rollout."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def space(self) -> int:
        """Its size in bytes, rounded up to whole cache lines."""
        return round_up_to_cache_line(self.num_bytes)


class RolloutShape(NamedTuple):
    """Determines the size of a rollout."""

    n_steps: int
    num_envs: int
    spec: EnvironmentSpec

    def columns(self) -> dict[str, Column]:
        """The fields of a rollout, in their order."""
        steps = (self.n_steps, self.num_envs)
        image, pixel = self.spec.observation_shape, torch.from_numpy(np.zeros(0, self.spec.observation_dtype)).dtype
        number = Column(steps, torch.float32)
        return {
            "observations": Column((*steps, *image), pixel),
            "actions": Column(steps, torch.int64),
            "log_probs": number,
            "values": number,
            "next_values": number,
            "rewards": number,
            "dones": Column(steps, torch.bool),
            "last_observations": Column((self.num_envs, *image), pixel),
            "envs": Column((self.num_envs,), torch.int64),
            "versions": Column((self.num_envs,), torch.int64),
        }

    @property
    def space(self) -> int:
        """Size of one rollout in a file, in bytes."""
        return sum(column.space for column in self.columns().values())


@dataclass(frozen=True)
class Rollout:
    """Allocated once and refilled for every update."""

    observations: Tensor  # [T, N, ...] bytes for images
    actions: Tensor  # [T, N] int64
    log_probs: Tensor  # [T, N] of the actions taken, under the policy that took them
    values: Tensor  # [T, N]
    next_values: Tensor  # [T, N] V(next state): 0 if terminated, of the true last state if truncated
    rewards: Tensor  # [T, N] raw
    dones: Tensor  # [T, N] bool, terminated or truncated
    last_observations: Tensor  # [N, ...] of the state after the last step, in which the next rollout begins
    envs: Tensor  # [N] int64, the numbers of the environments
    versions: Tensor  # [N] int64, how many updates the policy that acted had seen

    @property
    def n_steps(self) -> int:
        return self.rewards.shape[0]

    @property
    def num_envs(self) -> int:
        return self.rewards.shape[1]

    def first(self, n_steps: int) -> Rollout:
        """The first steps, as views."""
        return Rollout(
            **{name: column if name in PER_ENVIRONMENT else column[:n_steps] for name, column in self.columns().items()}
        )

    def of(self, envs: range) -> Rollout:
        """Copies of the trajectories that belong to `envs`."""
        chosen = ((self.envs >= envs.start) & (self.envs < envs.stop)).nonzero().squeeze(-1)
        return Rollout(
            **{
                name: column.index_select(0 if name in PER_ENVIRONMENT else 1, chosen)
                for name, column in self.columns().items()
            }
        )

    def columns(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def allocate(cls, n_steps: int, num_envs: int, spec: EnvironmentSpec) -> Rollout:
        columns = RolloutShape(n_steps, num_envs, spec).columns()
        return cls(**{name: torch.zeros(column.shape, dtype=column.dtype) for name, column in columns.items()})


class Slots:
    """Rollouts in a `slots_file`, shared by several processes without a copy."""

    def __init__(self, path: Path, shape: RolloutShape, num_slots: int) -> None:
        whole = map_file(path, num_slots * shape.space)
        self._rollouts = [_rollout_in(whole[k * shape.space :], shape) for k in range(num_slots)]

    def __len__(self) -> int:
        return len(self._rollouts)

    def __getitem__(self, slot: int) -> Rollout:
        return self._rollouts[slot]

    def __iter__(self) -> Iterator[Rollout]:
        return iter(self._rollouts)


def slots_file(shape: RolloutShape, num_slots: int, folder: Path | None = None) -> SharedFile:
    remedy = "use fewer environments or steps, or give another folder for the rollouts with --rollout-dir"
    return SharedFile(num_slots * shape.space, remedy, folder)


def mapped_rollout(shape: RolloutShape, folder: str | None) -> Rollout | None:
    """A rollout mapped from a file in the user's folder; None without a folder: allocate it in memory."""
    if folder is None:
        return None
    with slots_file(shape, 1, Path(folder)) as file:
        return Slots(file.path, shape, 1)[0]


def _rollout_in(memory: Tensor, shape: RolloutShape) -> Rollout:
    """A rollout whose tensors are views of `memory`."""
    tensors, start = {}, 0
    for name, column in shape.columns().items():
        part = memory[start : start + column.num_bytes]
        tensors[name] = part.view(column.dtype).view(column.shape)
        start += column.space
    return Rollout(**tensors)
