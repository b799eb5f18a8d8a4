"""The scripts of `benchmarks/` run, in shortened form: their figures here say nothing about speed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
MODULES = {"measuring", "two_hosts", "peer_options"}  # of the others
WITH_PEERS = {"peer_sb3", "peer_cleanrl"}  # run with the packages of .venv-peers, which peers.py installs
ELSEWHERE = {"stress"}  # tests/test_stress.py
# By script: the smallest run, and a part of what it prints.
SHORT: dict[str, tuple[tuple[str, ...], str]] = {
    "modes": (("--workload", "ppo cartpole", "--rounds", "2", "--updates", "1"), "parallel / sequential, 1 thread: "),
    "network": (("--seconds", "0.001"), "forward+backward"),
    "profiling_cost": (("--pairs", "2", "--num-envs", "2", "--n-steps", "4"), "profiled / plain: "),
    "forecasts": (
        ("--games", "CartPole-v1", "--only", "ppo.* 1 rank", "--measure-seconds", "1", "--run-seconds", "1"),
        "| ppo, CartPole-v1, 1 rank | ",
    ),
    "tuning": (("--env", "CartPole-v1", "--minutes", "0.2", "--rounds", "1"), "chosen / best: "),
    "reports": (("--updates", "50", "--repeats", "1"), "compare, 15 runs of 50 updates: median "),
    "resumption": (("--games", "starpilot"), "1 of 1 resumed runs are the same"),
    "time_to_score": (("--no-training", "--peer", "none", "--runs", "nowhere"), "not reached"),
}
# Arguments that are refused, and with which words.
REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "modes": (("--updates", "0"), "--updates 0 should be at least 1"),
    "network": (("--seconds", "0"), "both should be positive"),
    "forecasts": (("--only", "maze"), "--only maze: matches no case, such as ppo, coinrun, 1 rank"),
    "resumption": (("--games", "mazes"), "mazes: unknown; choose from bigfish"),
    "peers": (("--peer", "cleanrl", "--workload", "nature"), "--peer cleanrl has no network for --workload nature"),
    "time_to_score": (("--peer", "rllib"), "invalid choice: 'rllib'"),
    "same_results": ((), "the following arguments are required: command"),
}


def run(script: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / f"{script}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=590, cwd=folder)


def test_every_script_has_a_short_run_or_is_refused_something() -> None:
    scripts = {file.stem for file in FOLDER.glob("*.py")}
    assert scripts == {*SHORT, *REFUSED, *MODULES, *WITH_PEERS, *ELSEWHERE}


@pytest.mark.slow
@pytest.mark.parametrize("script", SHORT)
def test_a_short_run_prints_its_results(script: str, tmp_path: Path) -> None:
    arguments, expected = SHORT[script]
    result = run(script, *arguments, folder=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert expected in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("script", REFUSED)
def test_arguments_without_a_meaning_are_refused_without_a_traceback(script: str, tmp_path: Path) -> None:
    arguments, problem = REFUSED[script]
    result = run(script, *arguments, folder=tmp_path)
    assert result.returncode != 0
    assert problem in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted({*SHORT, *REFUSED}))
def test_help_says_how_to_run_a_script(script: str, tmp_path: Path) -> None:
    result = run(script, "--help", folder=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert f"{script}.py" in result.stdout
