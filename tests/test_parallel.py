"""Many ranks: the mode changes the speed, never the result; faults end the whole run; nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from rlcluster.checkpoint import load_checkpoint

from conftest import CARTPOLE, COINRUN, command, flags, metrics, rlcluster

UPDATES = 4
# Bit for bit the same until the first optimiser's step; then sums are taken in another order.
EXACT = ("update", "steps_global", "episode_count", "episode_length_mean", "learning_rate")
CLOSE = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "explained_variance", "grad_norm")


def options_for(name: str, algorithm: str) -> dict[str, Any]:
    options = {**(CARTPOLE if name == "cartpole" else COINRUN), "--normalize-advantages": "true"}
    return options if algorithm == "a2c" else {**options, "--n-minibatches": 2, "--n-epochs": 2}


def train(algorithm: str, run: Path, options: dict[str, Any], *more: str) -> subprocess.CompletedProcess[str]:
    return rlcluster("train", algorithm, "--output-dir", run, *flags(options), *more)


def parallel(num_workers: int) -> dict[str, Any]:
    return {"--mode": "parallel", "--num-workers": num_workers}


def assert_same_course(ours: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(ours) == len(expected)
    for record, other in zip(ours, expected, strict=True):
        for name in EXACT:
            assert record[name] == other[name], name
        for name in CLOSE:
            tolerance = 1e-5 if record["update"] == 1 else 2e-3
            assert record[name] == pytest.approx(other[name], rel=tolerance, abs=tolerance), (record["update"], name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "algorithm", "numbers"),
    [
        ("cartpole", "ppo", (1, 2, 4)),
        ("cartpole", "a2c", (1, 2, 4)),
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
@pytest.mark.parametrize("name", ["cartpole", "coinrun"])
def test_a_run_goes_on_with_another_number_of_workers_and_in_another_mode(name: str, tmp_path: Path) -> None:
    options = options_for(name, "ppo")
    train("ppo", tmp_path / "whole", {**options, "--total-updates": 6})
    run = tmp_path / "run"
    train("ppo", run, {**options, **parallel(4), "--total-updates": 2})
    for updates, mode in ((4, ("--num-workers", "2")), (6, ("--mode", "sequential"))):
        result = rlcluster("train", "--resume", "--output-dir", run, "--total-updates", str(updates), *mode)
        assert result.returncode == 0, result.stderr
    assert_same_course(metrics(run), metrics(tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cartpole", "coinrun"])
def test_a_killed_parallel_run_resumes_exactly(name: str, tmp_path: Path) -> None:
    options = {**options_for(name, "ppo"), **parallel(2)}
    train("ppo", tmp_path / "whole", {**options, "--total-updates": 6})
    run = tmp_path / "run"
    process = start(run, {**options, "--total-updates": 100_000}, until="checkpoints/*_step_*.pt")
    process.kill()
    process.wait()
    assert not wait_for_none(process.ranks)  # type: ignore[attr-defined]
    updates = 2 * (len(metrics(run)) // 2 + 1)
    train("ppo", tmp_path / "expected", {**options, "--total-updates": updates})
    result = rlcluster("train", "--resume", "--output-dir", run, "--total-updates", str(updates))
    assert result.returncode == 0, result.stderr
    assert metrics(run) == metrics(tmp_path / "expected")
    ours, expected = (
        load_checkpoint(folder / "checkpoints" / "ppo_parallel_final.pt")["learner"]["parameters"]
        for folder in (run, tmp_path / "expected")
    )
    assert all(torch.equal(ours[key], expected[key]) for key in expected)


def start(run: Path, options: dict[str, Any], until: str) -> subprocess.Popen[str]:
    """A parallel run in the background, once it has a file that matches `until`; its ranks are in `ranks`."""
    arguments = command("train", "ppo", "--output-dir", run, *flags(options))
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not list(run.glob(until)):
        assert process.poll() is None, process.communicate()
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    children = psutil.Process(process.pid).children(recursive=True)
    process.ranks = [child for child in children if "spawn_main" in " ".join(child.cmdline())]  # type: ignore[attr-defined]
    return process


def wait_for_none(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that are still alive after 15 seconds."""
    return psutil.wait_procs(processes, timeout=15)[1]


ENDLESS = {**CARTPOLE, "--n-minibatches": 2, **parallel(3), "--total-updates": 100_000}


@pytest.mark.slow
def test_a_dead_rank_ends_the_run_with_its_number(tmp_path: Path) -> None:
    process = start(tmp_path / "run", ENDLESS, until="logs/*/metrics.jsonl")
    ranks = process.ranks  # type: ignore[attr-defined]
    assert len(ranks) == 3
    ranks[1].kill()
    stdout, stderr = process.communicate(timeout=15)
    assert process.returncode == 1
    assert "failed: the process ended by signal SIGKILL" in stderr, stderr
    assert "Traceback" not in stdout
    assert not wait_for_none(ranks)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("to_rank", [False, True])
def test_a_signal_stops_all_ranks_at_the_same_update(
    number: signal.Signals, exit_code: int, to_rank: bool, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = start(run, ENDLESS, until="logs/*/metrics.jsonl")
    os.kill(process.ranks[2].pid if to_rank else process.pid, number)  # type: ignore[attr-defined]
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == exit_code, stderr
    updates = json.loads((run / "benchmark_metrics.json").read_text())["total_updates"]
    assert len(metrics(run)) == updates
    resumed = rlcluster("train", "--resume", "--output-dir", run, "--total-updates", str(updates + 1))
    assert resumed.returncode == 0, resumed.stderr


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
    assert "run exists; continue it with --resume" in result.stderr
    assert "Traceback" not in result.stderr
