"""Rollout: the record of T steps in N environments that goes from the actor to the learner; and where it is kept, in
the memory of one process or in slots of a file that several processes have mapped.
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
        """Its bytes in whole cache lines."""
        return round_up_to_cache_line(self.num_bytes)


class RolloutShape(NamedTuple):
    """What decides how large a rollout is."""

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
        """Bytes of one rollout in a file."""
        return sum(column.space for column in self.columns().values())


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
        """The trajectories of those of `envs` that are in it, as copies."""
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
    """Rollouts that several processes share, without a copy, in a `slots_file`."""

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
    """One on a file in the user's folder; None if there is no such folder: it is to be in memory."""
    if folder is None:
        return None
    with slots_file(shape, 1, Path(folder)) as file:
        return Slots(file.path, shape, 1)[0]


def _rollout_in(memory: Tensor, shape: RolloutShape) -> Rollout:
    """A rollout whose tensors are parts of `memory`."""
    tensors, start = {}, 0
    for name, column in shape.columns().items():
        part = memory[start : start + column.num_bytes]
        tensors[name] = part.view(column.dtype).view(column.shape)
        start += column.space
    return Rollout(**tensors)
