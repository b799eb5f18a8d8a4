"""What the benchmarks share: a command in a process of its own, the fps of a run, and what disturbed it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import psutil


class Speed(NamedTuple):
    """A run after its first update."""

    fps: float
    sync_share: float  # of the time of its updates
    peak_memory_gb: float


def measure_training(*arguments: str) -> Speed:
    """`rlcluster train` with these arguments, in a run directory that is then removed."""
    with tempfile.TemporaryDirectory() as folder:
        run([sys.executable, "-m", "rlcluster", "train", *arguments, "--output-dir", f"{folder}/run"])
        (metrics,) = Path(folder, "run", "logs").glob("*/metrics.jsonl")
        records: list[dict[str, Any]] = [json.loads(line) for line in metrics.read_text().splitlines()]
    first, *rest = records
    steps = rest[-1]["steps_global"] - first["steps_global"]
    seconds = rest[-1]["elapsed_seconds"] - first["elapsed_seconds"]
    share = sum(record["t_sync"] for record in rest) / sum(record["t_iter"] for record in rest)
    return Speed(steps / seconds, share, rest[-1]["peak_memory_gb"])


def run(command: list[str], variables: dict[str, str] | None = None) -> str:
    """The command's output; ends this process with the command's errors if it fails."""
    environment = {**os.environ, **(variables or {})}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{result.stderr}{' '.join(command)}: failed with exit code {result.returncode}")
    return result.stdout


def seconds_of_others() -> float:
    """CPU seconds that this machine has spent so far, less those of this process and its finished children."""
    whole = psutil.cpu_times()
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return float(whole.user + whole.nice + whole.system - sum(usage.ru_utime + usage.ru_stime for usage in own))
