"""Action information: by hand, and against the literal formula."""

from __future__ import annotations

import math

import pytest
import torch

from rlcluster.networks.information import InformationMeter, action_information


def test_a_blind_policy_has_none_and_one_that_always_looks_has_the_entropy_of_its_actions() -> None:
    """Two observations, two actions; the actions are taken half the time each."""
    half = torch.tensor([1.0, 1.0])
    assert action_information(half, 2 * math.log(2), 2) == 0.0
    assert action_information(half, 0.0, 2) == pytest.approx(math.log(2))
    between = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)  # entropy of (1/4, 3/4), and of (3/4, 1/4)
    assert action_information(half, 2 * between, 2) == pytest.approx(math.log(2) - between)


def test_batches_add_up_to_the_literal_formula() -> None:
    torch.manual_seed(0)
    logits = 3 * torch.randn(50, 4)
    meter = InformationMeter(4)
    for part in logits.split([7, 1, 42]):
        meter.add(part)
    policy = torch.softmax(logits.double(), -1)
    marginal = policy.mean(0)
    expected = -(marginal * marginal.log()).sum() + (policy * policy.log()).sum(-1).mean()
    assert meter.value() == pytest.approx(float(expected))
