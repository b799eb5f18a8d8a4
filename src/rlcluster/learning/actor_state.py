"""The state of environments: joined over actors, gathered over ranks into a checkpoint, and partitioned again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rlcluster.exchange.ranks import Ranks, to_tensor


class ActorState(NamedTuple):
    """What resumes each environment exactly."""

    simulators: list[bytes] | None  # serialised; None if a simulator cannot save its state
    episode_rewards: NDArray[np.float64]  # [N] of the running episode
    episode_lengths: NDArray[np.int64]  # [N]
    rollouts: NDArray[np.int64]  # [N] started so far: the position in the stream of action noise

    def of(self, envs: range, all_envs: range) -> ActorState:
        """The part that belongs to `envs`."""
        places = slice(envs.start - all_envs.start, envs.stop - all_envs.start)
        return ActorState(
            None if self.simulators is None else self.simulators[places],
            self.episode_rewards[places],
            self.episode_lengths[places],
            self.rollouts[places],
        )


def join(states: Sequence[ActorState]) -> ActorState:
    """Concatenates the states of several actors."""
    simulators = [state.simulators for state in states]
    return ActorState(
        None if None in simulators else [one for own in simulators for one in own or []],
        np.concatenate([state.episode_rewards for state in states]),
        np.concatenate([state.episode_lengths for state in states]),
        np.concatenate([state.rollouts for state in states]),
    )


def gather(state: ActorState, ranks: Ranks) -> dict[str, Any]:
    """The states of all ranks as part of a checkpoint; without simulators if any of them cannot save its state."""
    is_missing = ranks.any(state.simulators is None)
    simulators = None if is_missing else [to_tensor(part) for part in ranks.gather_bytes(state.simulators or [])]
    columns = {name: getattr(state, name) for name in ActorState._fields[1:]}
    return {
        "simulators": simulators,
        **{name: ranks.gather_rows(torch.from_numpy(column.copy())) for name, column in columns.items()},
    }


def share(content: dict[str, Any], envs: range) -> ActorState:
    """The part of a checkpoint that belongs to these environments."""
    simulators = content["simulators"]
    return ActorState(
        None if simulators is None else [simulators[i].numpy().tobytes() for i in envs],
        *(content[name].numpy()[envs.start : envs.stop] for name in ActorState._fields[1:]),
    )
