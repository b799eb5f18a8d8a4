"""Our PPO versus Stable-Baselines3's and CleanRL's: environment steps per second, rollout and learning included.

Ours is the product itself, `rlcluster train ppo`, timed by its own metrics. Each peer is a script in an environment of
their own, .venv-peers, made here if it is missing:

- sb3: peer_sb3.py, Stable-Baselines3 2.9.2. The same mathematics through the same flags, with 200 levels of CoinRun and
  without reward normalisation.
- cleanrl: peer_cleanrl.py, which runs the scripts of CleanRL 1.2.0 (with gym 0.23.1) as they are. They train on all
  levels of CoinRun with normalised rewards, so ours does the same there. CleanRL has no script for the nature network
  on Procgen. What else differs is said in peer_cleanrl.py.

Value clipping is off everywhere: ours and Stable-Baselines3's differ in how they clip. All use PyTorch 2.13.0 (CPU),
and on CoinRun Procgen 0.10.7.

Measurements alternate (ours, peer, ours, peer, ...), each in a process of its own, and the first update of each is not
counted. The results are medians over the repeats; `pairs` are the lowest and the highest ratio of neighbours. `bar` is
the ratio that the project requires of itself; `-` where it requires none.

`others` is the most cores that other processes kept busy. It should be 0.0: when two threads share their two cores with
another process, both sides can run many times slower, and not by the same factor.

    .venv/bin/python benchmarks/peers.py --peer all --workload all --threads 1,2 --repeats 3
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
PEERS = {"sb3": "stable-baselines3==2.9.2", "cleanrl": "cleanrl==1.2.0"}
PEER_PACKAGES = (
    *("torch==2.13.0", "numpy<2", PEERS["sb3"], "procgen-mirror==0.10.7"),
    *("gym==0.23.1", "pygame-ce==2.5.8"),  # for CleanRL; gym's CartPole imports pygame
)
# Its metadata ask for an older Python, and for packages that the scripts run here do not import.
CLEANRL = ("--no-deps", "--ignore-requires-python", PEERS["cleanrl"])

MATHEMATICS = (
    *("--learning-rate", "5e-4", "--gamma", "0.999", "--gae-lambda", "0.95", "--clip-range", "0.2"),
    *("--entropy-coefficient", "0.01", "--value-coefficient", "0.5", "--max-grad-norm", "0.5"),
)
OURS_ONLY = ("--clip-value-range", "null", "--normalize-advantages", "true")
COINRUN = (
    *("--env", "coinrun", "--distribution-mode", "easy", "--start-level", "0"),
    *("--num-envs", "64", "--n-steps", "64", "--batch-size", "2048", "--n-epochs", "3"),
)
CARTPOLE = (
    *("--env", "CartPole-v1"),
    *("--num-envs", "8", "--n-steps", "256", "--batch-size", "512", "--n-epochs", "4"),
)


class Workload(NamedTuple):
    flags: tuple[str, ...]
    measured_updates: int


WORKLOADS = {
    "impala": Workload(("--network", "impala", *COINRUN), 1),
    "nature": Workload(("--network", "nature", *COINRUN), 6),
    "cartpole": Workload(("--network", "mlp", *CARTPOLE), 20),
}


class Match(NamedTuple):
    """A workload as this peer can run it."""

    workload: str
    peer: str
    bars: dict[int, float]  # threads -> our fps / the peer's
    num_levels: int | None  # None for an environment without levels
    normalizes_rewards: bool


MATCHES = (
    Match("impala", "sb3", {1: 3.5, 2: 3.5}, 200, False),
    Match("impala", "cleanrl", {}, 0, True),
    Match("nature", "sb3", {1: 1.6, 2: 1.6}, 200, False),
    Match("cartpole", "sb3", {1: 1.2, 2: 1.2}, None, False),
    Match("cartpole", "cleanrl", {}, None, False),
)


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
    print(f"peers: {', '.join((*PEER_PACKAGES, PEERS['cleanrl']))}; {options.repeats} repeats")
    columns = f"{'ours fps':>11}{'peer fps':>11}{'ratio':>8}{'bar':>6}{'pairs':>15}{'others':>8}"
    print(f"{'workload':10}{'peer':8}{'threads':>8}{columns}")
    for match in options.matches:
        for num_threads in options.threads:
            pairs = [measure_pair(match, num_threads) for _ in range(options.repeats)]
            _print_line(match, num_threads, pairs)


def make_peer_environment() -> None:
    """Creates the environment if missing and installs its packages, which is quick if they are there."""
    if not PEER_PYTHON.exists():
        run([sys.executable, "-m", "venv", str(PEER_ENVIRONMENT)])
    for packages in (PEER_PACKAGES, CLEANRL):
        run([str(PEER_PYTHON), str(ROOT / "scripts" / "install.py"), *packages])


def measure_pair(match: Match, num_threads: int) -> Pair:
    flags = _shared_flags(match, num_threads)
    rewards = ("--normalize-rewards", str(match.normalizes_rewards).lower())
    start, others_before = time.perf_counter(), seconds_of_others()
    ours = measure_training("ppo", *flags, *OURS_ONLY, *rewards)
    peer = peer_fps(match.peer, flags, num_threads)
    others = (seconds_of_others() - others_before) / (time.perf_counter() - start)
    pair = Pair(ours, peer, max(0.0, others))
    line = f"{match.workload}, {match.peer}, {num_threads} threads: {json.dumps(pair._asdict())}"
    print(line, file=sys.stderr, flush=True)
    return pair


def _shared_flags(match: Match, num_threads: int) -> tuple[str, ...]:
    workload = WORKLOADS[match.workload]
    levels = () if match.num_levels is None else ("--num-levels", str(match.num_levels))
    run_length = ("--total-updates", str(1 + workload.measured_updates), "--num-threads", str(num_threads))
    return (*workload.flags, *levels, *MATHEMATICS, *run_length)


def peer_fps(peer: str, flags: tuple[str, ...], num_threads: int) -> float:
    command = [str(PEER_PYTHON), str(ROOT / "benchmarks" / f"peer_{peer}.py"), *flags]
    threads = {variable: str(num_threads) for variable in cores.THREAD_VARIABLES}
    last_line = run(command, threads).splitlines()[-1]
    return float(json.loads(last_line)["fps"])


def _print_line(match: Match, num_threads: int, pairs: list[Pair]) -> None:
    ours, peer = median(pair.ours for pair in pairs), median(pair.peer for pair in pairs)
    ratios = [pair.ours / pair.peer for pair in pairs]
    bar = match.bars.get(num_threads)
    bar_text = "-" if bar is None else f"{bar:.1f}"
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    others = max(pair.others for pair in pairs)
    columns = f"{ours:11,.0f}{peer:11,.0f}{ours / peer:8.2f}{bar_text:>6}{spread:>15}{others:8.1f}"
    print(f"{match.workload:10}{match.peer:8}{num_threads:8}{columns}", flush=True)


def _options() -> argparse.Namespace:
    all_threads = sorted({1, cores.allowed()})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", choices=(*PEERS, "all"), default="all", help="default: all")
    parser.add_argument("--workload", choices=(*WORKLOADS, "all"), default="all", help="default: all")
    parser.add_argument(
        "--threads", type=_thread_counts, default=all_threads, metavar="1,2", help="default: 1 and all cores allowed"
    )
    parser.add_argument("--repeats", type=int, default=3, help="pairs of measurements (3)")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats {options.repeats} should be at least 1")
    options.matches = [
        match
        for match in MATCHES
        if options.peer in (match.peer, "all") and options.workload in (match.workload, "all")
    ]
    if not options.matches:
        parser.error(f"--peer {options.peer} has no network for --workload {options.workload}")
    return options


def _thread_counts(text: str) -> list[int]:
    counts = [int(part) for part in text.split(",")]
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text}: each should be at least 1")
    return counts


if __name__ == "__main__":
    main()
