"""IMPALA with actors in processes of their own: the lag, the deterministic mode against a literal loop, resumption."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcluster import environments
from rlcluster.exchange.ranks import Ranks
from rlcluster.learning.actor import Actor
from rlcluster.learning.learner import Learner, LearnReport
from rlcluster.learning.model import Model
from rlcluster.networks.policy import make_policy
from rlcluster.runs.checkpoint import load_checkpoint
from rlcluster.settings.loading import load_settings
from rlcluster.system import cores
from rlcluster.training.actor_learner import ActorLearner
from rlcluster.training.planning import agree_on_plan

from conftest import CARTPOLE, COINRUN, assert_same_course, command, flags, metrics, start, train

OPTIONS = {**CARTPOLE, "--mode": "parallel", "--num-workers": 2, "--total-updates": 8}
DETERMINISTIC = {**OPTIONS, "--deterministic": "true"}
METRICS = {"policy_lag_mean", "policy_lag_max", "slot_occupancy", "learner_idle", "actor_idle"}


def parameters(run: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(run / "checkpoints" / "impala_parallel_final.pt").content["learner"]["parameters"]


def succeed(run: Path, options: dict[str, Any], *more: str) -> list[dict[str, Any]]:
    result = train("impala", run, options, *more)
    assert result.returncode == 0, result.stderr
    return metrics(run)


def in_a_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """As the runs are: what other tests leave in this process can change the last bits."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def literal_course(updates: int) -> list[LearnReport]:
    """One process: rollout k is played with the parameters after update k - 1, and learnt after update k."""
    flags = {"env.name": "CartPole-v1", "env.num_envs": "4", "training.n_steps": "32"}
    settings = load_settings("impala", "sequential", flags={**flags, "training.total_updates": str(updates)})
    vector = environments.make(settings.env, range(4))
    actor = Actor(vector, 32, settings.env.seed)
    learning, acting = (make_policy(settings.policy, vector.spec, settings.env.seed) for _ in range(2))
    learner = Learner(settings, Model(settings, learning, range(4), Ranks()), Ranks())
    reports, previous = [], {name: value.clone() for name, value in learning.state_dict().items()}
    for update in range(updates):
        acting.load_state_dict(previous)
        rollout = actor.collect(acting, max(0, update - 1)).rollout
        previous = {name: value.clone() for name, value in learning.state_dict().items()}
        reports.append(learner.learn([rollout], update / updates))
    return reports


def test_deterministic_runs_are_the_literal_loop_with_one_update_of_lag_and_repeat_to_the_bit(tmp_path: Path) -> None:
    one = succeed(tmp_path / "one", {**DETERMINISTIC, "--num-workers": 1})
    for record, report in zip(one, in_a_new_process(literal_course, 8), strict=True):
        assert {name: record[name] for name in report._asdict()} == report._asdict()
    assert [record["policy_lag_max"] for record in one] == [0, *[1] * 7]
    two = succeed(tmp_path / "two", DETERMINISTIC)
    again = succeed(tmp_path / "again", DETERMINISTIC)
    course = [{name: value for name, value in record.items() if name not in METRICS} for record in two]
    assert course == [{name: value for name, value in record.items() if name not in METRICS} for record in again]
    for name, value in parameters(tmp_path / "two").items():
        assert torch.equal(value, parameters(tmp_path / "again")[name]), name
    assert_same_course(two, one)


@pytest.mark.slow
def test_a_killed_deterministic_run_resumes_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """Rollouts that were played and not learnt yet are part of a checkpoint."""
    base, updates = {**DETERMINISTIC, **COINRUN, "--checkpoint-updates": 3}, 60
    whole = succeed(tmp_path / "whole", {**base, "--total-updates": updates})
    run = tmp_path / "run"
    endless = {**base, "--total-updates": 100_000}
    process = start(run, command("train", "impala", "--output-dir", run, *flags(endless)), "checkpoints/*_step_*.pt")
    process.kill()
    process.communicate()
    assert len(metrics(run)) < updates
    ours = succeed(run, {"--total-updates": updates}, "--resume")
    for record, expected in zip(ours, whole, strict=True):
        for field in record.keys() - METRICS:
            assert record[field] == expected[field], (record["update"], field)


@pytest.mark.slow
def test_a_run_resumes_with_another_number_of_actors_and_in_another_mode(tmp_path: Path) -> None:
    run = tmp_path / "run"
    succeed(run, {**DETERMINISTIC, "--total-updates": 4})
    succeed(run, {"--total-updates": 8, "--num-workers": 3}, "--resume")
    whole = succeed(tmp_path / "whole", DETERMINISTIC)
    assert_same_course(metrics(run), whole)
    records = succeed(run, {"--total-updates": 10, "--mode": "sequential"}, "--resume")
    assert [record["update"] for record in records] == [*range(1, 9), 9, 10]
    assert records[-1]["steps_global"] == 10 * 4 * 32  # two of them are what the actors had left
    ends = load_checkpoint(run / "checkpoints" / "impala_sequential_final.pt").content["actor"]["rollouts"].tolist()
    assert ends == [10] * 4


@pytest.mark.slow
def test_two_learners_with_actors_of_their_own_are_one_with_all(tmp_path: Path) -> None:
    """Deterministic: only gradients and sums cross between the ranks."""
    options = {**DETERMINISTIC, "--mode": "distributed", "--workers-per-rank": 1}
    assert_same_course(succeed(tmp_path / "two", options), succeed(tmp_path / "one", DETERMINISTIC))


def test_the_lag_is_logged_and_bounded_by_the_slots_and_every_step_counts(tmp_path: Path) -> None:
    run = tmp_path / "run"
    records = succeed(run, {**OPTIONS, "--total-updates": 30})
    assert records[0].keys() >= METRICS
    assert all(0 <= record["policy_lag_mean"] <= record["policy_lag_max"] for record in records)
    assert 1 <= max(record["policy_lag_max"] for record in records) <= 2 * 2  # twice the slots of an actor
    for name in ("slot_occupancy", "learner_idle", "actor_idle"):
        assert all(0 <= record[name] <= 1 for record in records), name
    assert records[-1]["steps_global"] == 30 * 4 * 32


@pytest.mark.parametrize(("kernels", "expected"), [("native", max(1, cores.observe().physical - 1)), ("torch", None)])
def test_torch_leaves_the_actors_core_alone_if_there_are_kernels(kernels: str, expected: int | None) -> None:
    physical, before = cores.observe().physical, torch.get_num_threads()
    flags = {"env.name": "coinrun", "env.num_envs": 1, "training.n_steps": 2, "policy.network": "nature"}
    flags |= {"parallel.num_workers": 1, "hardware.num_threads": physical, "hardware.kernels": kernels}
    try:
        settings = load_settings("impala", "parallel", flags=flags)
        with closing(ActorLearner(settings, agree_on_plan(settings, Ranks(), kernels == "native"), Ranks(), None)):
            assert torch.get_num_threads() == (expected or physical)
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_rollouts_on_a_file_give_the_same_result_and_leave_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "rollouts"
    folder.mkdir()
    options = {**DETERMINISTIC, **COINRUN, "--total-updates": 3}
    ours = succeed(tmp_path / "file", {**options, "--rollout-dir": folder})
    theirs = succeed(tmp_path / "memory", options)
    for record, expected in zip(ours, theirs, strict=True):
        for field in record.keys() - METRICS:
            assert record[field] == expected[field], field
    assert not list(folder.iterdir())
