"""Many ranks: the mode changes the speed, never the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from rlcluster import environments
from rlcluster.exchange.ranks import Ranks
from rlcluster.learning.actor import Actor
from rlcluster.networks.policy import make_policy
from rlcluster.plan import partition
from rlcluster.runs.checkpoint import load_checkpoint
from rlcluster.settings.loading import load_settings

from conftest import (
    CARTPOLE,
    COINRUN,
    assert_same_course,
    command,
    flags,
    metrics,
    on_ranks,
    ranks_of,
    rlcluster,
    start,
    train,
)

UPDATES = 4


def options_for(name: str, algorithm: str) -> dict[str, Any]:
    options = {**(CARTPOLE if name == "cartpole" else COINRUN), "--normalize-advantages": "true"}
    return options if algorithm == "a2c" else {**options, "--n-minibatches": 2, "--n-epochs": 2}


def parallel(num_workers: int) -> dict[str, Any]:
    return {"--mode": "parallel", "--num-workers": num_workers}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "algorithm", "numbers"),
    [
        ("cartpole", "ppo", (1, 2, 4)),
        ("cartpole", "a2c", (2,)),
        ("coinrun", "ppo", (1, 2, 4)),
        ("coinrun", "a2c", (2,)),
    ],
)
def test_the_mode_changes_nothing_but_the_speed(
    name: str, algorithm: str, numbers: tuple[int, ...], tmp_path: Path
) -> None:
    options = {**options_for(name, algorithm), "--total-updates": UPDATES}
    assert train(algorithm, tmp_path / "alone", options).returncode == 0
    for num_workers in numbers:
        run = tmp_path / f"workers_{num_workers}"
        result = train(algorithm, run, {**options, **parallel(num_workers)})
        assert result.returncode == 0, result.stderr
        records = metrics(run)
        assert {record["world_size"] for record in records} == {num_workers}
        assert_same_course(records, metrics(tmp_path / "alone"))


@pytest.mark.slow
def test_a_run_resumes_with_another_number_of_workers_and_in_another_mode(tmp_path: Path) -> None:
    options = options_for("coinrun", "ppo")
    train("ppo", tmp_path / "whole", {**options, "--total-updates": 6})
    run = tmp_path / "run"
    train("ppo", run, {**options, **parallel(4), "--total-updates": 2})
    for updates, mode in ((4, ("--num-workers", "2")), (6, ("--mode", "sequential"))):
        result = rlcluster("train", "--resume", "--output-dir", run, "--total-updates", str(updates), *mode)
        assert result.returncode == 0, result.stderr
    assert_same_course(metrics(run), metrics(tmp_path / "whole"))


@pytest.mark.slow
def test_a_killed_parallel_run_resumes_exactly(tmp_path: Path) -> None:
    options = {**options_for("coinrun", "ppo"), **parallel(2)}
    run = tmp_path / "run"
    arguments = command("train", "ppo", "--output-dir", run, *flags({**options, "--total-updates": 100_000}))
    process = start(run, arguments, until="checkpoints/*_step_*.pt")
    ranks = ranks_of(process)
    process.kill()
    process.wait()
    assert not psutil.wait_procs(ranks, timeout=30)[1]
    updates = 2 * (len(metrics(run)) // 2 + 1)
    train("ppo", tmp_path / "expected", {**options, "--total-updates": updates})
    result = rlcluster("train", "--resume", "--output-dir", run, "--total-updates", str(updates))
    assert result.returncode == 0, result.stderr
    assert metrics(run) == metrics(tmp_path / "expected")
    ours, expected = (
        load_checkpoint(folder / "checkpoints" / "ppo_parallel_final.pt").content["learner"]["parameters"]
        for folder in (run, tmp_path / "expected")
    )
    assert all(torch.equal(ours[key], expected[key]) for key in expected)


def test_workers_and_environments_must_fit(tmp_path: Path) -> None:
    result = train("ppo", tmp_path / "run", {**CARTPOLE, **parallel(8)})
    assert result.returncode == 2
    assert "parallel.num_workers=8 but env.num_envs=4" in result.stderr
    both = train("ppo", tmp_path / "run", {**CARTPOLE, **parallel(2), "--num-envs-per-worker": 3})
    assert "env.num_envs=4 is not num_workers * num_envs_per_worker = 2 * 3 = 6" in both.stderr
    assert not (tmp_path / "run").exists()


def test_a_users_error_on_a_rank_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "file").touch()
    result = train("ppo", tmp_path / "run", {**CARTPOLE, **parallel(2)})
    assert result.returncode == 2
    assert "run exists; it is not a run" in result.stderr
    assert "Traceback" not in result.stderr


def collect(ranks: Ranks, name: str) -> list[Any]:
    """The first rollout of a rank's share of four environments."""
    settings = load_settings("ppo", flags={"env.name": name, "env.num_envs": 4, "policy.network": NETWORKS[name]})
    vector = environments.make(settings.env, partition(range(4), ranks.world_size)[ranks.rank])
    policy = make_policy(settings.policy, vector.spec, settings.env.seed)
    rollout = Actor(vector, 24, settings.env.seed).collect(policy, 0).rollout
    columns = (rollout.observations, rollout.actions, rollout.rewards, rollout.dones, rollout.values)
    return [column.numpy() for column in columns]


NETWORKS = {"coinrun": "nature", "CartPole-v1": "mlp"}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_observations_actions_and_rewards_are_the_same_bit_for_bit(name: str, num_workers: int) -> None:
    *expected, values = collect(Ranks(), name)
    *ours, our_values = (np.concatenate(parts, 1) for parts in zip(*on_ranks(num_workers, collect, name), strict=True))
    for column, other in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(column, other)
    np.testing.assert_allclose(our_values, values, rtol=1e-4, atol=1e-5)
