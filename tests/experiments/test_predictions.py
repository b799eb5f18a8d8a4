"""Which runs a forecast describes, and where a run finds it."""

from __future__ import annotations

from typing import Any

import pytest

from rlcluster.experiments.predictions import Processes, identity
from rlcluster.experiments.speed import WITHOUT_EFFECT
from rlcluster.settings.loading import load_settings
from rlcluster.settings.schema import Settings, setting_fields

TWO_RANKS = Processes(ranks=2, nodes=1, cores=2)


def settings_for(algorithm: str = "ppo", mode: str = "parallel", **flags: Any) -> Settings:
    return load_settings(algorithm, mode, None, {"env.name": "CartPole-v1", **flags})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("policy.hidden_sizes", "512,512"),
        ("policy.network", "mlp"),
        ("hardware.num_threads", "2"),
        ("hardware.chunk_size", "64"),
        ("hardware.kernels", "torch"),
        ("env.num_envs", "64"),
        ("env.frame_stack", "4"),
        ("env.kwargs", '{"size": 7}'),
        ("training.n_steps", "64"),
        ("training.n_minibatches", "8"),
        ("training.n_epochs", "1"),
        ("training.normalize_rewards", "false"),
        ("training.target_kl", "0.1"),
        ("training.eval_interval", "30m"),
        ("parallel.wire_dtype", "bfloat16"),
        ("parallel.sync_strategy", "parameters"),
        ("parallel.pin_workers", "false"),
        ("output.checkpoint_updates", "1"),
    ],
)
def test_a_setting_that_changes_the_speed_makes_another_run(key: str, value: str) -> None:
    assert identity(settings_for(**{key: value}), TWO_RANKS) != identity(settings_for(), TWO_RANKS)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("env.seed", "7"),
        ("training.learning_rate", "1e-3"),
        ("training.duration", "2h"),
        ("output.output_dir", "/tmp/elsewhere"),
        ("parallel.num_workers", "2"),  # the ranks themselves are compared
        ("parallel.max_restarts", "3"),
    ],
)
def test_a_setting_that_cannot_change_the_speed_makes_none(key: str, value: str) -> None:
    assert identity(settings_for(**{key: value}), TWO_RANKS) == identity(settings_for(), TWO_RANKS)


def test_settings_without_effect_on_the_speed_are_settings() -> None:
    assert {"mode", *(field.key for field in setting_fields())} >= WITHOUT_EFFECT


@pytest.mark.parametrize("other", [Processes(1, 1, 2), Processes(2, 2, 2), Processes(2, 1, 4)])
def test_other_processes_make_another_run(other: Processes) -> None:
    assert identity(settings_for(), other) != identity(settings_for(), TWO_RANKS)


def test_actors_make_another_run_and_the_mode_only_where_it_has_actors() -> None:
    one, two = (settings_for("impala", **{"parallel.num_workers": count}) for count in ("1", "2"))
    given = Processes(1, 1, 2)
    sequential = settings_for("impala", "sequential")
    assert len({identity(each, given) for each in (one, two, settings_for("impala"), sequential)}) == 4
    assert identity(settings_for(), given) == identity(settings_for(mode="distributed"), given)
