"""What several test files share."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rlcluster import machine

machine.limit_threads(1)  # the tests of this process compare bits: one thread, set before torch starts

CARTPOLE = {"--env": "CartPole-v1", "--num-envs": 4, "--n-steps": 32, "--checkpoint-updates": 2, "--num-threads": 1}
COINRUN = {**CARTPOLE, "--env": "coinrun", "--n-steps": 16, "--network": "nature"}


def flags(options: dict[str, Any]) -> list[str]:
    return [str(part) for pair in options.items() for part in pair]


def rlcluster(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """The real command, in a process of its own."""
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300, check=False, **options)


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "rlcluster", *map(str, arguments)]


def metrics(run: Path) -> list[dict[str, Any]]:
    """The log of a run, less what depends on the clock and on the memory."""
    timing = {"fps", "elapsed_seconds", "memory_gb", "peak_memory_gb"}
    (file,) = run.glob("logs/*/metrics.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return [{k: v for k, v in record.items() if k not in timing and not k.startswith("t_")} for record in records]


@contextmanager
def disk_full_after(num_bytes: int) -> Iterator[None]:
    """No file of this process can grow beyond `num_bytes`; Python ignores the signal that goes with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(autouse=True)
def _kernels(request: pytest.FixtureRequest) -> None:
    """Without a compiler there are no kernels, and nothing in their folder to test."""
    if request.path.parent.name == "kernels":
        from rlcluster.kernels.library import KernelsMissingError, load

        try:
            load()
        except KernelsMissingError as error:
            pytest.skip(f"no kernels: {error}")


@pytest.fixture(autouse=True)
def _no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test machine may itself be a job of a scheduler; the tests are not."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
