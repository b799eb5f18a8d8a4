"""Every algorithm in its modes on this machine: environment steps per second, rollout and learning included.

The runs of a workload exist at the same time and take turns of a few updates: sequential with one thread, sequential
with one thread per core, parallel with one process per core (IMPALA: with the actors and threads that it chooses). Only
one run is active at a time, the others are stopped: a slow minute of the machine affects them all. The first update of
each is excluded. Values are medians over the rounds; ratios are taken within a round, with quartiles. `sync` is the
share of an update that ranks spend in synchronisation, waiting included; `idle` the share that a learner waits for its
actors; `memory` the peak over all processes of the run; `others` the most cores that other processes kept busy.

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
from rlcluster.system import cores, machine

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
ONE_THREAD, ALL_THREADS, PARALLEL = "sequential, 1 thread", "sequential, all cores", "parallel"


class Run(NamedTuple):
    arguments: tuple[str, ...]
    updates: int  # per turn


class Ratio(NamedTuple):
    above: str
    below: str
    bar: float | None = None  # the target, on 2 cores


class Workload(NamedTuple):
    runs: dict[str, Run]
    ratios: tuple[Ratio, ...]


def in_three_modes(arguments: tuple[str, ...], updates: int, *bars: float | None) -> Workload:
    """`bars` are the targets for parallel over sequential with one thread, and with all cores."""
    runs = {mode: Run((*arguments, *flags), updates) for mode, flags in MODES.items()}
    ratios = tuple(Ratio(PARALLEL, base, bar) for base, bar in zip((ONE_THREAD, ALL_THREADS), bars, strict=True))
    return Workload(runs, ratios)


def config(algorithm: str, name: str, *more: str) -> tuple[str, ...]:
    return (algorithm, "--config", str(CONFIGS / f"{name}.yaml"), *more)


WORKERS = cores.observe().physical
ENDLESS = ("--total-updates", "100000000", "--checkpoint-seconds", "1000000")
PATIENT = ("--timeout-seconds", "1000000")  # the pauses are long
MODES = {
    ONE_THREAD: ("--mode", "sequential", "--num-threads", "1"),
    ALL_THREADS: ("--mode", "sequential", "--num-threads", str(WORKERS)),
    PARALLEL: ("--mode", "parallel", "--num-workers", str(WORKERS), "--num-threads", "1", *PATIENT),
}
PAPER = config("ppo", "ppo_procgen")
SHORT = ("--n-steps", "64")

WORKLOADS = {
    "ppo impala": in_three_modes(PAPER, 1, 1.85, 1.05),
    "ppo impala, 64 steps": in_three_modes((*PAPER, *SHORT), 1, None, None),
    "ppo nature": in_three_modes((*PAPER, "--network", "nature"), 1, None, None),
    "a2c impala": in_three_modes(config("a2c", "a2c_sequential"), 20, None, None),
    "a3c impala": in_three_modes(config("a3c", "a3c_parallel"), 20, None, None),
    "impala impala": Workload(
        {
            "impala, sequential, 1 thread": Run((*config("impala", "impala_sequential"), *MODES[ONE_THREAD]), 4),
            "impala, sequential, all": Run((*config("impala", "impala_sequential"), *MODES[ALL_THREADS]), 4),
            "impala, parallel": Run(config("impala", "impala_parallel", *PATIENT), 4),
            "ppo, parallel": Run((*PAPER, *MODES[PARALLEL]), 1),
        },
        (
            Ratio("impala, parallel", "ppo, parallel", 2.2),
            Ratio("impala, parallel", "impala, sequential, all", 1.0),
            Ratio("impala, parallel", "impala, sequential, 1 thread"),
        ),
    ),
    "ppo cartpole": in_three_modes(config("ppo", "ppo_cartpole"), 20, 1.0, 1.0),
}


def main() -> None:
    options = _options()
    print(f"{machine.cpu_model()}, {WORKERS} cores, load {os.getloadavg()[0]:.1f}, {machine.git_commit()}")
    for name in WORKLOADS if options.workload == "all" else (options.workload,):
        _print_workload(name, _measure(WORKLOADS[name], options.rounds, options.updates))


def _measure(workload: Workload, rounds: int, updates: int | None) -> dict[str, list[Turn]]:
    turns: dict[str, list[Turn]] = {name: [] for name in workload.runs}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        runs = {
            name: stack.enter_context(PausedRun(Path(folder, name), *run.arguments, *ENDLESS))
            for name, run in workload.runs.items()
        }
        for _ in range(rounds):
            for name, paused in runs.items():
                turns[name].append(paused.turn(updates or workload.runs[name].updates))
            print("  ".join(f"{name}: {own[-1].fps:,.1f}" for name, own in turns.items()), file=sys.stderr, flush=True)
    return turns


def _print_workload(name: str, turns: dict[str, list[Turn]]) -> None:
    print(f"\n{name}  (others {max(turn.others for own in turns.values() for turn in own):.1f})")
    print(f"  {'':30}{'fps':>10}{'sync':>8}{'idle':>8}{'memory':>10}")
    for run, own in turns.items():
        fps, sync, idle, memory, _ = (median(column) for column in zip(*own, strict=True))
        print(f"  {run:30}{fps:10,.0f}{sync:8.1%}{idle:8.1%}{memory:8.2f} GB")
    for above, below, bar in WORKLOADS[name].ratios:
        ratios = [ours.fps / theirs.fps for ours, theirs in zip(turns[above], turns[below], strict=True)]
        low, middle, high = quantiles(ratios, n=4, method="inclusive")
        bar_text = f", bar {bar:.2f}" if bar is not None else ""
        print(f"  {above} / {below}: {middle:.2f} (quartiles {low:.2f} to {high:.2f}{bar_text})", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=(*WORKLOADS, "all"), default="all", help="default: all")
    parser.add_argument("--rounds", type=int, default=8, help="turns per mode (8)")
    parser.add_argument("--updates", type=int, help="of a turn (each workload's own number)")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds} should be at least 2")
    if options.updates is not None and options.updates < 1:
        parser.error(f"--updates {options.updates} should be at least 1")
    return options


if __name__ == "__main__":
    main()
