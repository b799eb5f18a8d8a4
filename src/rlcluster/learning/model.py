"""Model: all that learning changes, and that a checkpoint keeps of it. The parameters of the policy, the optimiser's
statistics, those of the rewards, and the counters.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlcluster.exchange.ranks import Ranks
from rlcluster.exchange.shared_parameters import HogwildParameters, HogwildShape
from rlcluster.learning.flat import FlatParameters, count_parameters
from rlcluster.learning.optimizers import OPTIMIZERS, Optimizer
from rlcluster.learning.reward_normalizer import RewardNormalizer
from rlcluster.networks.policy import Policy
from rlcluster.settings.algorithms import OPTIMIZER_STATISTICS
from rlcluster.settings.schema import Settings


class Model:
    """One rank's, or one worker's."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        envs: range,
        ranks: Ranks,
        shared: HogwildParameters | None = None,
    ) -> None:
        """With `shared`, the optimiser steps parameters that other processes step as well; the policy's own follow
        them at each `pull`.
        """
        training = settings.training
        self.policy, self.envs = policy, envs
        self.flat = FlatParameters(policy)
        self.updates = 0
        self.steps_global = 0
        self.is_synchronised = True  # all ranks hold the same parameters
        self.normalizer = RewardNormalizer(envs, training.gamma, training.reward_clip, ranks)
        self._ranks = ranks
        self._stepped = self.parameters if shared is None else shared.parameters
        self.optimizer: Optimizer = OPTIMIZERS[settings.optimizer](len(self._stepped), training)
        if shared is not None:
            self.optimizer.state = shared.optimizer_state

    @property
    def parameters(self) -> Tensor:
        """The policy's, flat."""
        return self.flat.parameters

    def step(self, learning_rate: float) -> None:
        """One step of the optimiser by the gradients that are there."""
        self.optimizer.step(self._stepped, self.flat.gradients, learning_rate)

    def pull(self) -> None:
        """The policy takes the shared parameters as they are now."""
        self.parameters.copy_(self._stepped)

    def push(self) -> None:
        """The shared parameters become the policy's."""
        self._stepped.copy_(self.parameters)

    def synchronise(self) -> None:
        """Averages the parameters and the optimiser's statistics over the ranks, where they differ."""
        if self.is_synchronised:
            return
        statistics = (value for value in self.optimizer.state.values() if value.dim())
        for values in (self._stepped, *statistics):
            self._ranks.sum_(values).div_(self._ranks.world_size)
        self.pull()
        self.is_synchronised = True

    def ranks_agree(self) -> bool:
        """True while all ranks hold the same parameters, to the bit."""
        return self._ranks.agree_on(self.parameters)

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs, as tensors and numbers."""
        return {
            "parameters": {name: _copy(value) for name, value in self.policy.state_dict().items()},
            "optimizer": {name: _copy(value) for name, value in self.optimizer.state.items()},
            "reward_normalizer": self.normalizer.state(),
            "updates": self.updates,
            "steps_global": self.steps_global,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["parameters"])
        self.push()
        kept = state["optimizer"]
        shapes, own = ({name: value.shape for name, value in one.items()} for one in (kept, self.optimizer.state))
        if shapes != own:  # copy_ would broadcast
            raise ValueError(f"optimiser statistics of shapes {shapes}, not {own}")
        for name, value in kept.items():
            self.optimizer.state[name].copy_(value)  # in place: it may be shared
        self.normalizer.restore(state["reward_normalizer"])
        self.updates = state["updates"]
        self.steps_global = state["steps_global"]

    def begin_from(self, state: dict[str, Any]) -> None:
        """A warm start: the parameters of another run and, where they are given, its statistics and counters. Its
        running episodes are not ours.
        """
        self.policy.load_state_dict(state["parameters"])
        self.push()
        for name, value in state.get("optimizer", {}).items():
            self.optimizer.state[name].copy_(value)
        if "reward_normalizer" in state:
            self.normalizer.set(torch.zeros(len(self.envs)), state["reward_normalizer"]["moments"])
        self.updates, self.steps_global = state.get("updates", 0), state.get("steps_global", 0)


def hogwild_shape(settings: Settings, policy: Policy, num_workers: int) -> HogwildShape:
    """Of the memory that A3C's workers share."""
    return HogwildShape(count_parameters(policy), num_workers, OPTIMIZER_STATISTICS[settings.optimizer])


def _copy(value: Tensor) -> Tensor:
    return value.detach().clone(memory_format=torch.contiguous_format)
