"""The time of `rlcluster compare` on 15 long runs (5 methods x 3 seeds), and the size of their page.

    python benchmarks/reports.py --updates 20000 --repeats 3

The runs are synthetic: each has a log of --updates updates with episodes, like an hour of training. CPU seconds are
those of the command and its threads: on a busy machine they say more than the wall clock.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from rlcluster.settings.loading import load_settings

METHODS = (
    ("ppo", "sequential"),
    ("ppo", "parallel"),
    ("a2c", "parallel"),
    ("impala", "parallel"),
    ("a3c", "parallel"),
)


def record(update: int, draw: random.Random) -> dict[str, Any]:
    """All the fields of a real log."""
    reward = 5 + 4 * (1 - math.exp(-update / 5000)) + draw.gauss(0, 1)
    losses = (
        "loss",
        "policy_loss",
        "value_loss",
        "entropy",
        "approx_kl",
        "clip_frac",
        "explained_variance",
        "grad_norm",
    )
    return {
        **{"update": update, "steps_global": 2048 * update, "world_size": 1, "fps": draw.gauss(1000, 50)},
        **{"t_iter": 0.18, "t_rollout": 0.03, "t_learn": 0.14, "t_sync": 0.005},
        **{name: draw.gauss(0, 1) for name in losses},
        **{"learning_rate": 5e-4, "episode_count": 12, "episode_reward_mean": reward, "episode_reward_std": 3.0},
        **{"episode_length_mean": 170.0, "episode_reward_recent": reward, "episode_reward_recent_std": 3.0},
        **{"memory_gb": 1.1, "peak_memory_gb": 1.2, "elapsed_seconds": 0.18 * update},
    }


def make_run(path: Path, algorithm: str, mode: str, seed: int, updates: int) -> Path:
    settings = load_settings(algorithm, mode, flags={"env.seed": str(seed)})
    logs = path / "logs" / settings.log_name
    logs.mkdir(parents=True)
    (path / "config.yaml").write_text(settings.to_yaml())
    draw = random.Random(seed)
    lines = (json.dumps(record(update, draw)) for update in range(1, updates + 1))
    (logs / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return path


class Cost(NamedTuple):
    wall_seconds: float
    cpu_seconds: float


def compare(runs: list[Path], output: Path) -> Cost:
    """Of the whole command, including Python's start-up."""
    command = [sys.executable, "-m", "rlcluster", "compare", *map(str, runs), "--output", str(output)]
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(time.perf_counter() - begin, spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            make_run(Path(folder, f"{algorithm}_{mode}_{seed}"), algorithm, mode, seed, options.updates)
            for algorithm, mode in METHODS
            for seed in (1, 2, 3)
        ]
        costs = [compare(runs, Path(folder, "out")) for _ in range(options.repeats)]
        wall, cpu = (statistics.median(values) for values in zip(*costs, strict=True))
        size = Path(folder, "out", "comparison.html").stat().st_size
        print(
            f"compare, {len(runs)} runs of {options.updates:,} updates: median {wall:.2f} s, {cpu:.2f} CPU s (bar: 6 s)"
        )
        print(f"page: {size / 1e6:.2f} MB (bar: 1 MB)")


if __name__ == "__main__":
    main()
