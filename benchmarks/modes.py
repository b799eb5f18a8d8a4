"""One algorithm in its modes on this machine: environment steps per second, rollout and learning included.

For each workload three runs of the same mathematics are alive together and take turns of a few updates, each in
processes of its own: sequential with one thread, sequential with a thread for each core, and parallel with a worker of
one thread for each core. Only the run whose turn it is goes on, the others are stopped: a slow minute of the machine
meets them all. The first update of each is not counted. The figures are medians over the rounds, a ratio is that of
the same round, with its quartiles. `sync` is the share of an update that ranks wait for each other and exchange,
`memory` the peak of all processes of the run. `others` is how many cores other processes kept busy, at worst.

    .venv/bin/python benchmarks/modes.py --workload all --rounds 8
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from measuring import PausedRun, Turn
from rlcluster import machine

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
ONE_THREAD, ALL_THREADS, PARALLEL = "sequential, 1 thread", "sequential, all cores", "parallel"


class Workload(NamedTuple):
    arguments: tuple[str, ...]
    updates: int  # of a turn
    bars: tuple[float | None, float | None]  # parallel / sequential with one thread, and with all cores; on 2 cores


PAPER = ("ppo", "--config", str(CONFIGS / "ppo_procgen.yaml"))
WORKLOADS = {
    "ppo impala": Workload(PAPER, 1, (1.85, 1.05)),
    "ppo impala, 64 steps": Workload((*PAPER, "--n-steps", "64"), 1, (1.85, 1.05)),
    "ppo nature": Workload((*PAPER, "--network", "nature"), 1, (None, None)),
    "a2c impala": Workload(("a2c", "--config", str(CONFIGS / "a2c_sequential.yaml")), 20, (None, None)),
    "ppo cartpole": Workload(("ppo", "--config", str(CONFIGS / "ppo_cartpole.yaml")), 20, (1.0, 1.0)),
}


def main() -> None:
    options = _options()
    print(f"{machine.cpu_model()}, {options.workers} cores, load {os.getloadavg()[0]:.1f}, {machine.git_commit()}")
    for name in WORKLOADS if options.workload == "all" else (options.workload,):
        _print_workload(name, _measure(WORKLOADS[name], options.workers, options.rounds))


def _measure(workload: Workload, workers: int, rounds: int) -> dict[str, list[Turn]]:
    modes = {
        ONE_THREAD: ("--mode", "sequential", "--num-threads", "1"),
        ALL_THREADS: ("--mode", "sequential", "--num-threads", str(workers)),
        PARALLEL: ("--mode", "parallel", "--num-workers", str(workers), "--num-threads", "1"),
    }
    length = ("--total-updates", str(1_000_000), "--checkpoint-updates", str(1_000_000))
    turns: dict[str, list[Turn]] = {mode: [] for mode in modes}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        runs = {
            mode: stack.enter_context(PausedRun(Path(folder, mode), *workload.arguments, *length, *flags))
            for mode, flags in modes.items()
        }
        for _ in range(rounds):
            for mode, paused in runs.items():
                turns[mode].append(paused.turn(workload.updates))
            print("  ".join(f"{mode}: {own[-1].fps:,.1f}" for mode, own in turns.items()), file=sys.stderr, flush=True)
    return turns


def _print_workload(name: str, turns: dict[str, list[Turn]]) -> None:
    print(f"\n{name}  (others {max(turn.others for own in turns.values() for turn in own):.1f})")
    print(f"  {'mode':24}{'fps':>10}{'sync':>8}{'memory':>10}")
    for mode, own in turns.items():
        fps, sync, memory, _ = (median(column) for column in zip(*own, strict=True))
        print(f"  {mode:24}{fps:10,.0f}{sync:8.1%}{memory:8.2f} GB")
    for base, bar in zip((ONE_THREAD, ALL_THREADS), WORKLOADS[name].bars, strict=True):
        ratios = [ours.fps / theirs.fps for ours, theirs in zip(turns[PARALLEL], turns[base], strict=True)]
        low, middle, high = quantiles(ratios, n=4, method="inclusive")
        bar_text = f", bar {bar:.2f}" if bar is not None else ""
        print(f"  parallel / {base}: {middle:.2f} (quartiles {low:.2f} to {high:.2f}{bar_text})", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=(*WORKLOADS, "all"), default="all", help="default: all")
    parser.add_argument("--workers", type=int, default=machine.default_workers(), help="default: all physical cores")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each mode (8)")
    options = parser.parse_args()
    for name, least in (("workers", 1), ("rounds", 2)):
        if getattr(options, name) < least:
            parser.error(f"--{name} {getattr(options, name)} should be at least {least}")
    return options


if __name__ == "__main__":
    main()
