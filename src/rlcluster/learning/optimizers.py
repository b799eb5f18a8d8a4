"""Adam and RMSProp for one flat tensor of parameters; the same to the bit as torch.optim's.

The classes of torch.optim load PyTorch's compiler when the first one is made: two seconds and 70 MB, in every process
that learns. What is called here does not.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam

from rlcluster.settings.algorithms import OPTIMIZER_STATISTICS
from rlcluster.settings.schema import TrainingSettings

ADAM_BETAS = (0.9, 0.999)


class Optimizer(Protocol):
    state: dict[str, Tensor]  # by name: step count and gradient statistics

    def step(self, parameters: Tensor, gradients: Tensor, learning_rate: float) -> None:
        """Updates the parameters in place."""


class Adam:
    """arXiv 1412.6980, algorithm 1: theta <- theta - lr m / (sqrt(v) + epsilon), with the corrected moments m and v."""

    def __init__(self, size: int, training: TrainingSettings) -> None:
        self._epsilon = training.adam_epsilon
        self.state = new_state("adam", size)

    def step(self, parameters: Tensor, gradients: Tensor, learning_rate: float) -> None:
        number, mean, square = ([self.state[name]] for name in ("step", *OPTIMIZER_STATISTICS["adam"]))
        beta1, beta2 = ADAM_BETAS
        adam(
            [parameters],
            [gradients],
            mean,
            square,
            max_exp_avg_sqs=[],
            state_steps=number,
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=learning_rate,
            weight_decay=0.0,
            eps=self._epsilon,
            maximize=False,
        )


class RmsProp:
    """g <- decay g + (1 - decay) d^2, theta <- theta - lr d / (sqrt(g) + epsilon), for the gradient d."""

    def __init__(self, size: int, training: TrainingSettings) -> None:
        self._decay, self._epsilon = training.rmsprop_decay, training.rmsprop_epsilon
        self.state = new_state("rmsprop", size)

    def step(self, parameters: Tensor, gradients: Tensor, learning_rate: float) -> None:
        self.state["step"] += 1
        squares = self.state["square_avg"]
        squares.mul_(self._decay).addcmul_(gradients, gradients, value=1 - self._decay)
        parameters.addcdiv_(gradients, squares.sqrt().add_(self._epsilon), value=-learning_rate)


def new_state(name: str, size: int) -> dict[str, Tensor]:
    return {"step": torch.zeros(()), **{statistic: torch.zeros(size) for statistic in OPTIMIZER_STATISTICS[name]}}


OPTIMIZERS: dict[str, type[Adam] | type[RmsProp]] = {"adam": Adam, "rmsprop": RmsProp}
