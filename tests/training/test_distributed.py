"""Distributed runs under the real torchrun: on this machine, and on two machines made of network namespaces."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlcluster.runs.status import read_state
from rlcluster.system import cores

from conftest import CARTPOLE, COINRUN, assert_same_course, background, command, flags, metrics, rlcluster, start

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
MINIBATCHES: dict[str, dict[str, Any]] = {"ppo": {"--n-minibatches": 2, "--n-epochs": 2}, "a2c": {}}
OPTIONS = {**CARTPOLE, **MINIBATCHES["ppo"]}


def torchrun(launch: list[str], algorithm: str, run: Path, options: dict[str, Any], *more: str) -> list[str]:
    program = ["-m", "rlcluster", "train", algorithm, "--mode", "distributed", "--output-dir", str(run)]
    return [*TORCHRUN, *launch, *program, *flags(options), *more]


def local(num_ranks: int, *more: str) -> list[str]:
    return ["--standalone", "--nproc-per-node", str(num_ranks), *more]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "algorithm"), [("cartpole", "a2c"), ("coinrun", "ppo")])
def test_two_ranks_under_torchrun_and_on_their_own_equal_sequential(name: str, algorithm: str, tmp_path: Path) -> None:
    options = {**(COINRUN if name == "coinrun" else CARTPOLE), **MINIBATCHES[algorithm], "--total-updates": 4}
    alone = rlcluster("train", algorithm, "--output-dir", tmp_path / "alone", *flags(options))
    assert alone.returncode == 0, alone.stderr
    command = torchrun(local(2), algorithm, tmp_path / "torchrun", options)
    launched = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert launched.returncode == 0, launched.stderr
    assert launched.stdout.count("TRAINING SUMMARY") == 1, "rank 0 alone speaks"
    more = {**options, "--mode": "distributed", "--num-workers": 2}
    own = rlcluster("train", algorithm, "--output-dir", tmp_path / "own", *flags(more))
    assert own.returncode == 0, own.stderr
    for run in ("torchrun", "own"):
        records = metrics(tmp_path / run)
        assert {record["world_size"] for record in records} == {2}
        assert_same_course(records, metrics(tmp_path / "alone"))


@pytest.mark.slow
def test_our_threads_win_over_torchruns(tmp_path: Path) -> None:
    """torchrun says OMP_NUM_THREADS=1; a rank alone on its machine has all cores, two have half of them each."""
    options = {name: value for name, value in OPTIONS.items() if name != "--num-threads"}
    options["--hidden-sizes"] = "512"  # smaller ones have one thread
    for num_ranks in (1, 2):
        run = tmp_path / str(num_ranks)
        command = torchrun(local(num_ranks), "ppo", run, {**options, "--total-updates": 1})
        subprocess.run(
            command, check=True, capture_output=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        summary = json.loads((run / "benchmark_metrics.json").read_text())
        expected = cores.allowed() if num_ranks == 1 else max(1, cores.observe().physical // num_ranks)
        assert summary["num_threads"] == expected


@pytest.mark.slow
def test_torchrun_restarts_a_run_from_its_last_checkpoint(tmp_path: Path) -> None:
    run, options = tmp_path / "run", {**OPTIONS, "--total-updates": 100}
    process = start(run, torchrun(local(2, "--max-restarts", "1"), "ppo", run, options), "checkpoints/*_step_[1-9]*.pt")
    ranks = [child for child in psutil.Process(process.pid).children(recursive=True) if "rlcluster" in child.cmdline()]
    ranks[-1].kill()
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    state = read_state(run)
    assert state is not None
    assert (state.state, state.restarts, state.update) == ("finished", 1, 100)
    more = {**options, "--mode": "parallel", "--num-workers": 2}
    whole = rlcluster("train", "ppo", "--output-dir", tmp_path / "whole", *flags(more))
    assert whole.returncode == 0, whole.stderr
    assert metrics(run) == metrics(tmp_path / "whole")


@pytest.mark.slow
def test_a_signal_to_torchrun_saves_and_another_number_of_ranks_resumes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    endless = torchrun(local(2), "ppo", run, {**OPTIONS, "--total-updates": 100_000})
    process = start(run, endless, "checkpoints/*_step_[1-9]*.pt")
    process.terminate()
    process.communicate(timeout=90)
    state = read_state(run)
    assert state is not None
    assert state.state == "preempted"
    assert len(metrics(run)) == state.update
    resume = torchrun(local(1), "ppo", run, {"--total-updates": state.update + 1}, "--resume")
    resumed = subprocess.run(resume, capture_output=True, text=True, timeout=120, check=False)
    assert resumed.returncode == 0, resumed.stderr
    assert [record["world_size"] for record in metrics(run)[-2:]] == [2, 1]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"--mode": "parallel"}, "--mode parallel: a launcher has started 2 processes; use --mode distributed"),
        (
            {"--mode": "distributed", "--num-workers": 3},
            "num_workers=3 but the launcher has started WORLD_SIZE=2 ranks",
        ),
        ({"--mode": "distributed", "--max-restarts": 3}, "the launcher restarts its ranks"),
        ({"--mode": "distributed", "--num-envs": 1}, "parallel.num_workers=2 but env.num_envs=1"),
    ],
)
def test_what_does_not_fit_the_launcher_is_refused_in_one_line(
    more: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(variable, str(value))
    result = rlcluster("train", "ppo", "--output-dir", tmp_path / "run", *flags({**CARTPOLE, **more}))
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_busy_port_ends_the_command_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        values = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
        for variable, value in {**values, "MASTER_ADDR": "127.0.0.1"}.items():
            monkeypatch.setenv(variable, str(value))
        result = rlcluster("train", "ppo", "--mode", "distributed", "--output-dir", tmp_path / "run", *flags(CARTPOLE))
    assert result.returncode == 1
    assert f"rank 0: rank 0 cannot listen at MASTER_ADDR=127.0.0.1 MASTER_PORT={port}: another" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


# Two machines


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def machines() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a cable between them: 10.77.1.1 and 10.77.1.2 on the interface `cable`."""
    if shutil.which("ip") is None or shutil.which("nsenter") is None:
        pytest.skip("no ip or nsenter (packages iproute2, util-linux): no second machine can be made")
    names = (f"rlcluster-{os.getpid()}-1", f"rlcluster-{os.getpid()}-2")
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
        for k, name in enumerate(names):
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "addr", "add", f"10.77.1.{k + 1}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
    except subprocess.CalledProcessError as error:
        _remove(names)
        pytest.skip(f"this machine does not allow network namespaces: {error.stderr.decode().strip()}")
    yield names
    _remove(names)


def _remove(names: tuple[str, str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def on_machine(names: tuple[str, str], k: int, run: Path, options: dict[str, Any], *more: str) -> list[str]:
    launch = ["--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(k)]
    address = ["--master-addr", "10.77.1.1", "--master-port", "29517"]
    return ["nsenter", f"--net=/run/netns/{names[k]}", *torchrun([*launch, *address], "ppo", run, options, *more)]


def train_on_both(names: tuple[str, str], folder: Path, options: dict[str, Any], *more: str) -> None:
    """The second machine never sees the run directory: it is given another path."""
    second = on_machine(names, 1, folder / "elsewhere", options, *more)
    other = background(second, stdout=None)
    command = on_machine(names, 0, folder / "run", options, *more)
    first = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    _, stderr = other.communicate(timeout=300)
    assert (first.returncode, other.returncode) == (0, 0), first.stderr + stderr


@pytest.mark.slow
def test_two_machines_train_and_resume_together_to_the_result_of_one(machines: tuple[str, str], tmp_path: Path) -> None:
    train_on_both(machines, tmp_path, {**OPTIONS, "--total-updates": 2})
    train_on_both(machines, tmp_path, {"--total-updates": 4}, "--resume")
    assert not (tmp_path / "elsewhere").exists()
    alone = rlcluster("train", "ppo", "--output-dir", tmp_path / "alone", *flags({**OPTIONS, "--total-updates": 4}))
    assert alone.returncode == 0, alone.stderr
    assert_same_course(metrics(tmp_path / "run"), metrics(tmp_path / "alone"))


@pytest.mark.slow
def test_a_cut_cable_ends_the_run_on_both_machines_within_the_time_out(
    machines: tuple[str, str], tmp_path: Path
) -> None:
    run, options = tmp_path / "run", {**OPTIONS, "--total-updates": 100_000, "--timeout-seconds": 12}
    other = background(on_machine(machines, 1, tmp_path / "elsewhere", options), stdout=None)
    first = start(run, on_machine(machines, 0, run, options), "checkpoints/*_step_[1-9]*.pt")
    ip("-n", machines[0], "link", "set", "cable", "down")
    _, stderr = first.communicate(timeout=90)
    assert first.returncode == 1  # torchrun's, whatever the reason
    assert "rank 1 did not answer for" in stderr
    _, stderr = other.communicate(timeout=90)
    assert "rank 0 did not answer for" in stderr
    state = read_state(run)
    assert state is not None
    assert (state.state, state.failed_rank) == ("failed", 1)


@pytest.mark.slow
def test_an_interface_that_reaches_nobody_is_named(machines: tuple[str, str], tmp_path: Path) -> None:
    """Each machine has a second network, which ends there. Rank 0 waits for the other: the test does not."""
    processes = []
    for k, name in enumerate(machines):
        ip("-n", name, "link", "add", "other", "type", "veth", "peer", "name", "end")
        ip("-n", name, "addr", "add", f"10.77.{k + 3}.1/24", "dev", "other")
        for link in ("other", "end"):
            ip("-n", name, "link", "set", link, "up")
        places = {"RANK": k, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": k}
        network = {"MASTER_ADDR": "10.77.1.1", "MASTER_PORT": 29518, "GLOO_SOCKET_IFNAME": "other"}
        training = command("train", "ppo", "--mode", "distributed", "--output-dir", tmp_path / name, *flags(OPTIONS))
        entered = ["nsenter", f"--net=/run/netns/{name}", *training]
        environment = {**os.environ, **{key: str(value) for key, value in {**places, **network}.items()}}
        processes.append(background(entered, env=environment))
    _, stderr = processes[1].communicate(timeout=90)
    assert processes[1].returncode == 71
    assert "but cannot connect to them through GLOO_SOCKET_IFNAME=other; set it" in stderr
    assert "Network is unreachable" in stderr
