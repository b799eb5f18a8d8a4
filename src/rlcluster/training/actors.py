"""The actors of one learner: their processes, their slots, and the parameters they act with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor

from rlcluster.environments.interface import EnvironmentSpec
from rlcluster.exchange.shared_parameters import SharedParameters, parameters_file
from rlcluster.learning.actor_state import ActorState
from rlcluster.learning.rollout import RolloutShape, Slots, slots_file
from rlcluster.plan import RankPlan
from rlcluster.profiling.recorder import ProcessName
from rlcluster.settings.schema import Settings
from rlcluster.system.machine import Memory
from rlcluster.training.actor_process import FillSlot, Setup, SlotFilled, act
from rlcluster.training.helpers import GetState, Helpers
from rlcluster.training.slots import Slot


class Actors:
    def __init__(
        self,
        settings: Settings,
        plan: RankPlan,
        spec: EnvironmentSpec,
        restored: ActorState | None,
        num_parameters: int,
    ) -> None:
        self.num_slots = settings.parallel.slots_per_actor  # of each
        shapes = [RolloutShape(settings.training.n_steps, len(own.envs), spec) for own in plan.helpers]
        folder = Path(settings.hardware.rollout_dir) if settings.hardware.rollout_dir is not None else None
        with ExitStack() as files:  # unnamed files: keep them open until all actors have mapped them
            parameters = files.enter_context(parameters_file(num_parameters))
            slots = [files.enter_context(slots_file(shape, self.num_slots, folder)) for shape in shapes]
            self._parameters = SharedParameters(parameters.path, num_parameters)
            pairs = zip(slots, shapes, strict=True)
            self._rollouts = [Slots(file.path, shape, self.num_slots) for file, shape in pairs]
            setups = [
                Setup(
                    settings_json=settings.model_dump_json(),
                    plan=own,
                    restored=restored.of(own.envs, plan.envs) if restored is not None else None,
                    slots=file.path,
                    num_slots=self.num_slots,
                    parameters=parameters.path,
                )
                for own, file in zip(plan.helpers, slots, strict=True)
            ]
            self._helpers = Helpers("actor", act, setups, settings.parallel.timeout_seconds)

    def __len__(self) -> int:
        return len(self._helpers)

    def publish(self, parameters: Tensor, version: int) -> None:
        self._parameters.publish(parameters, version)

    def fill(self, actor: int, slot: int, version: int | None) -> None:
        """Commands a rollout, with this version of the parameters or the newest."""
        self._helpers.send(actor, FillSlot(slot, version))

    def request_states(self) -> None:
        """Each actor will reply with its state, after the rollouts that it was commanded before."""
        for number in range(len(self)):
            self._helpers.send(number, GetState())

    def replies(self) -> list[tuple[int, SlotFilled | ActorState]]:
        """Waits for the next replies; returns each with the number of its actor."""
        return self._helpers.replies()

    def slots(self) -> list[Slot]:
        """Free slots for all actors."""
        return [
            Slot(rollout, actor, number)
            for actor, rollouts in enumerate(self._rollouts)
            for number, rollout in enumerate(rollouts)
        ]

    def memory(self) -> Memory:
        """Memory of all actors and of this process."""
        return self._helpers.memory()

    def start_recording(self, names: Sequence[ProcessName]) -> None:
        self._helpers.start_recording(names)

    def recordings(self) -> list[dict[str, Any]]:
        return self._helpers.recordings()

    def close(self) -> None:
        self._helpers.close()
