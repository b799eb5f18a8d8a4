"""Pending rollouts in checkpoints: nothing that was played is lost."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from rlcluster.exchange.ranks import Ranks, to_tensor
from rlcluster.learning.actor import Collected
from rlcluster.learning.episode_rows import from_rows, to_rows
from rlcluster.learning.rollout import Rollout
from rlcluster.runs.checkpoint import checkpoint_bytes, load_checkpoint


def pack(contents: Iterable[dict[str, Any]], ranks: Ranks) -> list[Tensor]:
    """Serialises the contents of all ranks."""
    return [to_tensor(part) for part in ranks.gather_bytes([bytes(checkpoint_bytes(one)) for one in contents])]


def unpack(parts: Iterable[Tensor]) -> list[dict[str, Any]]:
    return [load_checkpoint(Path("pending work"), part.numpy().tobytes()).content for part in parts]


def to_checkpoint(rollouts: Iterable[Collected], ranks: Ranks) -> list[Tensor]:
    """The pending rollouts of all ranks, serialised."""
    return pack(map(_content, rollouts), ranks)


def from_checkpoint(content: dict[str, Any], envs: range) -> deque[Collected]:
    """The pending rollouts of these environments in the order of play: the first of each, then the second."""
    found = [_of(part, envs) for part in unpack(content.get("pending", []))]
    seen: Counter[int] = Counter()
    order = []
    for place, collected in enumerate(found):
        own = collected.rollout.envs.tolist()
        if own:
            order.append((seen[own[0]], own[0], place))
            seen.update(own)
    return deque(found[place] for _, _, place in sorted(order))


def _content(collected: Collected) -> dict[str, Any]:
    columns = {
        name: column.clone() for name, column in collected.rollout.columns().items()
    }  # a view would serialise all slots
    return {**columns, "episodes": to_rows(collected.episodes)}


def _of(content: dict[str, Any], envs: range) -> Collected:
    """The part that belongs to these environments."""
    columns = {name: one for name, one in content.items() if name != "episodes"}
    own = [episode for episode in from_rows(content["episodes"]) if episode.env in envs]
    return Collected(Rollout(**columns).of(envs), own)
