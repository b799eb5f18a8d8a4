"""Rollouts that are played and not learnt yet, also in checkpoints: nothing that was played is lost."""

from __future__ import annotations

import io
from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from rlcluster.checkpoint import checkpoint_bytes, load_checkpoint
from rlcluster.collectives import Ranks, to_tensor
from rlcluster.rollout import Rollout


class Ready(NamedTuple):
    """A rollout that is to be learnt."""

    rollout: Rollout
    episodes: Tensor  # [K, 4] of those that finished in it
    place: tuple[int, int] | None = None  # its actor and slot; None: from a checkpoint


def trajectories(rollouts: Iterable[Ready]) -> int:
    return sum(ready.rollout.num_envs for ready in rollouts)


def to_checkpoint(rollouts: Iterable[Ready], ranks: Ranks) -> list[Tensor]:
    """Those of all ranks, each as bytes."""
    return [to_tensor(part) for part in ranks.gather_bytes([_to_bytes(ready) for ready in rollouts])]


def from_checkpoint(content: dict[str, Any], envs: range) -> deque[Ready]:
    """Those of these environments, in the order of their play: the first of each environment, then the second."""
    found = [_from_bytes(part.numpy().tobytes(), envs) for part in content.get("pending", [])]
    seen: Counter[int] = Counter()
    order = []
    for place, ready in enumerate(found):
        own = ready.rollout.envs.tolist()
        if own:
            order.append((seen[own[0]], own[0], place))
            seen.update(own)
    return deque(found[place] for _, _, place in sorted(order))


def _to_bytes(ready: Ready) -> bytes:
    columns = {name: column.clone() for name, column in ready.rollout.columns().items()}  # else all slots with it
    return bytes(checkpoint_bytes({**columns, "episodes": ready.episodes}))


def _from_bytes(content: bytes, envs: range) -> Ready:
    """Its part of these environments."""
    columns = load_checkpoint(Path("pending rollouts"), io.BytesIO(content))
    episodes = columns.pop("episodes")
    own = (episodes[:, 1] >= envs.start) & (episodes[:, 1] < envs.stop)
    return Ready(Rollout(**columns).of(envs), episodes[own])
