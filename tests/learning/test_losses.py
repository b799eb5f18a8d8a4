"""Losses against the literal formulas, finite differences and each other."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlcluster.learning.losses import LossSums, Samples, a2c_loss, ppo_loss
from rlcluster.networks.policy import PolicyOutput
from rlcluster.settings.schema import TrainingSettings

B, A = 7, 5
TRAINING = TrainingSettings(clip_range=0.1, clip_value_range=0.3, entropy_coefficient=0.02, value_coefficient=0.7)


def problem(seed: int = 0, spread: float = 0.3) -> tuple[Tensor, Tensor, Samples]:
    draws = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=draws, dtype=torch.float64)  # noqa: E731
    logits, values = normal(B, A), normal(B)
    actions = torch.randint(0, A, (B,), generator=draws)
    taken = torch.log_softmax(logits, -1).gather(-1, actions[:, None]).squeeze(-1)
    return logits, values, Samples(actions, taken + spread * normal(B), values + normal(B), normal(B), normal(B))


def literal_ppo(logits: Tensor, values: Tensor, samples: Samples, training: TrainingSettings) -> float:
    """Equations 7 and 9 of arXiv 1707.06347, one sample after the other."""
    total = 0.0
    for b in range(B):
        probabilities = [math.exp(x) / sum(math.exp(y) for y in logits[b].tolist()) for x in logits[b].tolist()]
        ratio = probabilities[int(samples.actions[b])] / math.exp(samples.log_probs[b])
        advantage, target, old = (float(column[b]) for column in (samples.advantages, samples.returns, samples.values))
        clipped = min(max(ratio, 1 - training.clip_range), 1 + training.clip_range)
        policy_loss = -min(ratio * advantage, clipped * advantage)
        value, limit = float(values[b]), training.clip_value_range
        errors = [(value - target) ** 2]
        if limit is not None:
            errors.append((old + min(max(value - old, -limit), limit) - target) ** 2)
        entropy = -sum(p * math.log(p) for p in probabilities)
        total += policy_loss + training.value_coefficient * max(errors) / 2 - training.entropy_coefficient * entropy
    return total


@pytest.mark.parametrize("clip_value_range", [0.3, None])
@pytest.mark.parametrize("seed", range(5))
def test_ppo_loss_equals_the_literal_formula(seed: int, clip_value_range: float | None) -> None:
    training = TRAINING.model_copy(update={"clip_value_range": clip_value_range})
    logits, values, samples = problem(seed)
    loss = ppo_loss(PolicyOutput(logits, values), samples, training).loss
    assert loss.item() == pytest.approx(literal_ppo(logits, values, samples, training))


@pytest.mark.parametrize("loss_function", [ppo_loss, a2c_loss])
def test_gradient_equals_finite_differences(loss_function: object) -> None:
    logits, values, samples = problem(3)

    def loss(logits: Tensor, values: Tensor) -> Tensor:
        return loss_function(PolicyOutput(logits, values), samples, TRAINING).loss  # type: ignore[operator]

    assert torch.autograd.gradcheck(loss, (logits.requires_grad_(), values.requires_grad_()))


def test_ppo_gradient_at_ratio_one_equals_a2c_gradient() -> None:
    logits, values, samples = problem(spread=0.0)
    training = TRAINING.model_copy(update={"clip_value_range": None})
    gradients = []
    for loss_function in (ppo_loss, a2c_loss):
        leaves = logits.clone().requires_grad_(), values.clone().requires_grad_()
        loss_function(PolicyOutput(*leaves), samples, training).loss.backward()
        gradients.append(torch.cat([leaf.grad.flatten() for leaf in leaves]))
    torch.testing.assert_close(gradients[0], gradients[1])


def test_the_loss_of_a_whole_is_the_sum_over_its_parts() -> None:
    logits, values, samples = problem(4)
    whole = ppo_loss(PolicyOutput(logits, values), samples, TRAINING)
    parts = [
        ppo_loss(PolicyOutput(logits[cut], values[cut]), Samples(*(column[cut] for column in samples)), TRAINING)
        for cut in (slice(0, 3), slice(3, B))
    ]
    for name in LossSums._fields:
        torch.testing.assert_close(getattr(whole, name), sum(getattr(part, name) for part in parts))


def test_diagnostics_by_hand() -> None:
    """Two actions of probability 1/2; the first was taken with 1/4, so its ratio is 2; the second with 1/2."""
    samples = Samples(
        torch.tensor([0, 1]), torch.tensor([0.25, 0.5]).log(), torch.zeros(2), torch.ones(2), torch.zeros(2)
    )
    sums = ppo_loss(PolicyOutput(torch.zeros(2, 2), torch.zeros(2)), samples, TRAINING)
    assert sums.approx_kl.item() == pytest.approx((2 - 1) - math.log(2))
    assert sums.clip_frac.item() == 1
    assert sums.entropy.item() == pytest.approx(2 * math.log(2))
    assert sums.policy_loss.item() == pytest.approx(-1.1 - 1)
