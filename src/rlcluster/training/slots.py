"""Slots: shared memory for rollouts, and where each is on its way from an actor to the learner.

    free -> acting -> ready -> learning -> free

Pending rollouts of a checkpoint start as ready, in slots that belong to no actor and are dropped once learnt.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

from rlcluster.learning.rollout import Rollout
from rlcluster.runs.episodes import Episode


class SlotState(enum.Enum):
    FREE = "free"
    ACTING = "acting"  # an actor is filling it
    READY = "ready"  # filled; its rollout is pending
    LEARNING = "learning"


class Slot:
    """Holds one rollout."""

    def __init__(self, rollout: Rollout, actor: int | None = None, number: int = 0) -> None:
        """`number` is its index among the slots of its actor."""
        self.rollout, self.actor, self.number = rollout, actor, number
        self.state = SlotState.FREE
        self.assigned_at = 0  # the learner's update count at the time
        self.arrival = 0  # order in which slots became ready
        self.episodes: Sequence[Episode] = ()  # finished in the rollout

    def assign(self, updates: int) -> None:
        self._move(SlotState.FREE, SlotState.ACTING)
        self.assigned_at = updates

    def fill(self, episodes: Sequence[Episode], arrival: int) -> None:
        self._move(SlotState.ACTING, SlotState.READY)
        self.episodes, self.arrival = episodes, arrival

    def take(self) -> None:
        self._move(SlotState.READY, SlotState.LEARNING)

    def release(self) -> None:
        self._move(SlotState.LEARNING, SlotState.FREE)

    def _move(self, before: SlotState, after: SlotState) -> None:
        if self.state is not before:
            raise RuntimeError(f"slot {self.number} of actor {self.actor} is {self.state.value}, not {before.value}")
        self.state = after


class SlotBoard:
    """All slots of one learner."""

    def __init__(self, slots: Iterable[Slot]) -> None:
        self._slots = list(slots)
        self._arrivals = 0

    def restore(self, rollouts: Iterable[tuple[Rollout, Sequence[Episode]]]) -> None:
        """Adds the pending rollouts of a checkpoint, in the order in which they were played."""
        for rollout, episodes in rollouts:
            slot = Slot(rollout)
            slot.assign(0)
            self._slots.append(slot)
            self._fill(slot, episodes)

    def free(self, actor: int) -> Slot | None:
        """A free slot of this actor, or None."""
        return next((slot for slot in self.of(SlotState.FREE) if slot.actor == actor), None)

    def filled(self, actor: int, number: int, episodes: Sequence[Episode]) -> None:
        """Marks the slot that an actor has filled as ready."""
        slot = next(slot for slot in self._slots if (slot.actor, slot.number) == (actor, number))
        self._fill(slot, episodes)

    def ready(self) -> list[Slot]:
        """Ready slots, oldest first."""
        return sorted(self.of(SlotState.READY), key=lambda slot: slot.arrival)

    def release(self) -> None:
        """Frees the slots whose rollouts have been learnt."""
        for slot in self.of(SlotState.LEARNING):
            slot.release()
        self._slots = [slot for slot in self._slots if slot.state is not SlotState.FREE or slot.actor is not None]

    def oldest_assignment(self) -> int | None:
        """The learner's update count when the oldest acting slot was assigned; None if no actor is acting."""
        return min((slot.assigned_at for slot in self.of(SlotState.ACTING)), default=None)

    def trajectories(self, *states: SlotState) -> int:
        return sum(slot.rollout.num_envs for slot in self.of(*states))

    def of(self, *states: SlotState) -> list[Slot]:
        return [slot for slot in self._slots if slot.state in states]

    def _fill(self, slot: Slot, episodes: Sequence[Episode]) -> None:
        slot.fill(episodes, self._arrivals)
        self._arrivals += 1
