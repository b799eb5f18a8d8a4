"""Slots: the one way around, and which of them comes next."""

from __future__ import annotations

import numpy as np
import pytest

from rlcluster.environments.interface import EnvironmentSpec
from rlcluster.learning.rollout import Rollout
from rlcluster.runs.episodes import Episode
from rlcluster.training.slots import Slot, SlotBoard, SlotState

STEPS = ("assign", "fill", "take", "release")


def rollout(num_envs: int = 2) -> Rollout:
    return Rollout.allocate(3, num_envs, EnvironmentSpec((2,), np.dtype(np.float32), 2))


def walk(slot: Slot, step: str) -> None:
    arguments = {"assign": (5,), "fill": ([], 0)}.get(step, ())
    getattr(slot, step)(*arguments)


def test_a_slot_goes_round_and_every_other_step_is_refused() -> None:
    slot = Slot(rollout(), actor=3, number=1)
    states = [SlotState.FREE, SlotState.ACTING, SlotState.READY, SlotState.LEARNING]
    for state, allowed in zip(states, STEPS, strict=True):
        assert slot.state is state
        for step in set(STEPS) - {allowed}:
            with pytest.raises(RuntimeError, match=f"slot 1 of actor 3 is {state.value}, not "):
                walk(slot, step)
        walk(slot, allowed)
    assert slot.state is SlotState.FREE
    assert slot.assigned_at == 5


def test_the_board_knows_who_is_free_who_is_late_and_who_came_first() -> None:
    board = SlotBoard([Slot(rollout(1 + actor), actor, number) for actor in range(2) for number in range(2)])
    for actor, updates in ((0, 4), (1, 5), (1, 6)):
        slot = board.free(actor)
        assert slot is not None
        slot.assign(updates)
    assert board.free(1) is None
    assert board.oldest_assignment() == 4
    assert board.trajectories(SlotState.ACTING) == 1 + 2 + 2
    board.filled(1, 1, [Episode(0, 2, 1.0, 1)])
    board.filled(1, 0, [])
    assert [(slot.actor, slot.number) for slot in board.ready()] == [(1, 1), (1, 0)]
    assert board.ready()[0].episodes == [Episode(0, 2, 1.0, 1)]
    board.ready()[0].take()
    assert board.trajectories(SlotState.READY, SlotState.LEARNING) == 4
    board.release()
    assert (board.free(1), board.oldest_assignment()) == (board.of(SlotState.FREE)[-1], 4)


def test_rollouts_of_a_checkpoint_come_first_and_vanish_once_they_are_learnt() -> None:
    board = SlotBoard([Slot(rollout(), 0, 0)])
    board.restore([(rollout(), [Episode(0, 0, 1.0, 1)]), (rollout(), [])])
    slot = board.free(0)
    assert slot is not None
    slot.assign(0)
    board.filled(0, 0, [])
    assert [slot.actor for slot in board.ready()] == [None, None, 0]
    for slot in board.ready():
        slot.take()
    board.release()
    assert [(slot.actor, slot.state) for slot in board.of(*SlotState)] == [(0, SlotState.FREE)]
