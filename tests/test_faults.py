"""Faults of parallel runs: real kills, hangs and signals. They end the whole run, or it goes on; nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlcluster.run_state import read_state

from conftest import CARTPOLE, command, flags, metrics, ranks_of, rlcluster, start

pytestmark = pytest.mark.slow

OPTIONS = {**CARTPOLE, "--n-minibatches": 2, "--mode": "parallel", "--num-workers": 2, "--total-updates": 100_000}
RUNNING = "checkpoints/*_step_[1-9]*.pt"  # after the first updates


def begin(run: Path, until: str = RUNNING, **more: Any) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    options = {**OPTIONS, **{"--" + name.replace("_", "-"): value for name, value in more.items()}}
    process = start(run, command("train", "ppo", "--output-dir", run, *flags(options)), until)
    ranks = ranks_of(process)
    assert len(ranks) == 2
    return process, ranks


def shared_memory() -> set[Path]:
    return set(Path("/dev/shm").glob("*"))


@pytest.mark.parametrize("victim", [0, 1])
def test_a_dead_rank_ends_the_run_with_its_number_and_leaves_nothing(victim: int, tmp_path: Path) -> None:
    before, run = shared_memory(), tmp_path / "run"
    process, ranks = begin(run)
    ranks[victim].kill()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"rank {victim} failed: the process ended by signal SIGKILL" in stderr
    assert "Traceback" not in stderr
    assert not psutil.wait_procs(ranks, timeout=30)[1]
    assert shared_memory() <= before
    state = read_state(run)
    assert state is not None
    assert (state.state, state.failed_rank) == ("failed", victim)
    assert "SIGKILL" in (state.reason or "")


def test_a_rank_that_hangs_is_named_after_the_time_out(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process, ranks = begin(run, timeout_seconds=12)
    ranks[1].suspend()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 71
    assert "rank 1 did not answer" in stderr
    assert "parallel.timeout_seconds=12" in stderr
    assert not psutil.wait_procs(ranks, timeout=30)[1]
    state = read_state(run)
    assert state is not None
    assert (state.state, state.failed_rank) == ("failed", 1)


def test_a_run_with_restarts_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    """It ends with the same metrics as a run without a fault."""
    run, updates = tmp_path / "run", 100
    process, ranks = begin(run, max_restarts=1, total_updates=updates)
    ranks[1].kill()
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert "restart 1 of 1" in stderr
    state = read_state(run)
    assert state is not None
    assert (state.state, state.restarts, state.update) == ("finished", 1, updates)
    whole = rlcluster(*command("train", "ppo", "--output-dir", tmp_path / "whole", *flags(OPTIONS))[3:-1], str(updates))
    assert whole.returncode == 0, whole.stderr
    assert metrics(run) == metrics(tmp_path / "whole")


def test_a_users_error_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "file").touch()
    options = {**OPTIONS, "--max-restarts": 3}
    result = rlcluster("train", "ppo", "--output-dir", tmp_path / "run", *flags(options))
    assert result.returncode == 2
    assert "restart" not in result.stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("number", "receiver"),
    [(signal.SIGINT, "parent"), (signal.SIGTERM, "parent"), (signal.SIGTERM, "rank"), (signal.SIGINT, "all")],
)
def test_a_signal_stops_all_ranks_at_the_same_update(number: signal.Signals, receiver: str, tmp_path: Path) -> None:
    """`all`: as a terminal's Ctrl-C reaches the parent and every rank."""
    run = tmp_path / "run"
    process, ranks = begin(run)
    receivers = {"parent": [process.pid], "rank": [ranks[1].pid], "all": [process.pid, *(rank.pid for rank in ranks)]}
    for pid in receivers[receiver]:
        os.kill(pid, number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + number, stderr
    updates = json.loads((run / "benchmark_metrics.json").read_text())["total_updates"]
    assert len(metrics(run)) == updates
    assert len(list(run.glob(f"checkpoints/*_step_{updates * 4 * 32}.pt"))) == 1
    state = read_state(run)
    assert state is not None
    assert (state.state, state.update, state.reason) == ("preempted", updates, number.name)


def test_a_signal_before_a_rank_can_handle_it_is_not_lost(tmp_path: Path) -> None:
    """While the ranks still import their libraries: they stop at once when they have begun."""
    arguments = command("train", "ppo", "--output-dir", tmp_path / "run", *flags(OPTIONS))
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while len(ranks := ranks_of(process)) < 2:
        assert process.poll() is None
    for rank in ranks:
        rank.terminate()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 143, stderr
    state = read_state(tmp_path / "run")
    assert state is not None
    assert (state.state, state.reason) == ("preempted", "SIGTERM")


def test_a_killed_parent_takes_its_ranks_with_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process, ranks = begin(run)
    process.kill()
    process.communicate()
    assert not psutil.wait_procs(ranks, timeout=30)[1]
    state = read_state(run)
    assert state is not None
    assert (state.state, state.reason) == ("failed", "its process ended without a word")


def test_a_run_on_one_machine_listens_on_loopback_only(tmp_path: Path) -> None:
    process, ranks = begin(tmp_path / "run")
    listening = [c for p in (psutil.Process(process.pid), *ranks) for c in p.net_connections() if c.status == "LISTEN"]
    connected = [c for rank in ranks for c in rank.net_connections() if c.status == "ESTABLISHED"]
    process.terminate()
    process.communicate(timeout=60)
    assert connected
    assert {connection.laddr.ip for connection in (*listening, *connected)} <= {"127.0.0.1", "::1"}
