"""Slots: where each rollout of an actor is on its way from the actor to the learner.

    free -> acting -> ready -> learning -> free

Rollouts of a checkpoint come ready, in slots that belong to no actor and vanish once they are learnt.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

from rlcluster.learning.rollout import Rollout
from rlcluster.runs.episodes import Episode


class SlotState(enum.Enum):
    FREE = "free"
    ACTING = "acting"  # an actor has the order to fill it
    READY = "ready"  # filled, and pending
    LEARNING = "learning"


class Slot:
    """Room for one rollout."""

    def __init__(self, rollout: Rollout, actor: int | None = None, number: int = 0) -> None:
        """`number` is the actor's own. Without an actor it is filled from the beginning."""
        self.rollout, self.actor, self.number = rollout, actor, number
        self.state = SlotState.FREE
        self.ordered_at = 0  # updates of the learner when the order was given
        self.arrival = 0  # place among those that became ready
        self.episodes: Sequence[Episode] = ()  # that finished in it

    def order(self, updates: int) -> None:
        self._move(SlotState.FREE, SlotState.ACTING)
        self.ordered_at = updates

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
        """Pending rollouts of a checkpoint, in the order of their play."""
        for rollout, episodes in rollouts:
            slot = Slot(rollout)
            slot.order(0)
            self._slots.append(slot)
            self._fill(slot, episodes)

    def free(self, actor: int) -> Slot | None:
        """A free slot of an actor, if there is one."""
        return next((slot for slot in self.of(SlotState.FREE) if slot.actor == actor), None)

    def filled(self, actor: int, number: int, episodes: Sequence[Episode]) -> None:
        """An actor has followed its order."""
        slot = next(slot for slot in self._slots if (slot.actor, slot.number) == (actor, number))
        self._fill(slot, episodes)

    def ready(self) -> list[Slot]:
        """The oldest first."""
        return sorted(self.of(SlotState.READY), key=lambda slot: slot.arrival)

    def release(self) -> None:
        """What was being learnt is learnt."""
        for slot in self.of(SlotState.LEARNING):
            slot.release()
        self._slots = [slot for slot in self._slots if slot.state is not SlotState.FREE or slot.actor is not None]

    def oldest_order(self) -> int | None:
        """The updates of the learner when the oldest order was given that has not been followed."""
        return min((slot.ordered_at for slot in self.of(SlotState.ACTING)), default=None)

    def trajectories(self, *states: SlotState) -> int:
        return sum(slot.rollout.num_envs for slot in self.of(*states))

    def of(self, *states: SlotState) -> list[Slot]:
        return [slot for slot in self._slots if slot.state in states]

    def _fill(self, slot: Slot, episodes: Sequence[Episode]) -> None:
        slot.fill(episodes, self._arrivals)
        self._arrivals += 1
