"""Shows that a change has no effect on results: records short runs of every algorithm in every mode with one checkout,
and compares them bit for bit with those of another.

    python benchmarks/same_results.py record FOLDER      # with the Python of each checkout's own environment
    python benchmarks/same_results.py compare FOLDER FOLDER

Timings, memory and dependent fields are ignored. A3C with several workers is asynchronous: only the field names of its
runs are compared.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

DEPENDS_ON_TIME = {"fps", "elapsed_seconds", "memory_gb", "peak_memory_gb", "learner_idle", "actor_idle"}
DEPENDS_ON_TIME |= {"slot_occupancy", "rank_fps_min", "rank_fps_max", "rank_slowest"}
UPDATES = 6

COMMON = ("--num-threads", "1", "--seed", "7", "--checkpoint-updates", "2")
CARTPOLE = ("--env", "CartPole-v1", "--num-envs", "4", "--n-steps", "32", *COMMON)
COINRUN = ("--env", "coinrun", "--num-envs", "4", "--n-steps", "16", *COMMON)
TWO, DETERMINISTIC = ("--num-workers", "2"), ("--deterministic",)


class Case(NamedTuple):
    """One run."""

    name: str
    arguments: tuple[str, ...]
    is_exact: bool = True
    is_resumed: bool = False  # the second half in a new process


def cases() -> list[Case]:
    """All twelve cells on CartPole; several on CoinRun, with our kernels and with PyTorch; some resumed."""
    cells = {
        **{f"{name}_sequential": (name, "--mode", "sequential") for name in ("ppo", "a2c", "impala", "a3c")},
        **{f"{name}_{mode}": (name, "--mode", mode, *TWO) for name in ("ppo", "a2c") for mode in _MANY},
        "impala_parallel": ("impala", "--mode", "parallel", *TWO, *DETERMINISTIC),
        "impala_distributed": ("impala", "--mode", "distributed", *TWO, "--workers-per-rank", "1", *DETERMINISTIC),
        "a3c_parallel_1": ("a3c", "--mode", "parallel", "--num-workers", "1"),
        "a3c_parallel_2": ("a3c", "--mode", "parallel", *TWO),
        "a3c_distributed": ("a3c", "--mode", "distributed", *TWO, "--workers-per-rank", "1"),
    }
    found = [Case(f"cartpole_{name}", (*cell, *CARTPOLE), name != "a3c_parallel_2") for name, cell in cells.items()]
    for kernels in ("native", "torch"):
        for network in ("nature", "impala"):
            tail = (*COINRUN, "--network", network, "--kernels", kernels)
            names = ("ppo_sequential", "ppo_parallel", "impala_sequential", "impala_parallel", "a3c_parallel_1")
            for name in cells if (kernels, network) == ("native", "nature") else names:
                found.append(
                    Case(f"coinrun_{network}_{kernels}_{name}", (*cells[name], *tail), name != "a3c_parallel_2")
                )
    for name in ("ppo_parallel", "impala_parallel", "a2c_sequential", "a3c_parallel_1"):
        arguments = (*cells[name], *COINRUN, "--network", "nature")
        found.append(Case(f"coinrun_resumed_{name}", arguments, is_resumed=True))
    normalised = ("--normalize-advantages", "--optimizer", "adam")
    found.append(Case("cartpole_impala_normalised", (*cells["impala_parallel"], *CARTPOLE, *normalised)))
    averaged = ("--sync-strategy", "parameters", "--sync-updates", "2")
    found.append(Case("cartpole_ppo_averaged", (*cells["ppo_parallel"], *CARTPOLE, *averaged)))
    return found


_MANY = ("parallel", "distributed")


def record(folder: Path) -> None:
    folder.mkdir(parents=True)
    for case in cases():
        run = folder / case.name
        first = UPDATES // 2 if case.is_resumed else UPDATES
        _train(*case.arguments, "--total-updates", str(first), "--output-dir", str(run))
        if case.is_resumed:
            _train("--resume", "--total-updates", str(UPDATES), "--output-dir", str(run))
        print(f"recorded {case.name}", flush=True)


def _train(*arguments: str) -> None:
    command = [sys.executable, "-m", "rlcluster", "train", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)}\n{result.stdout}{result.stderr}")


def compare(before: Path, after: Path) -> int:
    num_different = 0
    for case in cases():
        old, new = (_log(folder / case.name) for folder in (before, after))
        if not case.is_exact:
            old, new = [sorted(line) for line in old], [sorted(line) for line in new]  # type: ignore[misc]
        is_same = old == new
        num_different += not is_same
        print(f"{'same' if is_same else 'DIFFERENT'}  {case.name}")
        if not is_same and case.is_exact:
            _print_difference(old, new)
    print(f"{len(cases()) - num_different} of {len(cases())} are the same")
    return 1 if num_different else 0


def _print_difference(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    for before, after in zip(old, new, strict=False):
        different = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        for key in sorted(different):
            print(f"    update {before.get('update')}: {key} was {before.get(key)}, is {after.get(key)}")
        if different:
            return
    print(f"    {len(old)} lines before, {len(new)} now")


def _log(run: Path) -> list[dict[str, Any]]:
    (file,) = run.glob("logs/*/metrics.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in DEPENDS_ON_TIME and k[:2] != "t_"} for line in lines]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record").add_argument("folder", type=Path)
    comparison = commands.add_parser("compare")
    comparison.add_argument("before", type=Path)
    comparison.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.command == "record":
        record(options.folder)
        return 0
    return compare(options.before, options.after)


if __name__ == "__main__":
    sys.exit(main())
