"""Optimisers versus their literal equations, and versus torch.optim to the bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcluster.learning.optimizers import OPTIMIZERS
from rlcluster.settings.schema import TrainingSettings

LEARNING_RATE, STEPS = 3e-3, 20
TRAINING = TrainingSettings(adam_epsilon=1e-4, rmsprop_decay=0.9, rmsprop_epsilon=1e-4)


def gradients() -> list[torch.Tensor]:
    """Some of them zero, and of very different sizes."""
    draws = torch.Generator().manual_seed(1)
    scales = torch.tensor([1e-6, 1e-3, 1.0, 1e3]).repeat(3)
    return [torch.randn(12, generator=draws) * scales * (torch.rand(12, generator=draws) > 0.3) for _ in range(STEPS)]


def ours(name: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    parameters = torch.linspace(-1, 1, 12)
    optimizer = OPTIMIZERS[name](len(parameters), TRAINING)
    for gradient in gradients():
        optimizer.step(parameters, gradient, LEARNING_RATE)
    return parameters, optimizer.state


def literal_adam(theta: torch.Tensor) -> torch.Tensor:
    mean, square = torch.zeros_like(theta), torch.zeros_like(theta)
    for t, gradient in enumerate(gradients(), 1):
        mean = 0.9 * mean + 0.1 * gradient.double()
        square = 0.999 * square + 0.001 * gradient.double() ** 2
        corrected = (square / (1 - 0.999**t)) ** 0.5
        theta = theta - LEARNING_RATE * mean / (1 - 0.9**t) / (corrected + 1e-4)
    return theta


def literal_rmsprop(theta: torch.Tensor) -> torch.Tensor:
    square = torch.zeros_like(theta)
    for gradient in gradients():
        square = 0.9 * square + 0.1 * gradient.double() ** 2
        theta = theta - LEARNING_RATE * gradient.double() / (square**0.5 + 1e-4)
    return theta


@pytest.mark.parametrize(("name", "literal"), [("adam", literal_adam), ("rmsprop", literal_rmsprop)])
def test_steps_equal_the_literal_equation(name: str, literal: Any) -> None:
    expected = literal(torch.linspace(-1, 1, 12).double()).float()
    torch.testing.assert_close(ours(name)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "theirs", "options"),
    [
        ("adam", torch.optim.Adam, {"eps": 1e-4, "fused": True}),
        ("rmsprop", torch.optim.RMSprop, {"eps": 1e-4, "alpha": 0.9}),
    ],
)
def test_steps_and_statistics_are_those_of_torch_to_the_bit(name: str, theirs: Any, options: dict[str, Any]) -> None:
    parameters = torch.nn.Parameter(torch.linspace(-1, 1, 12))
    optimizer = theirs([parameters], lr=LEARNING_RATE, **options)
    for gradient in gradients():
        parameters.grad = gradient
        optimizer.step()
    own, state = ours(name)
    assert torch.equal(own, parameters.detach())
    expected = optimizer.state_dict()["state"][0]
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[key], value) for key, value in expected.items())


def test_training_does_not_load_the_compiler(tmp_path: Path) -> None:
    flags = ("--env", "CartPole-v1", "--num-envs", "2", "--n-steps", "8", "--total-updates", "2", "--num-threads", "1")
    program = (
        "import sys; from rlcluster.cli import main; code = main(sys.argv[1:]); "
        "sys.exit(code or 'torch._dynamo' in sys.modules)"
    )
    for algorithm in ("ppo", "a2c"):  # one for each optimiser
        arguments = [sys.executable, "-c", program, "train", algorithm, "--output-dir", tmp_path / algorithm, *flags]
        result = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
