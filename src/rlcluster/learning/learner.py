"""Learner: rollouts -> batches -> gradients -> all-reduce -> one step of the optimiser, for every algorithm.

Gradients are sums over samples divided by the global count, so neither chunks nor ranks change them beyond rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rlcluster.exchange.ranks import Ranks
from rlcluster.learning.batches import Batch, MakeUpdate
from rlcluster.learning.losses import LOSSES, Loss
from rlcluster.learning.minibatches import Minibatches
from rlcluster.learning.model import Model
from rlcluster.learning.rollout import Rollout
from rlcluster.learning.sums import NUM_SCALARS, explained_variance, information, loss_sums, mean_losses, no_losses
from rlcluster.learning.trajectories import Trajectories
from rlcluster.settings.schema import Settings
from rlcluster.system.errors import EXIT_RUN_FAILED, UserError
from rlcluster.system.phases import clock

UPDATES: dict[str, type[Minibatches] | type[Trajectories]] = {"gae": Minibatches, "vtrace": Trajectories}


class LearnReport(NamedTuple):
    """Means over all samples of an update, over all ranks; fields of the log."""

    loss: float
    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    clip_frac: float
    explained_variance: float | None  # None where all returns are equal
    grad_norm: float  # before clipping, mean over the optimiser's steps
    learning_rate: float
    action_information: float | None = None  # None in checkpoints of earlier versions


class NotFiniteError(UserError):
    """The loss or the gradient is NaN or infinite; the parameters are still those before the step."""


class Learner:
    """Changes a model."""

    def __init__(self, settings: Settings, model: Model, ranks: Ranks) -> None:
        self.model = model
        self._settings, self._training, self._ranks = settings, settings.training, ranks
        self._exchanges_gradients = settings.parallel.sync_strategy == "gradients" or ranks.world_size == 1
        self._sum_gradients = ranks.sum_bfloat16_ if settings.parallel.wire_dtype == "bfloat16" else ranks.sum_
        loss_function = LOSSES[settings.loss]
        self._loss: Loss = lambda output, samples: loss_function(output, samples, settings.training)
        self._num_actions = model.policy.num_actions
        chunk_size = settings.hardware.chunk_size or model.policy.chunk_size
        self._make_update: MakeUpdate = UPDATES[settings.traits.targets](settings, model, ranks, chunk_size)

    def learn(self, rollouts: Sequence[Rollout], progress: float) -> LearnReport:
        """One update. `progress` is the share of the budget already spent, for the learning rate."""
        learning_rate = self._training.learning_rate
        if self._training.anneal_learning_rate:
            learning_rate *= 1 - progress
        with clock("targets"):
            update = self._make_update(rollouts, self._rewards(rollouts))
            sums, grad_norms = no_losses(self._num_actions), list[float]()
        for epoch in range(self._settings.n_epochs):
            with clock("shuffle"):
                epoch_sums, batches = no_losses(self._num_actions), update.batches(epoch)
            for batch in batches:
                with clock("minibatch"):
                    epoch_sums += self.compute_gradients(batch)
                    self.exchange()
                    grad_norms.append(self.apply_gradients(learning_rate))
            sums += epoch_sums
            if self._has_moved_enough(epoch_sums):
                break
        with clock("checks"):
            num_samples = sum(batch.num_samples for batch in batches)
            self._count(num_samples)
            return self._report(sums, update.spread(), grad_norms, num_samples, learning_rate)

    def compute_gradients(self, batch: Batch) -> Tensor:
        """Fills the flat gradient with this rank's part of the batch's mean; returns this rank's `loss_sums`."""
        flat, sums = self.model.flat, no_losses(self._num_actions)
        flat.exchanged.zero_()
        count = batch.num_samples if self._exchanges_gradients else batch.num_own
        for losses in batch.losses(self.model.policy, self._loss):
            with clock("backward"):
                mean = losses.loss / count
                mean.backward()  # type: ignore[no-untyped-call]
            with clock("loss"):
                flat.loss += mean.detach()
                sums += loss_sums(losses)
        sums[NUM_SCALARS - 1] = batch.num_own
        return sums

    def exchange(self) -> None:
        """Sums the gradients of all ranks, and the loss that travels with them."""
        if self._exchanges_gradients:
            self._sum_gradients(self.model.flat.exchanged)

    def apply_gradients(self, learning_rate: float) -> float:
        """Clips the gradients and steps the optimiser; returns the norm before clipping."""
        with clock("optimiser"):
            return self._apply_gradients(learning_rate)

    def _apply_gradients(self, learning_rate: float) -> float:
        flat = self.model.flat
        loss, grad_norm = float(flat.loss), float(flat.gradients.norm())
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise NotFiniteError(
                f"update {self.model.updates + 1}: the loss is {loss} and the gradient's norm {grad_norm}; stopped "
                f"before the optimiser's step. Lower training.learning_rate={self._training.learning_rate} in a new "
                "run",
                EXIT_RUN_FAILED,
            )
        limit = self._training.max_grad_norm
        if limit is not None and grad_norm > limit:
            flat.gradients.mul_(limit / grad_norm)
        self.model.step(learning_rate)
        return grad_norm

    def _rewards(self, rollouts: Sequence[Rollout]) -> list[Tensor]:
        if self._training.normalize_rewards:
            return self.model.normalizer(rollouts)
        return [rollout.rewards for rollout in rollouts]

    def _has_moved_enough(self, epoch_sums: Tensor) -> bool:
        target_kl = self._training.target_kl
        return target_kl is not None and mean_losses(self._ranks.sum_(epoch_sums.clone()))["approx_kl"] > target_kl

    def _count(self, num_samples: float) -> None:
        model = self.model
        model.updates += 1
        model.steps_global += round(num_samples)
        model.is_synchronised = self._exchanges_gradients
        if model.updates % self._settings.parallel.sync_updates == 0:
            model.synchronise()

    def _report(
        self, sums: Tensor, spread: Tensor, grad_norms: list[float], num_samples: float, learning_rate: float
    ) -> LearnReport:
        """From this rank's sums, with one all-reduce."""
        grad_norm = torch.tensor([sum(grad_norms) / len(grad_norms)], dtype=torch.float64)
        totals = self._ranks.sum_(torch.cat([sums, spread, grad_norm]))
        return LearnReport(
            **mean_losses(totals),
            action_information=information(totals[: len(sums)]),
            explained_variance=explained_variance(totals[len(sums) : -1], num_samples),
            grad_norm=float(totals[-1]) / self._ranks.world_size,
            learning_rate=learning_rate,
        )
