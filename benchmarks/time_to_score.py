"""Minutes to a good agent on all cores: until the mean of the last 500 training episodes on CoinRun reaches 8.0.

Minutes are steps over speed, and the two are measured apart:

- Steps to the score come from training runs, kept in `--runs` (METHOD_seedS). They may run at any time and beside other
  work: load changes their speed, never how many steps PPO needs. Runs that exist are read, and resumed if the score is
  not reached yet; `--no-training` only reads them.
- Speeds are measured side by side in mode parallel on all cores: the methods take turns of a few updates (as in
  modes.py), then the peer makes two updates of the paper's recipe, the first of them not counted. `others` is the
  number of cores that other processes kept busy: it should be 0.0.

A peer needs as many steps as our run of the paper's recipe: the algorithm is the same. Its speed is its own.

    .venv/bin/python benchmarks/time_to_score.py [--methods fast,paper,impala] [--seeds 1,2] [--peer cleanrl|sb3|none]
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from measuring import POLL_SECONDS, PausedRun, Turn, records_of, seconds_of_others
from peers import make_peer_environment, peer_fps
from rlcluster.system import cores, machine

ROOT = Path(__file__).resolve().parent.parent
PATIENT = ("--timeout-seconds", "1000000")  # the pauses between turns are long
ENDLESS = ("--total-updates", "100000000", "--checkpoint-seconds", "1000000")


class Method(NamedTuple):
    arguments: tuple[str, ...]
    updates: int  # per turn, when its speed is measured


METHODS = {
    "fast": Method(("ppo", "--config", str(ROOT / "configs/ppo_procgen_fast.yaml"), "--mode", "parallel"), 1),
    "paper": Method(("ppo", "--config", str(ROOT / "configs/ppo_procgen.yaml"), "--mode", "parallel"), 1),
    "impala": Method(("impala", "--config", str(ROOT / "configs/impala_parallel.yaml")), 4),
}
# The paper's recipe for the peers, whose first update is not counted.
PAPER = (
    *("--env", "coinrun", "--network", "impala", "--num-envs", "64", "--n-steps", "256", "--batch-size", "2048"),
    *("--n-epochs", "3", "--learning-rate", "5e-4", "--gamma", "0.999", "--gae-lambda", "0.95", "--clip-range", "0.2"),
    *("--entropy-coefficient", "0.01", "--value-coefficient", "0.5", "--max-grad-norm", "0.5", "--total-updates", "2"),
)
PEER_LEVELS = {"cleanrl": "0", "sb3": "200"}  # CleanRL's script has no other than all; they do not change its speed
NUM_EPISODES = 500


class Speed(NamedTuple):
    fps: float
    others: float  # cores kept busy by other processes


def main() -> None:
    options = _options()
    seeds = ", ".join(map(str, options.seeds))
    print(f"{machine.cpu_model()}, {cores.allowed()} cores, commit {machine.git_commit()}, seeds {seeds}")
    steps = {name: [_steps_to_score(name, seed, options) for seed in options.seeds] for name in options.methods}
    speeds = _measure_speeds([name for name in steps if any(steps[name])], options.rounds)
    if options.peer != "none":
        speeds[options.peer] = _measure_peer(options.peer)
        steps[options.peer] = steps.get("paper", [])
    minutes = _print_table(steps, speeds)
    if options.peer in minutes:
        for name in options.methods:
            if name in minutes:
                ratio = minutes[options.peer] / minutes[name]
                print(f"{name}: {ratio:.1f} times as fast to {options.score:g} as {options.peer}")


def _steps_to_score(name: str, seed: int, options: argparse.Namespace) -> int | None:
    """From the run of this method and seed, which trains until the score is reached; None if it never is."""
    run = options.runs / f"{name}_seed{seed}"
    steps = first_steps_at(run, options.score)
    if steps is not None or options.no_training:
        return steps
    command = [sys.executable, "-m", "rlcluster", "train"]
    if run.exists():
        command += ["--resume"]
    else:
        command += [*METHODS[name].arguments, "--env", "coinrun", "--seed", str(seed)]
        command += ["--total-timesteps", str(options.most_steps)]
    process = subprocess.Popen([*command, "--output-dir", str(run)], stdout=subprocess.DEVNULL)
    try:
        while process.poll() is None and first_steps_at(run, options.score) is None:
            time.sleep(20 * POLL_SECONDS)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    return first_steps_at(run, options.score)


def first_steps_at(run: Path, score: float) -> int | None:
    """Environment steps of the first update at which the mean of the last NUM_EPISODES episodes reaches the score."""
    files = list(run.glob("logs/*/metrics.jsonl"))
    records = records_of(files[0]) if files else []
    for k in range(len(records)):
        if recent_mean(records[: k + 1]) >= score:
            return int(records[k]["steps_global"])
    return None


def recent_mean(records: list[dict[str, Any]]) -> float:
    """Over the last updates that together have NUM_EPISODES episodes; minus infinity while there are fewer."""
    count, total = 0.0, 0.0
    for record in reversed(records):
        if record["episode_count"]:
            count += record["episode_count"]
            total += record["episode_count"] * record["episode_reward_mean"]
        if count >= NUM_EPISODES:
            return total / count
    return float("-inf")


def _measure_speeds(names: list[str], rounds: int) -> dict[str, Speed]:
    """In turns, so that a slow minute of the machine affects all."""
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        runs = {
            name: stack.enter_context(
                PausedRun(Path(folder, name), *METHODS[name].arguments, "--env", "coinrun", *ENDLESS, *PATIENT)
            )
            for name in names
        }
        for _ in range(rounds):
            for name, paused in runs.items():
                turns[name].append(paused.turn(METHODS[name].updates))
            print(json.dumps({name: round(own[-1].fps) for name, own in turns.items()}), file=sys.stderr, flush=True)
    return {
        name: Speed(median(turn.fps for turn in own), max(turn.others for turn in own)) for name, own in turns.items()
    }


def _measure_peer(peer: str) -> Speed:
    make_peer_environment()
    threads = cores.allowed()
    start, others_before = time.perf_counter(), seconds_of_others()
    fps = peer_fps(peer, (*PAPER, "--num-levels", PEER_LEVELS[peer], "--num-threads", str(threads)), threads)
    return Speed(fps, max(0.0, (seconds_of_others() - others_before) / (time.perf_counter() - start)))


def _print_table(steps: dict[str, list[int | None]], speeds: dict[str, Speed]) -> dict[str, float]:
    """Returns the minutes of each method, the mean over the seeds that reached the score."""
    minutes = {}
    print(f"{'method':10}{'steps':>24}{'steps/s':>10}{'minutes':>10}{'others':>8}")
    for name, own in steps.items():
        reached = [count for count in own if count is not None]
        texts = ", ".join("not reached" if count is None else f"{count:,}" for count in own)
        if not reached or name not in speeds:
            fps_text = f"{speeds[name].fps:10,.0f}" if name in speeds else ""
            print(f"{name:10}{texts or 'not known':>24}{fps_text}", flush=True)
            continue
        fps, others = speeds[name]
        minutes[name] = mean(reached) / fps / 60
        print(f"{name:10}{texts:>24}{fps:10,.0f}{minutes[name]:10.1f}{others:8.1f}", flush=True)
    return minutes


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", type=lambda text: text.split(","), default=["fast", "paper"])
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[1])
    parser.add_argument("--peer", choices=("cleanrl", "sb3", "none"), default="cleanrl")
    parser.add_argument("--score", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=4, help="turns of each method (4)")
    parser.add_argument("--most-steps", type=int, default=3_000_000, help="end of a run without the score (3,000,000)")
    parser.add_argument(
        "--runs", type=Path, default=ROOT / "runs/score", help="folder of the training runs (runs/score)"
    )
    parser.add_argument("--no-training", action="store_true", help="only read the runs that exist")
    return parser.parse_args()


if __name__ == "__main__":
    main()
