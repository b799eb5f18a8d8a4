"""Can a run be restored from this checkpoint? Found out before anything of the run is changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rlcluster import environments
from rlcluster.environments.interface import DamagedStateError, EnvironmentSpec
from rlcluster.exchange.ranks import Ranks
from rlcluster.learning import actor_state
from rlcluster.learning.model import Model
from rlcluster.networks.policy import Policy, make_policy
from rlcluster.runs.checkpoint import Checkpoint, CheckpointError, is_count
from rlcluster.runs.episodes import EpisodeHistory
from rlcluster.settings.schema import Settings
from rlcluster.training import pending
from rlcluster.training.hogwild import unlogged


def refuse_unrestorable(checkpoint: Checkpoint, settings: Settings, spec: EnvironmentSpec) -> None:
    """Restores every part on trial, by the code that will restore it. A part that is missing, of another form or not
    finite is a refusal; a damaged simulator, which an earlier checkpoint may replace, counts as a damaged file.
    """
    checkpoint.parameters()
    content, envs = checkpoint.content, range(settings.env.num_envs)
    with checkpoint.reading():
        policy = make_policy(settings.policy, spec, settings.env.seed, "torch")
        model = Model(settings, policy, envs, Ranks())
        _refuse_other_forms(content, _forms(model, len(envs)))
        model.restore(content["learner"])
        EpisodeHistory().restore(content["episodes"])
        pending.from_checkpoint(content, envs)
        unlogged(content)
        state = actor_state.share(content["actor"], envs)
    try:
        environments.check_states(settings.env, state.simulators or [])
    except DamagedStateError as error:
        raise CheckpointError(checkpoint.path, str(error)) from None


def refuse_other_statistics(learner: Mapping[str, Any], settings: Settings, policy: Policy) -> None:
    """What a warm start takes over besides parameters. Of the rewards, that is the moments of all environments."""
    own = Model(settings, policy, range(settings.env.num_envs), Ranks()).state()
    moments = own["reward_normalizer"]["moments"]
    taken = {"optimizer": own["optimizer"], "reward_normalizer": {"moments": moments}}
    _refuse_other_forms(learner, {**_tensors(taken), "updates": is_count, "steps_global": is_count})


Form = Callable[[Any], bool] | Mapping[str, Any]  # of a value, or the forms of a part's values by name


def _forms(model: Model, num_envs: int) -> dict[str, Form]:
    """Of all that this run would write into a checkpoint, except its settings, which have a reader of their own."""
    counts = _tensor(torch.int64, [num_envs], least=0)
    return {
        "learner": {**_tensors(model.state()), "updates": is_count, "steps_global": is_count},
        "actor": {
            "simulators": _optional(lambda value: _is_list(value, _is_bytes) and len(value) == num_envs),
            "episode_rewards": _tensor(torch.float64, [num_envs]),
            "episode_lengths": counts,
            "rollouts": counts,
        },
        "episodes": {
            "rewards": lambda value: (
                _is_list(value, _is_number) or _is_finite_column(value)
            ),  # earlier versions' tensor
            "total": is_count,
            "initial_reward": _optional(_is_number),
            "best_reward": _optional(_is_number),
        },
        "elapsed_seconds": _is_amount,
        "recent_seconds": lambda value: _is_list(value, _is_amount),
        "recent_steps": lambda value: _is_list(value, is_count),
        "peak_memory_gb": _is_amount,
    }


def _refuse_other_forms(content: Any, forms: Form) -> None:
    odd = list(_odd_values(content, forms, ""))
    if odd:
        raise ValueError("; ".join(odd))


def _odd_values(value: Any, form: Form, place: str) -> Iterator[str]:
    if callable(form):
        if not form(value):
            yield f"{place} is {_shown(value)}"
    else:
        for name, inner in form.items():
            yield from _odd_values(value[name], inner, f"{place}.{name}" if place else name)


def _shown(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) and value.dim() else repr(value)


def _tensors(state: Mapping[str, Any]) -> dict[str, Form]:
    """The tensors of a part and of the parts inside must be like these. Copies would accept more."""
    return {
        name: _tensors(value) if isinstance(value, dict) else _tensor(value.dtype, list(value.shape))
        for name, value in state.items()
        if isinstance(value, dict | Tensor)
    }


def _tensor(dtype: torch.dtype, shape: list[int], least: float = -math.inf) -> Callable[[Any], bool]:
    """Of finite numbers, none below `least`."""

    def is_like(value: Any) -> bool:
        is_same = isinstance(value, Tensor) and value.dtype == dtype and list(value.shape) == shape
        return is_same and bool(value.isfinite().all()) and bool((value >= least).all())

    return is_like


def _optional(form: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or form(value)


def _is_list(value: Any, form: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(form, value))


def _is_number(value: Any) -> bool:
    return (type(value) is float and math.isfinite(value)) or (type(value) is int and abs(value) < 2**63)


def _is_amount(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_bytes(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.uint8 and value.dim() == 1


def _is_finite_column(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 1 and bool(value.isfinite().all())
