"""Our PPO against Stable-Baselines3's: environment steps per second, rollout and learning included.

Both run the same workload and the same algorithm, through the same flags: no reward normalisation, no value clipping
(the two clip differently). Ours is the real command, `rlcluster train ppo`, timed by its own metrics; the peer is
peer_sb3.py in its own virtual environment, .venv-peers, created if missing. Measurements alternate (ours, peer, ours,
peer, ...), each in its own process; the first update of each is excluded. Values are medians over the repeats; `pairs`
are the lowest and the highest ratio within a pair.

`others` is the most cores that other processes kept busy. It should be 0.0: when two threads share their two cores with
another process, both sides can run many times slower, and not by the same factor.

    .venv/bin/python benchmarks/peers.py --workload all --threads 1,2 --repeats 3
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from measuring import measure_training, run, seconds_of_others
from rlcluster.system import cores, machine

ROOT = Path(__file__).resolve().parent.parent
PEER_ENVIRONMENT = ROOT / ".venv-peers"
PEER_PYTHON = PEER_ENVIRONMENT / "bin" / "python"
PEER_PACKAGES = ("torch==2.13.0", "numpy<2", "stable-baselines3==2.9.2", "procgen-mirror==0.10.7")

MATHEMATICS = (
    *("--learning-rate", "5e-4", "--gamma", "0.999", "--gae-lambda", "0.95", "--clip-range", "0.2"),
    *("--entropy-coefficient", "0.01", "--value-coefficient", "0.5", "--max-grad-norm", "0.5"),
)
OURS_ONLY = ("--clip-value-range", "null", "--normalize-rewards", "false", "--normalize-advantages", "true")
COINRUN = (
    *("--env", "coinrun", "--distribution-mode", "easy", "--num-levels", "200", "--start-level", "0"),
    *("--num-envs", "64", "--n-steps", "64", "--batch-size", "2048", "--n-epochs", "3"),
)
CARTPOLE = (
    *("--env", "CartPole-v1"),
    *("--num-envs", "8", "--n-steps", "256", "--batch-size", "512", "--n-epochs", "4"),
)


class Workload(NamedTuple):
    flags: tuple[str, ...]
    measured_updates: int
    bars: dict[int, float]  # threads -> our fps / the peer's


WORKLOADS = {
    "impala": Workload(("--network", "impala", *COINRUN), 1, {1: 3.5, 2: 3.5}),
    "nature": Workload(("--network", "nature", *COINRUN), 6, {1: 1.6, 2: 1.6}),
    "cartpole": Workload(("--network", "mlp", *CARTPOLE), 20, {1: 1.2, 2: 1.2}),
}


class Pair(NamedTuple):
    """The fps of two consecutive measurements."""

    ours: float
    peer: float
    others: float  # cores kept busy by other processes meanwhile


def main() -> None:
    options = _options()
    make_peer_environment()
    load = os.getloadavg()[0]
    print(f"{machine.cpu_model()}, {cores.allowed()} cores, load {load:.1f}, commit {machine.git_commit()}")
    print(f"peer: {', '.join(PEER_PACKAGES)}; {options.repeats} repeats")
    columns = f"{'ours fps':>11}{'peer fps':>11}{'ratio':>8}{'bar':>6}{'pairs':>15}{'others':>8}"
    print(f"{'workload':10}{'threads':>8}{columns}")
    for name in WORKLOADS if options.workload == "all" else (options.workload,):
        for num_threads in options.threads:
            pairs = [measure_pair(name, num_threads) for _ in range(options.repeats)]
            _print_line(name, num_threads, pairs)


def make_peer_environment() -> None:
    """Creates the environment if missing and installs its packages, which is quick if they are there."""
    if not PEER_PYTHON.exists():
        run([sys.executable, "-m", "venv", str(PEER_ENVIRONMENT)])
    run([str(PEER_PYTHON), str(ROOT / "scripts" / "install.py"), *PEER_PACKAGES])


def measure_pair(name: str, num_threads: int) -> Pair:
    workload = WORKLOADS[name]
    run_length = ("--total-updates", str(1 + workload.measured_updates), "--num-threads", str(num_threads))
    flags = (*workload.flags, *MATHEMATICS, *run_length)
    start, others_before = time.perf_counter(), seconds_of_others()
    ours, peer = measure_training("ppo", *flags, *OURS_ONLY), _peer_fps(flags, num_threads)
    others = (seconds_of_others() - others_before) / (time.perf_counter() - start)
    pair = Pair(ours, peer, max(0.0, others))
    print(f"{name}, {num_threads} threads: {json.dumps(pair._asdict())}", file=sys.stderr, flush=True)
    return pair


def _peer_fps(flags: tuple[str, ...], num_threads: int) -> float:
    command = [str(PEER_PYTHON), str(ROOT / "benchmarks" / "peer_sb3.py"), *flags]
    threads = {variable: str(num_threads) for variable in cores.THREAD_VARIABLES}
    last_line = run(command, threads).splitlines()[-1]
    return float(json.loads(last_line)["fps"])


def _print_line(name: str, num_threads: int, pairs: list[Pair]) -> None:
    ours, peer = median(pair.ours for pair in pairs), median(pair.peer for pair in pairs)
    ratios = [pair.ours / pair.peer for pair in pairs]
    bar = WORKLOADS[name].bars.get(num_threads)
    bar_text = "-" if bar is None else f"{bar:.1f}"
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    others = max(pair.others for pair in pairs)
    figures = f"{ours:11,.0f}{peer:11,.0f}{ours / peer:8.2f}{bar_text:>6}{spread:>15}{others:8.1f}"
    print(f"{name:10}{num_threads:8}{figures}", flush=True)


def _options() -> argparse.Namespace:
    all_threads = sorted({1, cores.allowed()})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=(*WORKLOADS, "all"), default="all", help="default: all")
    parser.add_argument(
        "--threads", type=_thread_counts, default=all_threads, metavar="1,2", help="default: 1 and all cores allowed"
    )
    parser.add_argument("--repeats", type=int, default=3, help="pairs of measurements (3)")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats {options.repeats} should be at least 1")
    return options


def _thread_counts(text: str) -> list[int]:
    counts = [int(part) for part in text.split(",")]
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text}: each should be at least 1")
    return counts


if __name__ == "__main__":
    main()
