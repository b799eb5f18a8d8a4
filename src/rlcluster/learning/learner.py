"""Learner: a rollout -> minibatches -> chunks -> gradients -> exchange -> one step of the optimiser.

Gradients are sums over samples divided by the global count, computed in chunks that fit the caches. Parameters,
gradients and the optimiser's statistics each live in one flat buffer: one exchange, one norm, one fused step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rlcluster.environments.randomness import Purpose, generator
from rlcluster.exchange.ranks import Ranks
from rlcluster.exchange.shared_parameters import SharedTraining
from rlcluster.learning.losses import LOSSES, LossSums, Samples
from rlcluster.learning.optimizers import OPTIMIZERS, Optimizer
from rlcluster.learning.reward_normalizer import RewardNormalizer
from rlcluster.learning.rollout import Rollout
from rlcluster.learning.targets import Targets, VtraceCoefficients, gae, vtrace
from rlcluster.networks.policy import ActorCritic, PolicyOutput
from rlcluster.settings.schema import Settings
from rlcluster.system.errors import EXIT_RUN_FAILED, UserError

# What is summed over samples and minibatches, and then over ranks.
SUM_NAMES = (*LossSums._fields, "samples")


class LearnReport(NamedTuple):
    """Means over all samples of an update, over all ranks; the fields of the log."""

    loss: float
    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    clip_frac: float
    explained_variance: float | None  # None where all returns are equal
    grad_norm: float  # before clipping, mean over the optimiser's steps
    learning_rate: float


class Normal(NamedTuple):
    """What advantages are shifted and divided by; 0 and 1 where they are not to be normalised."""

    mean: float = 0.0
    std: float = 1.0

    def applied_to(self, samples: Samples) -> Samples:
        return samples._replace(advantages=(samples.advantages - self.mean) / self.std)


class Minibatch(NamedTuple):
    """This rank's samples of a minibatch, and what is known of all ranks' samples in it."""

    indices: Tensor  # t * N + n
    num_samples: float  # of all ranks
    normal: Normal


class Learnt(NamedTuple):
    """What an update leaves for its report: sums over this rank's samples."""

    sums: Tensor  # SUM_NAMES
    spread: Tensor  # of the value's errors and of the returns
    grad_norms: list[float]
    num_samples: float  # of all ranks, in one pass


class NotFiniteError(UserError):
    """The loss or the gradient is NaN or infinite; the parameters are still those before the step."""


class Learner:
    def __init__(
        self,
        settings: Settings,
        policy: ActorCritic,
        env_indices: range,
        ranks: Ranks,
        shared: SharedTraining | None = None,
    ) -> None:
        """With `shared`, steps of the optimiser go to parameters that other processes change as well (Hogwild); the
        policy's own follow them at each `pull`.
        """
        self.policy = policy
        self.updates = 0
        self.steps_global = 0
        self.is_synchronised = True  # all ranks hold the same parameters
        self._settings, self._training, self._parallel = settings, settings.training, settings.parallel
        self._env_indices, self._ranks = env_indices, ranks
        self._exchanges_gradients = settings.parallel.sync_strategy == "gradients" or ranks.world_size == 1
        self._sum_gradients = ranks.sum_bfloat16_ if settings.parallel.wire_dtype == "bfloat16" else ranks.sum_
        self._loss = LOSSES[settings.traits.loss]
        self._flat = FlatParameters(policy)
        self._stepped = self.parameters if shared is None else shared.parameters
        self._optimizer: Optimizer = OPTIMIZERS[settings.optimizer](len(self._stepped), settings.training)
        if shared is not None:
            self._optimizer.state["square_avg"] = shared.squares
        self._learning_rate = settings.training.learning_rate  # of this update
        self._chunk_size = settings.hardware.chunk_size or policy.chunk_size
        training = settings.training
        self._vtrace = VtraceCoefficients(training.gamma, training.gae_lambda, training.rho_bar, training.c_bar)
        self.normalizer = RewardNormalizer(env_indices, settings.training.gamma, settings.training.reward_clip, ranks)

    @property
    def parameters(self) -> Tensor:
        """All of them, flat; the policy's tensors are parts of it."""
        return self._flat.parameters

    def pull(self) -> None:
        """The policy takes the shared parameters as they are now."""
        self.parameters.copy_(self._stepped)

    def push(self) -> None:
        """The shared parameters become the policy's."""
        self._stepped.copy_(self.parameters)

    def learn(self, rollouts: Sequence[Rollout], progress: float) -> LearnReport:
        """One update. `progress` is the share of the budget already spent, for the learning rate."""
        if self._training.anneal_learning_rate:
            self._learning_rate = self._training.learning_rate * (1 - progress)
        corrects_lag = self._settings.traits.targets == "vtrace"
        learnt = self._learn_trajectories(rollouts) if corrects_lag else self._learn_samples(*rollouts)
        self.updates += 1
        self.steps_global += round(learnt.num_samples)
        self.is_synchronised = self._exchanges_gradients
        if self.updates % self._parallel.sync_updates == 0:
            self.synchronise()
        grad_norm = torch.tensor([sum(learnt.grad_norms) / len(learnt.grad_norms)], dtype=torch.float64)
        totals = self._ranks.sum_(torch.cat([learnt.sums, learnt.spread, grad_norm]))
        return LearnReport(
            **_means(totals[: len(SUM_NAMES)]),
            explained_variance=explained_variance(totals[len(SUM_NAMES) : -1], learnt.num_samples),
            grad_norm=float(totals[-1]) / self._ranks.world_size,
            learning_rate=self._learning_rate,
        )

    def synchronise(self) -> None:
        """Averages the parameters and the optimiser's statistics over the ranks, where they differ."""
        if self.is_synchronised:
            return
        statistics = (value for value in self._optimizer.state.values() if value.dim())
        for values in (self._stepped, *statistics):
            self._ranks.sum_(values).div_(self._ranks.world_size)
        self.pull()
        self.is_synchronised = True

    def state(self) -> dict[str, Any]:
        """Everything that a continued run needs, as tensors and numbers."""
        return {
            "parameters": {name: _copy(value) for name, value in self.policy.state_dict().items()},
            "optimizer": {name: _copy(value) for name, value in self._optimizer.state.items()},
            "reward_normalizer": self.normalizer.state(),
            "updates": self.updates,
            "steps_global": self.steps_global,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["parameters"])
        self.push()
        for name, value in state["optimizer"].items():
            self._optimizer.state[name].copy_(value)  # in place: it may be shared
        self.normalizer.restore(state["reward_normalizer"])
        self.updates = state["updates"]
        self.steps_global = state["steps_global"]

    def ranks_agree(self) -> bool:
        """True while all ranks hold the same parameters, to the bit."""
        return self._ranks.agree_on(self._flat.parameters)

    def _rewards(self, rollouts: Sequence[Rollout]) -> list[Tensor]:
        if self._training.normalize_rewards:
            return self.normalizer(rollouts)
        return [rollout.rewards for rollout in rollouts]

    def _targets(self, rollout: Rollout) -> Targets:
        training, (rewards,) = self._training, self._rewards([rollout])
        return gae(rewards, rollout.values, rollout.next_values, rollout.dones, training.gamma, training.gae_lambda)

    def _learn_samples(self, rollout: Rollout) -> Learnt:
        """Epochs of minibatches; targets from the policy that acted, once."""
        targets = self._targets(rollout)
        samples = _flatten(rollout, targets)
        sums = torch.zeros(len(SUM_NAMES), dtype=torch.float64)
        grad_norms: list[float] = []
        for epoch in range(self._settings.n_epochs):
            minibatches = self._minibatches(epoch, samples.advantages)
            epoch_sums = self._learn_epoch(rollout, samples, minibatches, grad_norms)
            sums += epoch_sums
            target_kl = self._training.target_kl
            if target_kl is not None and _means(self._ranks.sum_(epoch_sums.clone()))["approx_kl"] > target_kl:
                break
        num_samples = sum(minibatch.num_samples for minibatch in minibatches)
        return Learnt(sums, _spread(targets.returns, rollout.values), grad_norms, num_samples)

    def _learn_trajectories(self, rollouts: Sequence[Rollout]) -> Learnt:
        """One step on the whole rollouts, in chunks of whole trajectories: each has its targets within itself."""
        own = sum(rollout.rewards.numel() for rollout in rollouts)
        num_samples = float(self._ranks.sum_(torch.tensor([own], dtype=torch.float64)))
        count = num_samples if self._exchanges_gradients else own
        self._flat.exchanged.zero_()
        sums, spread = torch.zeros(len(SUM_NAMES), dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
        pairs = zip(rollouts, self._rewards(rollouts), strict=True)
        completed = [self._completed(rollout, rewards) for rollout, rewards in pairs]
        normal = self._advantage_statistics(completed)
        for rollout, envs in self._trajectory_chunks(completed):
            sums_of_losses, targets, values = self._trajectory_losses(rollout, envs, normal)
            sums[:-1] += self._accumulate(sums_of_losses, count)
            spread += _spread(targets.returns, values)
        sums[-1] = own
        return Learnt(sums, spread, [self.apply_gradients()], num_samples)

    def _completed(self, rollout: Rollout, rewards: Tensor) -> Rollout:
        """The rollout with these rewards, and with the value of the state where each trajectory ends; those who
        acted leave it to the policy that learns.
        """
        with torch.no_grad():
            last_values = self.policy(rollout.last_observations).values
        next_values = rollout.next_values.clone()
        next_values[-1] = torch.where(rollout.dones[-1], next_values[-1], last_values)
        return replace(rollout, rewards=rewards, next_values=next_values)

    def _trajectory_chunks(self, rollouts: Sequence[Rollout]) -> Iterator[tuple[Rollout, slice]]:
        """Each rollout with the environments of each chunk."""
        for rollout in rollouts:
            num_envs = max(1, self._chunk_size // rollout.n_steps)
            for start in range(0, rollout.num_envs, num_envs):
                yield rollout, slice(start, start + num_envs)

    def _advantage_statistics(self, rollouts: Sequence[Rollout]) -> Normal:
        """Over all ranks, by a forward pass of its own. Those of the policy that acted would save it, but after a step
        that moves the values they are far from what is learnt: such runs were seen to lose all entropy.
        """
        if not self._training.normalize_advantages:
            return Normal()
        sums = torch.zeros(3, dtype=torch.float64)
        with torch.no_grad():
            for rollout, envs in self._trajectory_chunks(rollouts):
                targets, _ = self._trajectory_targets(rollout, envs, self._trajectory_outputs(rollout, envs))
                sums += _moments(targets.advantages)
        return _normal(*self._ranks.sum_(sums).tolist())

    def _trajectory_outputs(self, rollout: Rollout, envs: slice) -> PolicyOutput:
        """[T * n] of the trajectories of some environments."""
        output: PolicyOutput = self.policy(rollout.observations[:, envs].flatten(0, 1))
        return output

    def _trajectory_targets(self, rollout: Rollout, envs: slice, output: PolicyOutput) -> tuple[Targets, Tensor]:
        """[T, n], and the values that they correct."""
        logits = output.logits.detach().view(rollout.n_steps, -1, output.logits.shape[-1])
        values = output.values.detach().view(rollout.n_steps, -1)
        actions, dones, log_probs = (column[:, envs] for column in (rollout.actions, rollout.dones, rollout.log_probs))
        log_ratios = torch.log_softmax(logits, -1).gather(-1, actions.unsqueeze(-1)).squeeze(-1) - log_probs
        given = rollout.next_values[:, envs]
        next_values = torch.where(dones, given, torch.cat([values[1:], given[-1:]]))
        return vtrace(rollout.rewards[:, envs], values, next_values, dones, log_ratios, self._vtrace), values

    def _trajectory_losses(self, rollout: Rollout, envs: slice, normal: Normal) -> tuple[LossSums, Targets, Tensor]:
        """Of the trajectories of some environments; their targets, and the values that these correct."""
        output = self._trajectory_outputs(rollout, envs)
        targets, values = self._trajectory_targets(rollout, envs, output)
        given = (column[:, envs] for column in (rollout.actions, rollout.log_probs, rollout.values))
        samples = Samples(*(column.flatten() for column in (*given, *targets)))
        return self._loss(output, normal.applied_to(samples), self._training), targets, values

    def _learn_epoch(
        self, rollout: Rollout, samples: Samples, minibatches: list[Minibatch], grad_norms: list[float]
    ) -> Tensor:
        """One pass over the rollout, an optimiser's step per minibatch; returns this rank's sums (SUM_NAMES)."""
        sums = torch.zeros(len(SUM_NAMES), dtype=torch.float64)
        for indices, count, normal in minibatches:
            own = normal.applied_to(Samples(*(column[indices] for column in samples)))
            sums += self.compute_gradients(rollout, indices, own, count if self._exchanges_gradients else len(indices))
            grad_norms.append(self.apply_gradients())
        return sums

    def compute_gradients(self, rollout: Rollout, indices: Tensor, minibatch: Samples, count: float) -> Tensor:
        """Fills the flat gradient with this rank's part of the mean over `count` samples, those of all ranks if they
        exchange gradients; returns its sums (SUM_NAMES).
        """
        observations = rollout.observations.flatten(0, 1)
        self._flat.exchanged.zero_()
        sums = torch.zeros(len(SUM_NAMES), dtype=torch.float64)
        for start in range(0, len(indices), self._chunk_size):
            part = slice(start, start + self._chunk_size)
            output = self.policy(observations.index_select(0, indices[part]))  # copies whole rows; [] copies values
            found = self._loss(output, Samples(*(column[part] for column in minibatch)), self._training)
            sums[:-1] += self._accumulate(found, count)
        sums[-1] = len(indices)
        return sums

    def _accumulate(self, found: LossSums, count: float) -> Tensor:
        """Adds the gradient of a chunk's part of the mean over `count` samples; returns the chunk's sums."""
        mean = found.loss / count
        mean.backward()  # type: ignore[no-untyped-call]
        self._flat.loss += mean.detach()
        return torch.stack([value.detach().double() for value in found])

    def apply_gradients(self) -> float:
        """Sums the gradients of all ranks, clips them and steps the optimiser; returns the norm before clipping."""
        if self._exchanges_gradients:
            self._sum_gradients(self._flat.exchanged)
        loss, grad_norm = float(self._flat.loss), float(self._flat.gradients.norm())
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise NotFiniteError(
                f"update {self.updates + 1}: the loss is {loss} and the gradient's norm {grad_norm}; stopped before "
                f"the optimiser's step. Lower training.learning_rate={self._training.learning_rate} in a new run",
                EXIT_RUN_FAILED,
            )
        limit = self._training.max_grad_norm
        if limit is not None and grad_norm > limit:
            self._flat.gradients.mul_(limit / grad_norm)
        self._optimizer.step(self._stepped, self._flat.gradients, self._learning_rate)
        return grad_norm

    def _minibatches(self, epoch: int, advantages: Tensor) -> list[Minibatch]:
        """The minibatches of an epoch, with the statistics of the advantages of all ranks' samples in each."""
        slices = self._slices(epoch, len(advantages) // len(self._env_indices))
        normalizes = self._training.normalize_advantages
        if not normalizes and not self._parallel.preempt_stragglers:
            return [Minibatch(indices, self._settings.batch_size, Normal()) for indices in slices]
        sums = torch.zeros(len(slices), 3, dtype=torch.float64)
        for row, indices in zip(sums, slices, strict=True):
            row.copy_(_moments(advantages[indices]))
        return [
            Minibatch(indices, moments[0], _normal(*moments) if normalizes else Normal())
            for indices, moments in zip(slices, self._ranks.sum_(sums).tolist(), strict=True)
        ]

    def _slices(self, epoch: int, n_steps: int) -> list[Tensor]:
        """Stratified: each environment's steps are shuffled by its own stream, minibatch k is the k-th slice of each.

        So the global minibatch is the same set of samples for any number of ranks. Indices are t * N + n.
        """
        num_envs = len(self._env_indices)
        if self._settings.num_minibatches == 1:
            return [torch.arange(n_steps * num_envs)]
        position = self.updates * self._settings.n_epochs + epoch
        streams = (generator(self._settings.env.seed, Purpose.SHUFFLE, i, position) for i in self._env_indices)
        order = np.stack([stream.permutation(n_steps) for stream in streams], 1) * num_envs + np.arange(num_envs)
        slices = np.array_split(order, self._settings.num_minibatches)  # each [T / K, N]
        return [torch.from_numpy(part.reshape(-1)) for part in slices]


class FlatParameters:
    """The parameters of a module and their gradients as two flat buffers; the module's tensors become views.

    The loss travels with the gradients, so that all ranks see the same one: `exchanged` holds both.
    """

    def __init__(self, module: nn.Module) -> None:
        tensors = list(module.parameters())
        size = count_parameters(module)
        self.parameters = torch.empty(size)
        self.exchanged = torch.zeros(size + 1)
        self.gradients, self.loss = self.exchanged[:size], self.exchanged[size:]
        start = 0
        for tensor in tensors:
            strides = tensor.stride()
            view = self.parameters.as_strided(tensor.shape, strides, start)
            view.copy_(tensor.detach())
            tensor.data = view
            tensor.grad = self.gradients.as_strided(tensor.shape, strides, start)
            start += tensor.numel()


def count_parameters(module: nn.Module) -> int:
    return sum(tensor.numel() for tensor in module.parameters())


def _copy(value: Tensor) -> Tensor:
    return value.detach().clone(memory_format=torch.contiguous_format)


def _flatten(rollout: Rollout, targets: Targets) -> Samples:
    """Samples [T * N], in the order of the rollout."""
    columns = (rollout.actions, rollout.log_probs, rollout.values, targets.advantages, targets.returns)
    return Samples(*(column.flatten() for column in columns))


def _moments(values: Tensor) -> Tensor:
    """Count, sum and sum of squares."""
    values = values.double()
    return torch.stack([values.new_tensor(values.numel()), values.sum(), values.square().sum()])


def _normal(count: float, total: float, squares: float) -> Normal:
    """From the moments of all ranks."""
    mean = total / count
    return Normal(mean, math.sqrt(max(0.0, squares / count - mean * mean)) + 1e-8)


def _means(totals: Tensor) -> dict[str, float]:
    """The losses per sample, from the sums of all ranks (SUM_NAMES)."""
    *losses, num_samples = totals.tolist()
    return {name: total / num_samples for name, total in zip(LossSums._fields, losses, strict=True)}


def _spread(returns: Tensor, values: Tensor) -> Tensor:
    """Sums and sums of squares of the value's errors and of the returns."""
    errors, returns = (returns - values).double(), returns.double()
    return torch.stack([errors.sum(), errors.square().sum(), returns.sum(), returns.square().sum()])


def explained_variance(spread: Tensor, count: float) -> float | None:
    """1 - Var[R - V] / Var[R]: 1 is a perfect value function, 0 is no better than a constant."""
    error_sum, error_squares, return_sum, return_squares = (float(value) for value in spread)
    variance = return_squares / count - (return_sum / count) ** 2
    if variance <= 1e-12:
        return None
    return 1 - (error_squares / count - (error_sum / count) ** 2) / variance
