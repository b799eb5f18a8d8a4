"""Faults of parallel runs: real kills, hangs and signals. They end the run, or it restarts; nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlcluster.runs.status import read_state

from conftest import CARTPOLE, background, command, flags, metrics, ranks_of, rlcluster, start

pytestmark = pytest.mark.slow

OPTIONS = {**CARTPOLE, "--mode": "parallel", "--num-workers": 2, "--total-updates": 100_000}
PATIENCE_SECONDS = 240.0  # for whatever must happen; a busy machine is slow
RUNNING = "checkpoints/*_step_[1-9]*.pt"  # after the first updates

# What the processes of a parallel run with two workers are called, in the order of their start.
PROCESSES = {
    "ppo": ["rank 0", "rank 1"],
    "impala": ["rank 0", "actor 0", "actor 1"],
    "a3c": ["rank 0", "worker 0", "worker 1"],
}
VICTIMS = [(algorithm, victim) for algorithm, names in PROCESSES.items() for victim in names[:2]]


def begin(
    algorithm: str, run: Path, until: str = RUNNING, **more: Any
) -> tuple[subprocess.Popen[str], dict[str, psutil.Process]]:
    options = {**OPTIONS, **{"--" + name.replace("_", "-"): value for name, value in more.items()}}
    process = start(run, command("train", algorithm, "--output-dir", run, *flags(options)), until)
    return process, dict(zip(PROCESSES[algorithm], ranks_of(process), strict=True))


def shared_memory() -> set[Path]:
    return set(Path("/dev/shm").glob("rlcluster-*"))


def assert_no_memory_left(before: set[Path]) -> None:
    """The files of other runs, which tests beside this one may start, are gone again in a moment."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := shared_memory() - before:
        assert time.monotonic() < deadline, left


@pytest.mark.parametrize(("algorithm", "victim"), VICTIMS)
def test_a_dead_process_ends_the_run_with_its_number_and_leaves_nothing(
    algorithm: str, victim: str, tmp_path: Path
) -> None:
    before, run = shared_memory(), tmp_path / "run"
    process, members = begin(algorithm, run)
    members[victim].kill()
    _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert f"{victim} failed: the process ended by signal SIGKILL" in stderr
    assert "Traceback" not in stderr
    assert not psutil.wait_procs(list(members.values()), timeout=PATIENCE_SECONDS)[1]
    assert_no_memory_left(before)
    state = read_state(run)
    assert state is not None
    assert (state.state, state.failed_rank) == ("failed", 1 if victim == "rank 1" else 0)
    assert "SIGKILL" in (state.reason or "")


@pytest.mark.parametrize(
    ("algorithm", "victim"), [("ppo", "rank 1"), ("impala", "actor 1"), ("impala", "rank 0"), ("a3c", "worker 1")]
)
def test_a_process_that_hangs_is_named_after_the_time_out(algorithm: str, victim: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process, members = begin(algorithm, run, timeout_seconds=12)
    members[victim].suspend()
    _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 71
    assert f"{victim} " in stderr
    assert "did not answer" in stderr
    assert "parallel.timeout_seconds=12" in stderr
    assert not psutil.wait_procs(list(members.values()), timeout=PATIENCE_SECONDS)[1]
    state = read_state(run)
    assert state is not None
    assert (state.state, state.failed_rank) == ("failed", 1 if victim == "rank 1" else 0)


HANGING = """
import time
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Hanging(CartPoleEnv):
    num_steps = 0

    def __init__(self, hanging_call, render_mode=None):
        self.hanging_call = hanging_call
        self.hang_in("constructor")
        super().__init__()

    def reset(self, **options):
        self.hang_in("reset")
        return super().reset(**options)

    def step(self, action):
        self.num_steps += 1
        if self.num_steps > 100:
            self.hang_in("step")
        return super().step(action)

    def hang_in(self, call):
        if call == self.hanging_call:
            time.sleep(1000)

gymnasium.register("Hanging-v0", Hanging, max_episode_steps=50)
"""


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("step", "did not finish its step for parallel.timeout_seconds=6"),
        ("reset", "was not ready for 60 s; raise parallel.timeout_seconds=6 above that"),
        ("constructor", "was not ready for 60 s; raise parallel.timeout_seconds=6 above that"),
    ],
)
def test_environments_that_all_hang_are_noticed_though_their_processes_run(
    call: str, what: str, tmp_path: Path
) -> None:
    """They need not hang at the same time: whoever does so for longer than the time-out is named. What is made before
    the helpers start hangs in their rank.
    """
    (tmp_path / "hanging.py").write_text(HANGING)
    options = {**OPTIONS, "--env": "hanging:Hanging-v0", "--timeout-seconds": 6}
    kwargs = ["--env-kwargs", json.dumps({"hanging_call": call})]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    names = {"ppo": "rank", "impala": "rank" if call == "constructor" else "actor"}
    started = {
        algorithm: background(
            command("train", algorithm, "--output-dir", tmp_path / algorithm, *flags(options), *kwargs), env=environment
        )
        for algorithm in names
    }
    for algorithm, process in started.items():
        _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 71, stderr
        assert re.search(rf"{names[algorithm]}s? (0|1|0, 1) failed: an environment {re.escape(what)}", stderr), stderr
        assert len(stderr.splitlines()) == 1
        state = read_state(tmp_path / algorithm)
        assert state.state == "failed" if state is not None else call != "step", "nothing is left of what never began"


LATE = """
import multiprocessing
import time
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

if multiprocessing.current_process().name == "rank 1":
    time.sleep(10)

gymnasium.register("Late-v0", CartPoleEnv, max_episode_steps=50)
"""


def test_a_rank_that_is_ready_later_than_the_time_out_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    options = {**OPTIONS, "--env": "late:Late-v0", "--timeout-seconds": 6, "--total-updates": 1}
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = rlcluster("train", "ppo", "--output-dir", tmp_path / "run", *flags(options), env=environment)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(("algorithm", "victim"), [("ppo", "rank 1"), ("a3c", "worker 1")])
def test_a_signal_does_not_wait_for_a_process_that_is_stopped(algorithm: str, victim: str, tmp_path: Path) -> None:
    """The time-out is longer than the patience of the test."""
    run = tmp_path / "run"
    process, members = begin(algorithm, run, timeout_seconds=2 * PATIENCE_SECONDS)
    members[victim].suspend()
    process.terminate()
    _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 71, stderr
    assert f"{victim} failed: it did not answer for 10 s after the signal to stop" in stderr
    assert not psutil.wait_procs(list(members.values()), timeout=PATIENCE_SECONDS)[1]


@pytest.mark.parametrize("algorithm", PROCESSES)
def test_a_run_that_is_stopped_for_longer_than_its_time_out_continues(algorithm: str, tmp_path: Path) -> None:
    """As Ctrl-Z and `fg` do it: all its processes, one after the other."""
    run = tmp_path / "run"
    process, members = begin(algorithm, run, timeout_seconds=12)
    everyone = [psutil.Process(process.pid), *members.values()]
    for member in everyone:
        member.suspend()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(16)
    for member in everyone:
        member.resume()
    updates = len(metrics(run))
    while len(metrics(run)) < updates + 3:
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGUSR1)
    _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 128 + signal.SIGUSR1, stderr
    state = read_state(run)
    assert state is not None
    assert (state.state, state.reason) == ("preempted", "SIGUSR1")


@pytest.mark.parametrize(("algorithm", "victim"), [("ppo", "rank 1"), ("impala", "actor 0"), ("a3c", "rank 0")])
def test_a_run_with_restarts_resumes_from_its_last_checkpoint(algorithm: str, victim: str, tmp_path: Path) -> None:
    run, updates = tmp_path / "run", 100
    process, members = begin(algorithm, run, max_restarts=1, total_updates=updates)
    members[victim].kill()
    _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, stderr
    assert "restart 1 of 1" in stderr
    state = read_state(run)
    assert state is not None
    assert (state.state, state.restarts, state.update) == ("finished", 1, updates)
    records = metrics(run)
    assert [record["update"] for record in records] == list(range(1, updates + 1))
    if algorithm == "ppo":  # a synchronous run ends as it would have without the fault
        options = {**OPTIONS, "--total-updates": updates}
        whole = rlcluster("train", "ppo", "--output-dir", tmp_path / "whole", *flags(options))
        assert whole.returncode == 0, whole.stderr
        assert records == metrics(tmp_path / "whole")


def test_a_users_error_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "file").touch()
    options = {**OPTIONS, "--max-restarts": 3}
    result = rlcluster("train", "ppo", "--output-dir", tmp_path / "run", *flags(options))
    assert result.returncode == 2
    assert "restart" not in result.stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("algorithm", "number", "receiver"),
    [
        ("ppo", signal.SIGTERM, "parent"),
        ("ppo", signal.SIGTERM, "rank 1"),
        ("ppo", signal.SIGINT, "all"),
        ("ppo", signal.SIGHUP, "all"),
        ("impala", signal.SIGTERM, "actor 1"),
        ("a3c", signal.SIGTERM, "worker 1"),
        ("a3c", signal.SIGINT, "all"),
    ],
)
def test_a_signal_stops_all_processes_at_the_same_update(
    algorithm: str, number: signal.Signals, receiver: str, tmp_path: Path
) -> None:
    """`all`: as a terminal's Ctrl-C reaches the parent and all that it has started."""
    run = tmp_path / "run"
    process, members = begin(algorithm, run)
    pids = {"parent": process.pid, **{name: member.pid for name, member in members.items()}}
    for pid in pids.values() if receiver == "all" else [pids[receiver]]:
        os.kill(pid, number)
    _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 128 + number, stderr
    assert not psutil.wait_procs(list(members.values()), timeout=PATIENCE_SECONDS)[1]
    summary = json.loads((run / "benchmark_metrics.json").read_text())
    updates = summary["total_updates"]
    assert len(metrics(run)) == updates
    assert len(list(run.glob(f"checkpoints/*_step_{summary['total_timesteps']}.pt"))) == 1
    if algorithm != "a3c":  # whose workers may have made one update more when they come to rest
        assert summary["total_timesteps"] == updates * 4 * 32
    state = read_state(run)
    assert state is not None
    assert (state.state, state.update, state.reason) == ("preempted", updates, number.name)


def test_a_signal_before_a_rank_can_handle_it_is_not_lost(tmp_path: Path) -> None:
    """While the ranks still import their libraries: they stop at once when they have begun."""
    arguments = command("train", "ppo", "--output-dir", tmp_path / "run", *flags(OPTIONS))
    process = background(arguments)
    while len(ranks := ranks_of(process)) < 2:
        assert process.poll() is None
    for rank in ranks:
        rank.terminate()
    _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 143, stderr
    state = read_state(tmp_path / "run")
    assert state is not None
    assert (state.state, state.reason) == ("preempted", "SIGTERM")


def test_the_learner_waits_for_an_actor_that_falls_behind_so_that_the_lag_stays_bounded(tmp_path: Path) -> None:
    """Two slots an actor: no more than two updates without one that is stopped, and no lag above four."""
    run = tmp_path / "run"
    once = {"checkpoint_updates": 100_000, "max_restarts": 1}  # later checkpoints would wait for all actors
    process, members = begin("impala", run, "checkpoints/*_step_0.pt", **once)
    log = run / "logs" / "IMPALA_Parallel" / "metrics.jsonl"
    while log.read_text().count("\n") < 10:
        assert process.poll() is None
    members["actor 1"].suspend()
    before = at_rest = log.read_text().count("\n")
    still = 0
    while still < 40 and at_rest < before + 1000:  # for two seconds, or never
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
        updates = log.read_text().count("\n")
        still, at_rest = still + 1 if updates == at_rest else 0, updates
    members["actor 1"].resume()
    assert at_rest - before <= 3  # one of them may have begun before
    while log.read_text().count("\n") < at_rest + 10:
        assert process.poll() is None
    process.terminate()
    process.communicate(timeout=PATIENCE_SECONDS)
    assert 1 <= max(record["policy_lag_max"] for record in metrics(run)) <= 2 * 2


@pytest.mark.parametrize("algorithm", PROCESSES)
def test_a_killed_parent_takes_all_with_it(algorithm: str, tmp_path: Path) -> None:
    before, run = shared_memory(), tmp_path / "run"
    process, members = begin(algorithm, run)
    process.kill()
    process.communicate()
    assert not psutil.wait_procs(list(members.values()), timeout=PATIENCE_SECONDS)[1]
    assert_no_memory_left(before)
    state = read_state(run)
    assert state is not None
    assert (state.state, state.reason) == ("failed", "its process ended without reporting an error")


def test_a_run_on_one_machine_listens_on_loopback_only(tmp_path: Path) -> None:
    process, members = begin("ppo", tmp_path / "run")
    ranks = list(members.values())
    listening = [c for p in (psutil.Process(process.pid), *ranks) for c in p.net_connections() if c.status == "LISTEN"]
    connected = [c for rank in ranks for c in rank.net_connections() if c.status == "ESTABLISHED"]
    process.terminate()
    process.communicate(timeout=PATIENCE_SECONDS)
    assert connected
    assert {connection.laddr.ip for connection in (*listening, *connected)} <= {"127.0.0.1", "::1"}
