"""A3C: one worker is A2C, several share their parameters, and an interrupted run resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlcluster.exchange.ranks import Ranks
from rlcluster.learning.learner import LearnReport
from rlcluster.runs.checkpoint import load_checkpoint, save_checkpoint
from rlcluster.runs.episodes import Episode
from rlcluster.system import cores
from rlcluster.training.hogwild import _content
from rlcluster.training.hogwild_process import UpdateDone
from rlcluster.training.pending import pack

from conftest import CARTPOLE, COINRUN, metrics, train

OPTIONS = {**CARTPOLE, "--n-steps": 5, "--mode": "parallel", "--num-workers": 2, "--total-updates": 60}
METRICS = {"staleness_mean", "staleness_max"}


def succeed(algorithm: str, run: Path, options: dict[str, Any], *more: str) -> list[dict[str, Any]]:
    result = train(algorithm, run, options, *more)
    assert result.returncode == 0, result.stderr
    return metrics(run)


@pytest.mark.parametrize(("name", "optimizer"), [("cartpole", "adam"), ("coinrun", "rmsprop")])
def test_one_worker_is_a2c_with_the_same_settings(name: str, optimizer: str, tmp_path: Path) -> None:
    base = {**(COINRUN if name == "coinrun" else CARTPOLE), "--n-steps": 5, "--total-updates": 6}
    base["--optimizer"] = optimizer
    a2c = succeed("a2c", tmp_path / "a2c", base)
    ours = succeed("a3c", tmp_path / "a3c", {**base, "--mode": "parallel", "--num-workers": 1})
    for record, expected in zip(ours, a2c, strict=True):
        for field in expected:
            assert record[field] == expected[field], (record["update"], field)
    assert {record["staleness_max"] for record in ours} == {0}
    kept = load_checkpoint(tmp_path / "a3c" / "checkpoints" / "a3c_parallel_final.pt").content["learner"]["optimizer"]
    assert float(kept["step"]) == 6  # the workers' steps, not this process's


def test_workers_step_the_same_parameters_and_their_staleness_is_logged(tmp_path: Path) -> None:
    records = succeed("a3c", tmp_path / "run", OPTIONS)
    assert records[0].keys() >= METRICS
    assert [record["update"] for record in records] == list(range(1, 61))
    assert records[-1]["steps_global"] >= 60 * 4 * 5
    assert any(record["staleness_max"] > 0 for record in records)
    assert all(0 <= record["staleness_mean"] <= record["staleness_max"] for record in records)


@pytest.mark.slow
def test_ranks_average_their_parameters_every_few_updates_and_agree_then(tmp_path: Path) -> None:
    """A run whose ranks differ after an average would say so and fail."""
    run = tmp_path / "run"
    more = {"--mode": "distributed", "--workers-per-rank": 1, "--sync-updates": 3, "--checkpoint-updates": 3}
    records = succeed("a3c", run, {**OPTIONS, **more, "--total-updates": 7})
    assert [record["update"] for record in records] == list(range(1, 8))
    assert {record["world_size"] for record in records} == {2}
    updates = [load_checkpoint(path).content["learner"]["updates"] for path in run.glob("checkpoints/*_step_*.pt")]
    assert sorted(updates) == [3, 6]  # checkpoints wait for an average


@pytest.mark.slow
def test_rollouts_on_a_file_give_the_same_result_and_leave_nothing(tmp_path: Path) -> None:
    base = {**OPTIONS, "--num-workers": 1, "--total-updates": 5}
    ours = succeed("a3c", tmp_path / "file", {**base, "--rollout-dir": tmp_path})
    assert ours == succeed("a3c", tmp_path / "memory", base)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "memory"}


def test_updates_that_came_too_late_for_the_log_are_in_it_after_a_resumption(tmp_path: Path) -> None:
    run = tmp_path / "run"
    succeed("a3c", run, {**OPTIONS, "--total-updates": 3})
    path = run / "checkpoints" / "a3c_parallel_final.pt"
    content = load_checkpoint(path).content
    steps = {"update": 2 * 5, "before": content["learner"]["steps_global"]}
    assert steps["before"] == (3 * 2 + len(content["unlogged"])) * steps["update"]  # of 2 workers, 2 environments each
    report = LearnReport(**dict.fromkeys(LearnReport._fields, 0.5))
    episodes = [Episode(1, 0, 10_000.0, 9)]
    late = _content(UpdateDone(report, steps["update"], 7, episodes, 0.1, 0.1))
    save_checkpoint(path, {**content, "unlogged": [*content["unlogged"], *pack([late], Ranks())]})
    record = succeed("a3c", run, {"--total-updates": 4}, "--resume")[-1]
    assert record["episode_count"] * record["episode_reward_mean"] >= 10_000
    assert record["staleness_max"] >= 7
    assert record["steps_global"] >= steps["before"]


def test_workers_with_several_threads_partition_the_cores(tmp_path: Path) -> None:
    physical = cores.observe().physical
    options = {key: value for key, value in OPTIONS.items() if key != "--num-workers"}
    result = train("a3c", tmp_path / "run", {**options, "--total-updates": 1, "--num-threads": physical})
    assert "they alternate" not in result.stderr
    summary = json.loads((tmp_path / "run" / "benchmark_metrics.json").read_text())
    assert (summary["num_workers"], summary["num_threads"]) == (1, physical)


@pytest.mark.slow
def test_a_run_of_one_worker_resumes_exactly(tmp_path: Path) -> None:
    base = {**OPTIONS, "--num-workers": 1}
    whole = succeed("a3c", tmp_path / "whole", {**base, "--total-updates": 9})
    succeed("a3c", tmp_path / "run", {**base, "--total-updates": 5})
    assert succeed("a3c", tmp_path / "run", {"--total-updates": 9}, "--resume") == whole
