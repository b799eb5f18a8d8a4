"""The actors of one learner: their processes, the slots that they fill, and the parameters that they act with."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from torch import Tensor

from rlcluster.environments.interface import EnvironmentSpec
from rlcluster.exchange.shared_parameters import SharedParameters, parameters_file
from rlcluster.learning.actor_state import ActorState
from rlcluster.learning.rollout import RolloutShape, Slots, slots_file
from rlcluster.plan import RankPlan
from rlcluster.settings.schema import Settings
from rlcluster.system.machine import Memory
from rlcluster.training.actor_process import Assignment, Fill, Filled, act
from rlcluster.training.helpers import Helpers, TellState
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
        with ExitStack() as files:  # they have no names: open until all actors have mapped them
            parameters = files.enter_context(parameters_file(num_parameters))
            slots = [files.enter_context(slots_file(shape, self.num_slots, folder)) for shape in shapes]
            self._parameters = SharedParameters(parameters.path, num_parameters)
            pairs = zip(slots, shapes, strict=True)
            self._rollouts = [Slots(file.path, shape, self.num_slots) for file, shape in pairs]
            assignments = [
                Assignment(
                    settings_json=settings.model_dump_json(),
                    plan=own,
                    restored=restored.of(own.envs, plan.envs) if restored is not None else None,
                    slots=file.path,
                    num_slots=self.num_slots,
                    parameters=parameters.path,
                )
                for own, file in zip(plan.helpers, slots, strict=True)
            ]
            self._helpers = Helpers("actor", act, assignments, settings.parallel.timeout_seconds)

    def __len__(self) -> int:
        return len(self._helpers)

    def publish(self, parameters: Tensor, version: int) -> None:
        self._parameters.publish(parameters, version)

    def fill(self, actor: int, slot: int, version: int | None) -> None:
        """Orders a rollout, with the parameters of this version or with the newest."""
        self._helpers.send(actor, Fill(slot, version))

    def ask_states(self) -> None:
        """Each actor will answer with its state, after the rollouts that were ordered before."""
        for number in range(len(self)):
            self._helpers.send(number, TellState())

    def answers(self) -> list[tuple[int, Filled | ActorState]]:
        """Waits for the next ones; each with the number of its actor."""
        return self._helpers.answers()

    def slots(self) -> list[Slot]:
        """Of all actors, free."""
        return [
            Slot(rollout, actor, number)
            for actor, rollouts in enumerate(self._rollouts)
            for number, rollout in enumerate(rollouts)
        ]

    def memory(self) -> Memory:
        """Of all actors and of this process."""
        return self._helpers.memory()

    def close(self) -> None:
        self._helpers.close()
