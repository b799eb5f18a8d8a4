"""How ranks synchronise: gradients in float32 or bfloat16, or parameters averaged now and then (local SGD)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlcluster import environments
from rlcluster.exchange.ranks import Ranks
from rlcluster.learning.actor import Actor
from rlcluster.learning.learner import Learner
from rlcluster.learning.model import Model
from rlcluster.networks.policy import make_policy
from rlcluster.plan import partition
from rlcluster.settings.loading import load_settings
from rlcluster.settings.schema import Settings

from conftest import CARTPOLE, flags, metrics, on_ranks, rlcluster

NUM_ENVS = 4


def settings_for(num_envs: int = NUM_ENVS, **changes: Any) -> Settings:
    given = {"env.name": "CartPole-v1", "env.num_envs": num_envs, "training.n_steps": 16}
    given |= {"training.normalize_rewards": "no", "parallel.num_workers": 2}
    given |= {f"parallel.{name}": value for name, value in changes.items()}
    return load_settings("a2c", "parallel", flags=given)


def learn(settings: Settings, share: range, ranks: Ranks, updates: int) -> Learner:
    vector = environments.make(settings.env, share)
    model = Model(settings, make_policy(settings.policy, vector.spec, settings.env.seed), share, ranks)
    learner = Learner(settings, model, ranks)
    actor = Actor(vector, settings.training.n_steps, settings.env.seed)
    for update in range(updates):
        learner.learn([actor.collect(model.policy, update).rollout], 0.0)
    return learner


def flat(learner: Learner) -> dict[str, Any]:
    return {
        "parameters": learner.model.flat.parameters.numpy().copy(),
        "square_avg": learner.model.optimizer.state["square_avg"].numpy().copy(),
        "gradients": learner.model.flat.gradients.numpy().copy(),
    }


def on_rank(ranks: Ranks, updates: int, changes: dict[str, Any]) -> tuple[dict[str, Any], bool, bool]:
    learner = learn(settings_for(**changes), partition(range(NUM_ENVS), ranks.world_size)[ranks.rank], ranks, updates)
    return flat(learner), learner.model.is_synchronised, learner.model.ranks_agree()


def test_parameters_and_statistics_are_averaged_every_k_updates() -> None:
    """Two ranks, two updates apart, then the mean: the same as two learners that never heard of each other."""
    changes = {"sync_strategy": "parameters", "sync_updates": 2}
    alone = [flat(learn(settings_for(num_envs=2), share, Ranks(), updates=2)) for share in (range(2), range(2, 4))]
    for ours, is_synchronised, agrees in on_ranks(2, on_rank, 2, changes):
        assert is_synchronised
        assert agrees
        for name in ("parameters", "square_avg"):
            np.testing.assert_allclose(ours[name], (alone[0][name] + alone[1][name]) / 2, rtol=1e-5, atol=1e-7)


def test_between_two_averages_the_ranks_differ() -> None:
    for _, is_synchronised, agrees in on_ranks(2, on_rank, 3, {"sync_strategy": "parameters", "sync_updates": 2}):
        assert (is_synchronised, agrees) == (False, False)


def test_bfloat16_gradients_are_rounded_and_the_same_on_all_ranks() -> None:
    """One step: the gradient moves by less than two parts in 256 of its norm, and it does move."""
    exact, _, _ = on_ranks(2, on_rank, 1, {})[0]
    rounded = on_ranks(2, on_rank, 1, {"wire_dtype": "bfloat16"})
    assert all(agrees for _, _, agrees in rounded)
    difference = np.linalg.norm(rounded[0][0]["gradients"] - exact["gradients"])
    assert 0 < difference < 2 / 256 * np.linalg.norm(exact["gradients"])


@pytest.mark.slow
def test_a_run_with_local_steps_is_saved_where_its_ranks_agree_and_resumes_exactly(tmp_path: Path) -> None:
    options = {**CARTPOLE, "--mode": "parallel", "--num-workers": 2, "--n-minibatches": 2, "--checkpoint-updates": 1}
    options |= {"--sync-strategy": "parameters", "--sync-updates": 3, "--keep-checkpoints": 9}
    for name, updates in (("whole", 7), ("parts", 3)):
        result = rlcluster(
            "train", "ppo", "--output-dir", tmp_path / name, *flags({**options, "--total-updates": updates})
        )
        assert result.returncode == 0, result.stderr
    saved = {path.stem.split("_")[-1] for path in (tmp_path / "whole" / "checkpoints").iterdir()}
    assert saved == {str(3 * 4 * 32), str(6 * 4 * 32), "final"}
    resumed = rlcluster("train", "--resume", "--output-dir", tmp_path / "parts", "--total-updates", "7")
    assert resumed.returncode == 0, resumed.stderr
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
