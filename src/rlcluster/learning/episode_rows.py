"""Episodes as rows of a tensor: how they cross between ranks and go into checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlcluster.exchange.ranks import Ranks
from rlcluster.runs.episodes import Episode


def to_rows(episodes: Sequence[Episode]) -> Tensor:
    """[K, 4] step, environment, reward, length."""
    return torch.tensor(episodes, dtype=torch.float64).reshape(-1, len(Episode._fields))


def from_rows(rows: Tensor) -> list[Episode]:
    return [Episode(int(step), int(env), reward, int(length)) for step, env, reward, length in rows.tolist()]


def gather(episodes: Sequence[Episode], ranks: Ranks) -> list[Episode]:
    """Those of all ranks."""
    return from_rows(ranks.gather_rows(to_rows(episodes)))
