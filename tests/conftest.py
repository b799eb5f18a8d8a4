"""Shared helpers and fixtures."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest

from rlcluster.settings.loading import load_settings
from rlcluster.settings.schema import Settings
from rlcluster.system import cores
from rlcluster.system.launcher import LOOPBACK, Placement
from rlcluster.system.processes import run_ranks
from rlcluster.system.signals import StopRequest

hypothesis.settings.register_profile("unhurried", deadline=None)  # no test asserts a time
hypothesis.settings.load_profile("unhurried")
cores.limit_threads(1)  # the tests of this process compare bits: one thread, set before torch starts

from rlcluster.exchange.ranks import join_group  # noqa: E402 - it imports torch
from rlcluster.runs.status import RunState  # noqa: E402 - it imports numpy

CARTPOLE = {"--env": "CartPole-v1", "--num-envs": 4, "--n-steps": 32, "--checkpoint-updates": 2, "--num-threads": 1}
COINRUN = {**CARTPOLE, "--env": "coinrun", "--n-steps": 16, "--network": "nature"}

# Bit-identical until the first optimiser step; after it, sums are taken in another order.
EXACT = (
    *("update", "steps_global", "episode_count", "episode_length_mean", "learning_rate"),
    *("episode_reward_mean", "episode_reward_std"),
)
CLOSE = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "explained_variance", "grad_norm")


def flags(options: dict[str, Any]) -> list[str]:
    return [str(part) for pair in options.items() for part in pair]


def rlcluster(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """The real command, in its own process."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300, check=False, **options)


def train(algorithm: str, run: Path, options: dict[str, Any], *more: str) -> subprocess.CompletedProcess[str]:
    return rlcluster("train", algorithm, "--output-dir", run, *flags(options), *more)


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "rlcluster", *map(str, arguments)]


def metrics(run: Path) -> list[dict[str, Any]]:
    """The log of a run, without timings and memory."""
    timing = {"fps", "elapsed_seconds", "memory_gb", "peak_memory_gb"}
    (file,) = run.glob("logs/*/metrics.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return [{k: v for k, v in record.items() if k not in timing and not k.startswith("t_")} for record in records]


def on_ranks(world_size: int, target: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Runs target(ranks, *arguments) in one real process per rank, over a real gloo group; returns their results."""
    with tempfile.TemporaryDirectory() as folder, StopRequest() as stop:
        return run_ranks(world_size, _on_rank, (world_size, f"{folder}/rendezvous", target, arguments), stop)


def _on_rank(
    rank: int, stop: StopRequest, world_size: int, rendezvous: str, target: Callable[..., Any], arguments: Any
) -> Any:
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    return target(join_group(Placement(rank, world_size, rank, world_size), 20.0, rendezvous), *arguments)


def start(
    run: Path, arguments: list[str], until: str, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Starts a command in the background; returns once its run has a file that matches `until`."""
    process = subprocess.Popen(arguments, stdout=stdout, stderr=stderr, text=True)
    while not list(run.glob(until)):
        if process.poll() is not None:
            raise AssertionError(process.communicate())
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    return process


def ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The spawned ranks of a parallel run, in order."""
    children = psutil.Process(process.pid).children(recursive=True)
    return sorted((c for c in children if "spawn_main" in " ".join(c.cmdline())), key=lambda child: child.create_time())


def assert_same_course(ours: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(ours) == len(expected)
    for record, other in zip(ours, expected, strict=True):
        for name in EXACT:
            assert record[name] == other[name], name
        for name in CLOSE:
            relative, absolute = (1e-5, 1e-6) if record["update"] == 1 else (2e-3, 1e-4)
            assert record[name] == pytest.approx(other[name], rel=relative, abs=absolute), (record["update"], name)


@contextmanager
def disk_full_after(num_bytes: int) -> Iterator[None]:
    """No file of this process can grow beyond `num_bytes`; Python ignores the accompanying SIGXFSZ."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(autouse=True)
def _kernels(request: pytest.FixtureRequest) -> None:
    """Skips the kernels' tests where there was no compiler to build them."""
    if request.path.parent.name == "kernels":
        from rlcluster.networks.kernels.library import KernelsMissingError, load

        try:
            load()
        except KernelsMissingError as error:
            pytest.skip(f"no kernels: {error}")


@pytest.fixture(autouse=True)
def _no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the Slurm job that the tests themselves may run in."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)


def write_run(
    path: Path, flags: dict[str, Any], rewards: list[float | None], fps: float = 1000.0, **changes: Any
) -> Path:
    """A run directory as training leaves it, with one update per reward: 10 episodes in 1,000 steps. `changes` replace
    whole files: machine, state, summary, evaluation; None omits one.
    """
    settings = load_settings(flags.pop("algorithm", None), flags.pop("mode", None), flags=flags)
    logs = path / "logs" / settings.log_name
    logs.mkdir(parents=True)
    (path / "config.yaml").write_text(settings.to_yaml())
    records = [record_of(k + 1, reward, fps) for k, reward in enumerate(rewards)]
    (logs / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    machine_facts = {"cpu_model": "a processor", "cores_allowed": 2, "versions": {"torch": "2"}, "git_commit": "abc"}
    files = {
        "machine": ("machine.json", machine_facts),
        "state": ("run_state.json", RunState("finished", 1000 * len(rewards), len(rewards))._asdict()),
        "summary": ("benchmark_metrics.json", summary_at(settings, rewards, fps)),
        "evaluation": ("evaluation.json", None),
    }
    for key, (name, content) in files.items():
        if (chosen := changes.get(key, content)) is not None:
            (path / name).write_text(json.dumps(chosen))
    return path


def record_of(update: int, reward: float | None, fps: float) -> dict[str, Any]:
    """One line of a log: 1,000 steps, 10 episodes."""
    seconds = 1000 / fps
    return {
        **{"update": update, "steps_global": 1000 * update, "elapsed_seconds": update * seconds},
        **{
            "fps": fps,
            "t_iter": seconds,
            "t_rollout": 0.5 * seconds,
            "t_learn": 0.3 * seconds,
            "t_sync": 0.1 * seconds,
        },
        **{"policy_loss": -0.1, "value_loss": 0.5, "entropy": 2.0, "memory_gb": 1.0, "peak_memory_gb": 1.5},
        **{"episode_count": 0 if reward is None else 10, "episode_reward_mean": reward, "episode_reward_std": 1.0},
        **{"episode_length_mean": 100.0, "episode_reward_recent": reward, "episode_reward_recent_std": 1.0},
    }


def summary_at(settings: Settings, rewards: list[float | None], fps: float) -> dict[str, Any]:
    known = [reward for reward in rewards if reward is not None] or [None]
    return {
        **{"algorithm": settings.algorithm, "mode": settings.mode, "env": settings.env.name, "network": "impala"},
        **{"world_size": 1, "num_workers": 1, "num_threads": 2, "duration_seconds": 1000 * len(rewards) / fps},
        **{"total_timesteps": 1000 * len(rewards), "total_updates": len(rewards), "average_fps": fps, "final_fps": fps},
        **{
            "initial_reward": known[0],
            "final_reward": known[-1],
            "best_reward": max(known, key=lambda reward: reward or 0.0),
            "peak_memory_gb": 1.5,
        },
        **{"timesteps_per_hour": fps * 3600, "background_load": 0.0},
    }


def evaluation_of(test: float, train: float | None = None, episodes: int = 50, steps: int = 20_000) -> dict[str, Any]:
    """What `rlcluster evaluate --json` writes."""
    results = {"test": test} if train is None else {"train": train, "test": test}
    return {
        **{"checkpoint": "x.pt", "env": "coinrun", "steps_global": steps, "deterministic": False, "seed": 0},
        "results": {
            levels: {"episodes": episodes, "reward_mean": mean, "reward_interval_95": [mean - 0.5, mean + 0.5]}
            for levels, mean in results.items()
        },
    }
