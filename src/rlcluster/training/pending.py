"""Rollouts that are played and not learnt yet, also in checkpoints: nothing that was played is lost."""

from __future__ import annotations

import io
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from rlcluster.exchange.ranks import Ranks, to_tensor
from rlcluster.learning.rollout import Rollout
from rlcluster.runs.checkpoint import checkpoint_bytes, load_checkpoint


class Ready(NamedTuple):
    """A rollout that is to be learnt."""

    rollout: Rollout
    episodes: Tensor  # [K, 4] of those that finished in it
    place: tuple[int, int] | None = None  # its actor and slot; None: from a checkpoint


def trajectories(rollouts: Iterable[Ready]) -> int:
    return sum(ready.rollout.num_envs for ready in rollouts)


def pack(contents: Iterable[dict[str, Any]], ranks: Ranks) -> list[Tensor]:
    """Those of all ranks, each as bytes."""
    return [to_tensor(part) for part in ranks.gather_bytes([bytes(checkpoint_bytes(one)) for one in contents])]


def unpack(parts: Iterable[Tensor]) -> list[dict[str, Any]]:
    return [load_checkpoint(Path("pending work"), io.BytesIO(part.numpy().tobytes())) for part in parts]


def to_checkpoint(rollouts: Iterable[Ready], ranks: Ranks) -> list[Tensor]:
    """Those of all ranks."""
    return pack(map(_content, rollouts), ranks)


def from_checkpoint(content: dict[str, Any], envs: range) -> deque[Ready]:
    """Those of these environments, in the order of their play: the first of each environment, then the second."""
    found = [_of(part, envs) for part in unpack(content.get("pending", []))]
    seen: Counter[int] = Counter()
    order = []
    for place, ready in enumerate(found):
        own = ready.rollout.envs.tolist()
        if own:
            order.append((seen[own[0]], own[0], place))
            seen.update(own)
    return deque(found[place] for _, _, place in sorted(order))


def _content(ready: Ready) -> dict[str, Any]:
    columns = {name: column.clone() for name, column in ready.rollout.columns().items()}  # else all slots with it
    return {**columns, "episodes": ready.episodes}


def _of(content: dict[str, Any], envs: range) -> Ready:
    """The part of these environments."""
    episodes, columns = content["episodes"], {name: one for name, one in content.items() if name != "episodes"}
    own = (episodes[:, 1] >= envs.start) & (episodes[:, 1] < envs.stop)
    return Ready(Rollout(**columns).of(envs), episodes[own])
