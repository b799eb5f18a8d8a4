"""Minutes to a good agent: until the mean of the last 500 training episodes on CoinRun reaches 8.0, on all cores.

Ours are real runs in mode parallel: PPO with configs/ppo_procgen_fast.yaml and with the paper's ppo_procgen.yaml, and
IMPALA with configs/impala_parallel.yaml. A peer's minutes are the environment steps that our run of the paper's recipe
needed, over the peer's own steps per second with that recipe, measured here too: the algorithm is the same, so it needs
as many steps. Other processes falsify the minutes: `others` is the number of cores that they kept busy.

    .venv/bin/python benchmarks/time_to_score.py [--methods fast,paper,impala] [--peer cleanrl|sb3|none] [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from measuring import POLL_SECONDS, seconds_of_others
from peers import make_peer_environment, peer_fps
from rlcluster.system import cores, machine

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
METHODS = {
    "fast": ("ppo", "--config", str(CONFIGS / "ppo_procgen_fast.yaml"), "--mode", "parallel"),
    "paper": ("ppo", "--config", str(CONFIGS / "ppo_procgen.yaml"), "--mode", "parallel"),
    "impala": ("impala", "--config", str(CONFIGS / "impala_parallel.yaml")),
}
# The paper's recipe for the peers, whose first update is not counted.
PAPER = (
    *("--env", "coinrun", "--network", "impala", "--num-envs", "64", "--n-steps", "256", "--batch-size", "2048"),
    *("--n-epochs", "3", "--learning-rate", "5e-4", "--gamma", "0.999", "--gae-lambda", "0.95", "--clip-range", "0.2"),
    *("--entropy-coefficient", "0.01", "--value-coefficient", "0.5", "--max-grad-norm", "0.5", "--total-updates", "3"),
)
NUM_EPISODES = 500


class Reached(NamedTuple):
    """A run that has reached the score."""

    steps: int
    seconds: float
    others: float


def main() -> None:
    options = _options()
    print(f"{machine.cpu_model()}, {cores.allowed()} cores, commit {machine.git_commit()}, seed {options.seed}")
    print(f"{'method':10}{'steps':>12}{'minutes':>10}{'steps/s':>10}{'others':>8}")
    found = {}
    for name in options.methods:
        found[name] = train_to_score(METHODS[name], options.score, options.seed, options.most_minutes)
        _print_line(name, found[name])
    if options.peer == "none" or found.get("paper") is None:
        return
    make_peer_environment()
    threads = cores.allowed()
    fps = peer_fps(options.peer, (*PAPER, "--num-threads", str(threads)), threads)
    steps = found["paper"].steps
    _print_line(options.peer, Reached(steps, steps / fps, 0.0))
    for name, reached in found.items():
        if reached is not None:
            print(f"{name}: {steps / fps / reached.seconds:.1f} times as fast to {options.score:g} as {options.peer}")


def train_to_score(arguments: tuple[str, ...], score: float, seed: int, most_minutes: float) -> Reached | None:
    """Trains until the score is reached; None if it is not within `most_minutes`."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        command = [sys.executable, "-m", "rlcluster", "train", *arguments, "--env", "coinrun", "--seed", str(seed)]
        command += ["--duration", f"{most_minutes}m", "--output-dir", str(run)]
        start, others_before = time.perf_counter(), seconds_of_others()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            while process.poll() is None:
                time.sleep(20 * POLL_SECONDS)
                record = _first_record_at(run, score)
                if record is not None:
                    break
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
        record = _first_record_at(run, score)
        others = (seconds_of_others() - others_before) / (time.perf_counter() - start)
    return None if record is None else Reached(record["steps_global"], record["elapsed_seconds"], max(0.0, others))


def _first_record_at(run: Path, score: float) -> dict[str, float] | None:
    """The first update at which the mean of the last NUM_EPISODES episodes reaches the score."""
    files = list(run.glob("logs/*/metrics.jsonl"))
    lines = files[0].read_text().splitlines(keepends=True) if files else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    for k in range(len(records)):
        if _recent_mean(records[: k + 1]) >= score:
            return dict(records[k])
    return None


def _recent_mean(records: list[dict[str, float]]) -> float:
    """Over the last updates that together have NUM_EPISODES episodes; minus infinity while there are fewer."""
    count, total = 0.0, 0.0
    for record in reversed(records):
        if record["episode_count"]:
            count += record["episode_count"]
            total += record["episode_count"] * record["episode_reward_mean"]
        if count >= NUM_EPISODES:
            return total / count
    return float("-inf")


def _print_line(name: str, reached: Reached | None) -> None:
    if reached is None:
        print(f"{name:10}{'not reached':>12}", flush=True)
        return
    fps = reached.steps / reached.seconds
    print(f"{name:10}{reached.steps:12,}{reached.seconds / 60:10.1f}{fps:10,.0f}{reached.others:8.1f}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", type=lambda text: text.split(","), default=["fast", "paper"])
    parser.add_argument("--peer", choices=("cleanrl", "sb3", "none"), default="cleanrl")
    parser.add_argument("--score", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-minutes", type=float, default=45.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
