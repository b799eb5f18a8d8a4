"""What a learner learns from: an update has one batch for each step of the optimiser, a batch is cut into chunks that
fit the caches. `minibatches` makes them of single samples, `trajectories` of whole trajectories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from torch import Tensor

from rlcluster.learning.losses import Loss, LossSums
from rlcluster.learning.rollout import Rollout
from rlcluster.networks.policy import Policy


class Batch(Protocol):
    """This rank's part of what one step of the optimiser learns from."""

    @property
    def num_own(self) -> int:
        """Samples of this rank."""

    @property
    def num_samples(self) -> float:
        """Samples of all ranks."""

    def losses(self, policy: Policy, loss: Loss) -> Iterator[LossSums]:
        """Of each chunk, with the graph for its backward pass."""


class Update(Protocol):
    """What one update learns from."""

    def batches(self, epoch: int) -> Sequence[Batch]:
        """In the order of the optimiser's steps."""

    def spread(self) -> Tensor:
        """For the explained variance, once the update is over: `sums.spread` of this rank's returns and values."""


# The rollouts of an update, and their rewards as they are to be learnt from.
MakeUpdate = Callable[[Sequence[Rollout], Sequence[Tensor]], Update]
