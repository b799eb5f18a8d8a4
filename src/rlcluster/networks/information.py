"""How much a policy looks at its observations: I = H(mean of pi over observations) - mean of H(pi), in nats.

This is the mutual information of observation and action. It is 0 for a blind policy, which acts alike whatever it sees,
and at most log(number of actions).
"""

from __future__ import annotations

import torch
from torch import Tensor


def action_information(probabilities: Tensor, entropy: float, count: float) -> float:
    """From sums over `count` observations: of the probability [A] of each action, and of the entropy."""
    marginal = (probabilities / count).double()
    return max(0.0, float(torch.special.entr(marginal).sum()) - entropy / count)


class InformationMeter:
    """Adds up what `action_information` needs, batch by batch."""

    def __init__(self, num_actions: int) -> None:
        self._probabilities = torch.zeros(num_actions, dtype=torch.float64)
        self._entropy, self._count = 0.0, 0

    def add(self, logits: Tensor) -> None:
        """[B, A]"""
        distribution = torch.softmax(logits.double(), -1)
        self._probabilities += distribution.sum(0)
        self._entropy += float(torch.special.entr(distribution).sum())
        self._count += len(logits)

    def value(self) -> float:
        return action_information(self._probabilities, self._entropy, self._count)
