"""Shared helpers and fixtures."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import psutil
import pytest

from rlcluster.settings.loading import load_settings
from rlcluster.settings.schema import Settings
from rlcluster.system import cores
from rlcluster.system.launcher import LOOPBACK, Placement
from rlcluster.system.processes import run_ranks
from rlcluster.system.signals import SIGNALS, StopRequest

from chromium import open_browser

# No test asserts a time, and all runs of the tests try the same examples; `--hypothesis-profile random` tries others.
hypothesis.settings.register_profile("fixed", deadline=None, derandomize=True)
hypothesis.settings.register_profile("random", deadline=None)
hypothesis.settings.load_profile("fixed")
cores.limit_threads(1)  # the tests of this process compare bits: one thread, set before torch starts

import torch  # noqa: E402 - after its threads were limited

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
    timing = {"fps", "rank_fps_min", "rank_fps_max", "rank_slowest", "elapsed_seconds", "memory_gb", "peak_memory_gb"}
    (file,) = run.glob("logs/*/metrics.jsonl")
    lines = file.read_text().splitlines(keepends=True)
    records = [json.loads(line) for line in lines if line.endswith("\n")]  # the last may be half written
    return [{k: v for k, v in record.items() if k not in timing and not k.startswith("t_")} for record in records]


def on_ranks(world_size: int, target: Callable[..., Any], *arguments: Any, timeout_seconds: float = 20.0) -> list[Any]:
    """Runs target(ranks, *arguments) in one real process per rank, over a real gloo group; returns their results."""
    with tempfile.TemporaryDirectory() as folder, StopRequest() as stop:
        rendezvous = f"{folder}/rendezvous", timeout_seconds
        return run_ranks(world_size, _on_rank, (world_size, rendezvous, target, arguments), stop)


def _on_rank(
    rank: int,
    stop: StopRequest,
    world_size: int,
    rendezvous: tuple[str, float],
    target: Callable[..., Any],
    arguments: Any,
) -> Any:
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    file, timeout_seconds = rendezvous
    return target(join_group(Placement(rank, world_size, rank, world_size), timeout_seconds, file), *arguments)


_in_background: list[subprocess.Popen[Any]] = []  # of the current test


def background(arguments: list[str], **options: Any) -> subprocess.Popen[Any]:
    """Starts a command with pipes for its output. Whatever becomes of the test, it does not outlive it."""
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(arguments, **{**streams, **options})
    _in_background.append(process)
    return process


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    yield
    while _in_background:
        end(_in_background.pop())


def end(process: subprocess.Popen[Any]) -> None:
    """Kills it and all that it has started, also if they are stopped."""
    if process.poll() is None:
        others = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for other in others:
            with suppress(psutil.NoSuchProcess):  # it died with its parent
                other.kill()
        process.wait()
        psutil.wait_procs(others, timeout=30)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(OSError):  # what it has not read
                stream.close()


def start(run: Path, arguments: list[str], until: str, **options: Any) -> subprocess.Popen[str]:
    """Starts a command in the background; returns once its run has a file that matches `until`."""
    process = background(arguments, **options)
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
def _same_process() -> Iterator[None]:
    with same_process():
        yield


@contextmanager
def same_process() -> Iterator[None]:
    """What code under test changes in this process ends with its test: cores, mask of new files, folder, variables,
    signal handlers and threads.
    """
    environment, folder, threads = dict(os.environ), Path.cwd(), torch.get_num_threads()
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    mask = os.umask(0o022)
    os.umask(mask)
    yield
    os.umask(mask)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    if affinity is not None:
        os.sched_setaffinity(0, affinity)
    torch.set_num_threads(threads)
    os.chdir(folder)
    if os.environ != environment:
        os.environ.clear()
        os.environ.update(environment)


@pytest.fixture(autouse=True)
def _no_scheduler(_same_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the job that the tests themselves may run in."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "PBS_", "RLCLUSTER_"))]:
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


FAST_RECIPE = {
    **{"env.num_envs": "64", "policy.network": "impala"},
    **{"training.n_steps": "256", "training.n_minibatches": "32", "training.n_epochs": "1"},
}


def publish_runs(folder: Path, method: str, rewards: dict[tuple[str, int], float], **flags: Any) -> None:
    """Published runs of 1.5 M steps, by game and seed, whose reward rises evenly from 0 to the given one. They are of
    the fast recipe unless `flags` say otherwise.
    """
    from rlcluster.reports.curves import Slices
    from rlcluster.reports.published import LevelsResult, PublishedMethod, PublishedRun, method_text

    positions = np.arange(1, 61)
    runs = [
        PublishedRun(
            **{"game": game, "seed": seed, "state": "finished", "planned_steps": 1_500_000, "background_load": 0.02},
            curve=Slices(25_000.0 * positions, 25.0 * positions, np.full(60, 250.0), reward * positions / 60),
            evaluation={"test": LevelsResult(reward - 1, reward - 1.5, reward - 0.5, 300)},
            evaluated_steps=1_500_000,
            machine={"cpu_model": "a processor", "cores": 2, "versions": {"torch": "2"}, "git_commit": "abc"},
        )
        for (game, seed), reward in rewards.items()
    ]
    settings = load_settings(flags.pop("algorithm", None), flags.pop("mode", None), flags={**FAST_RECIPE, **flags})
    folder.mkdir(exist_ok=True)
    (folder / f"{method}.json").write_text(method_text(PublishedMethod(method, settings, runs)))


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder in place of the package's published runs."""
    folder = tmp_path / "published"
    monkeypatch.setattr("rlcluster.reports.published.published_folder", lambda: folder)
    return folder


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


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with open_browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened
