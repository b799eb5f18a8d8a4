"""One algorithm in its modes on this machine: environment steps per second, rollout and learning included.

For each workload three runs of the same mathematics alternate, each in processes of its own: sequential with one
thread, sequential with a thread for each core, and parallel with a worker of one thread for each core. The first
update of each is not counted. The figures are medians over the repeats; `pairs` are the lowest and the highest ratio
within a repeat. `sync` is the share of an update that ranks wait for each other and exchange, `memory` the peak of all
processes together. `others` is how many cores other processes kept busy meanwhile, at worst; it should be 0.0.

    .venv/bin/python benchmarks/modes.py --workload all --repeats 3
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

from measuring import Speed, measure_training, seconds_of_others
from rlcluster import machine

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
ONE_THREAD, ALL_THREADS, PARALLEL = "sequential, 1 thread", "sequential, all cores", "parallel"


class Workload(NamedTuple):
    arguments: tuple[str, ...]
    measured_updates: int
    bars: tuple[float | None, float | None]  # parallel / sequential with one thread, and with all cores; on 2 cores


WORKLOADS = {
    "ppo impala": Workload(("ppo", "--config", str(CONFIGS / "ppo_procgen.yaml")), 1, (1.85, 1.05)),
    "ppo nature": Workload(
        ("ppo", "--config", str(CONFIGS / "ppo_procgen.yaml"), "--network", "nature"), 2, (None, None)
    ),
    "a2c impala": Workload(("a2c", "--config", str(CONFIGS / "a2c_sequential.yaml")), 20, (None, None)),
    "ppo cartpole": Workload(("ppo", "--config", str(CONFIGS / "ppo_cartpole.yaml")), 30, (1.0, 1.0)),
}


def main() -> None:
    options = _options()
    print(f"{machine.cpu_model()}, {options.workers} cores, load {os.getloadavg()[0]:.1f}, {machine.git_commit()}")
    for name in WORKLOADS if options.workload == "all" else (options.workload,):
        start, others_before = time.perf_counter(), seconds_of_others()
        repeats = [_measure(WORKLOADS[name], options.workers) for _ in range(options.repeats)]
        others = max(0.0, (seconds_of_others() - others_before) / (time.perf_counter() - start))
        _print_workload(name, repeats, others)


def _measure(workload: Workload, workers: int) -> dict[str, Speed]:
    """Each mode once, one after the other."""
    modes = {
        ONE_THREAD: ("--mode", "sequential", "--num-threads", "1"),
        ALL_THREADS: ("--mode", "sequential", "--num-threads", str(workers)),
        PARALLEL: ("--mode", "parallel", "--num-workers", str(workers), "--num-threads", "1"),
    }
    length = ("--total-updates", str(1 + workload.measured_updates))
    speeds = {}
    for mode, flags in modes.items():
        speeds[mode] = measure_training(*workload.arguments, *length, *flags)
        print(f"{mode}: {json.dumps(speeds[mode]._asdict())}", file=sys.stderr, flush=True)
    return speeds


def _print_workload(name: str, repeats: list[dict[str, Speed]], others: float) -> None:
    print(f"\n{name}  (others {others:.1f})")
    print(f"  {'mode':24}{'fps':>10}{'sync':>8}{'memory':>10}")
    for mode in repeats[0]:
        fps, sync, memory = (median(column) for column in zip(*(repeat[mode] for repeat in repeats), strict=True))
        print(f"  {mode:24}{fps:10,.0f}{sync:8.1%}{memory:8.2f} GB")
    for base, bar in zip((ONE_THREAD, ALL_THREADS), WORKLOADS[name].bars, strict=True):
        ratios = [repeat[PARALLEL].fps / repeat[base].fps for repeat in repeats]
        bar_text = f", bar {bar:.2f}" if bar is not None else ""
        spread = f"pairs {min(ratios):.2f} to {max(ratios):.2f}"
        print(f"  parallel / {base}: {median(ratios):.2f} ({spread}{bar_text})", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=(*WORKLOADS, "all"), default="all", help="default: all")
    parser.add_argument("--workers", type=int, default=machine.default_workers(), help="default: all physical cores")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each mode (3)")
    options = parser.parse_args()
    for name in ("workers", "repeats"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)} should be at least 1")
    return options


if __name__ == "__main__":
    main()
