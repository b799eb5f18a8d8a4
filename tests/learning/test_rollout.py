"""Rollouts in slots of a file: shared with another process, refused without space, gone when all have ended."""

from __future__ import annotations

import multiprocessing
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from rlcluster.environments.interface import EnvironmentSpec
from rlcluster.learning.rollout import Rollout, RolloutShape, Slots, slots_file
from rlcluster.system import shared_memory
from rlcluster.system.errors import UserError

SHAPE = RolloutShape(n_steps=5, num_envs=3, spec=EnvironmentSpec((8, 8, 3), np.dtype(np.uint8), 15))


def fill(path: Path, slot: int, number: int) -> None:
    slots = Slots(path, SHAPE, 2)
    for field in fields(Rollout):
        getattr(slots[slot], field.name).fill_(number)


def test_what_another_process_writes_is_seen_and_no_slot_touches_the_other(tmp_path: Path) -> None:
    file = slots_file(SHAPE, 2, tmp_path)
    slots = Slots(file.path, SHAPE, 2)
    context = multiprocessing.get_context("spawn")
    for slot, number in ((0, 7), (1, 1)):
        process = context.Process(target=fill, args=(file.path, slot, number))
        process.start()
        process.join()
        assert process.exitcode == 0
    file.close()
    for slot, number in ((0, 7), (1, 1)):
        for field in fields(Rollout):
            values = getattr(slots[slot], field.name)
            assert (values == (number if values.dtype != torch.bool else True)).all(), field.name


def test_a_slot_is_a_rollout_like_any_other(tmp_path: Path) -> None:
    with slots_file(SHAPE, 1, tmp_path) as file:
        in_file, in_memory = Slots(file.path, SHAPE, 1)[0], Rollout.allocate(*SHAPE)
    for field in fields(Rollout):
        ours, theirs = getattr(in_file, field.name), getattr(in_memory, field.name)
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        assert ours.is_contiguous()
        assert not ours.any()


def test_a_closed_file_is_used_on_and_leaves_nothing(tmp_path: Path) -> None:
    with slots_file(SHAPE, 2, tmp_path) as file:
        slots = Slots(file.path, SHAPE, 2)
    slots[1].rewards.fill_(3.0)
    assert slots[1].rewards.sum() == 45
    assert not list(tmp_path.iterdir())


def test_without_space_both_numbers_are_named_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_memory.os, "posix_fallocate", full)
    with pytest.raises(
        UserError, match=r"No space left on device: [\d,]+ MB free, 0 MB needed; .*--rollout-dir"
    ) as error:
        slots_file(SHAPE, 2, tmp_path)
    assert error.value.exit_code == 74
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"hardware.rollout_dir=.*nowhere cannot be written \(No such file or directory\)"
    ):
        slots_file(SHAPE, 2, tmp_path / "nowhere")


@pytest.mark.skipif(sys.platform != "linux", reason="files have names elsewhere")
def test_the_default_place_is_shared_memory_and_no_name_is_ever_left_there() -> None:
    with slots_file(SHAPE, 1) as file:
        assert file.path.readlink().parent == shared_memory.SHARED_MEMORY
        assert not list(shared_memory.SHARED_MEMORY.glob(file.path.readlink().name.split()[0]))


def test_the_first_steps_keep_the_last_observations() -> None:
    whole = Rollout.allocate(*SHAPE)
    part = whole.first(2)
    assert (part.n_steps, part.num_envs) == (2, 3)
    assert part.last_observations is whole.last_observations
    assert part.envs is whole.envs


def test_the_trajectories_of_some_environments_are_taken_with_all_their_columns() -> None:
    whole = Rollout.allocate(*SHAPE)
    whole.envs.copy_(torch.tensor([4, 5, 6]))
    for column, per_environment in ((whole.rewards, False), (whole.last_observations, True), (whole.versions, True)):
        for place in range(3):
            (column if per_environment else column.transpose(0, 1))[place].fill_(place)
    part = whole.of(range(5, 9))
    assert part.envs.tolist() == [5, 6]
    assert (part.n_steps, part.num_envs) == (5, 2)
    assert part.versions.tolist() == [1, 2]
    assert part.rewards[3].tolist() == [1.0, 2.0]
    assert part.last_observations[:, 0, 0, 0].tolist() == [1, 2]
