"""Forecasts of `rlcluster plan` versus what the runs then did: steps/s and memory, as a Markdown table.

    .venv/bin/python benchmarks/forecasts.py             # PPO and IMPALA, 1 and 2 ranks, three games: 15 minutes
    .venv/bin/python benchmarks/forecasts.py --quick     # one game

For one rank, `plan` measures for a while, then a run of its own follows. That run is the measurement for two ranks:
their forecast comes from the model alone, with latency and bandwidth from its gloo probe. Nothing else should run
meanwhile. The bars: steps/s within 15 %, memory within 20 %.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from measuring import run
from rlcluster.experiments.commands import rlcluster_command
from rlcluster.runs.reader import read_summary
from rlcluster.system import machine

GAMES = ("coinrun", "starpilot", "fruitbot")
SPEED_BAR, MEMORY_BAR = 0.15, 0.20
WORK = ("--num-envs", "32", "--n-steps", "32", "--n-epochs", "1")


class Case(NamedTuple):
    """How a number of ranks is forecast from one rank's run, and trained."""

    algorithm: str
    name: str
    training: tuple[str, ...]  # flags of `train` and `plan`
    planning: tuple[str, ...]  # further flags of `plan`
    nodes: int  # of the forecast


CASES = (
    Case("ppo", "1 rank", ("--mode", "sequential", "--num-threads", "1"), (), 1),
    Case("ppo", "2 ranks", ("--mode", "parallel", "--num-workers", "2"), ("--cores-per-node", "2"), 1),
    Case("impala", "1 rank", ("--mode", "parallel", "--num-workers", "1", "--num-threads", "2"), (), 1),
    Case(
        "impala",
        "2 ranks",
        ("--mode", "distributed", "--cluster-num-workers", "2", "--workers-per-rank", "1", "--num-threads", "1"),
        ("--nodes", "2", "--cores-per-node", "1", "--interconnect", "MEASURE"),
        2,
    ),
)


class Row(NamedTuple):
    case: str
    forecast: float  # steps/s
    outcome: float
    forecast_gb: float
    outcome_gb: float

    @property
    def speed_error(self) -> float:
        return self.forecast / self.outcome - 1

    @property
    def memory_error(self) -> float:
        return self.forecast_gb / self.outcome_gb - 1


def main() -> None:
    options = _options()
    load, start = os.getloadavg()[0], time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # the user's own forecasts stay as they are
        rows = [
            row
            for game in (GAMES[:1] if options.quick else GAMES)
            for algorithm in ("ppo", "impala")
            for row in _compare(Path(folder), game, algorithm, options)
        ]
    print(f"\n{machine.cpu_model()}, commit {machine.git_commit()}; load average before: {load:.1f}")
    print(f"{' '.join(WORK)}; measured {options.measure_seconds} s, runs of {options.run_seconds} s\n")
    print(table(rows))
    fast, small = (sum(abs(error) <= bar for error in errors) for errors, bar in _errors(rows))
    total = len(rows)
    print(f"\nsteps/s within {SPEED_BAR:.0%}: {fast} of {total}; memory within {MEMORY_BAR:.0%}: {small} of {total}")
    print(f"took {(time.perf_counter() - start) / 60:.1f} minutes")


def table(rows: list[Row]) -> str:
    lines = [
        "| run | steps/s: forecast | outcome | error | GB: forecast | outcome | error |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        speed = f"{row.forecast:,.0f} | {row.outcome:,.0f} | {row.speed_error:+.1%}"
        lines.append(
            f"| {row.case} | {speed} | {row.forecast_gb:.2f} | {row.outcome_gb:.2f} | {row.memory_error:+.1%} |"
        )
    return "\n".join(lines)


def _compare(folder: Path, game: str, algorithm: str, options: argparse.Namespace) -> list[Row]:
    """One rank, then two from its run."""
    rows: list[Row] = []
    basis: list[str] = []
    for case in (case for case in CASES if case.algorithm == algorithm):
        name = f"{algorithm}, {game}, {case.name}"
        print(f"{name} ...", flush=True)
        figures, path = folder / "forecast.json", folder / f"{algorithm}_{game}_{case.name.replace(' ', '_')}"
        flags = [algorithm, "--env", game, *WORK, *case.training]
        measured = basis or ["--seconds", str(options.measure_seconds)]
        run(rlcluster_command("plan", *flags, *case.planning, *measured, "--json", str(figures)))
        forecast = json.loads(figures.read_text())
        run(rlcluster_command("train", *flags, "--duration", f"{options.run_seconds}s", "--output-dir", str(path)))
        rows.append(_row(name, case, forecast, read_summary(path)))
        basis = ["--run", str(path)]
    return rows


def _row(name: str, case: Case, forecast: dict[str, Any], summary: dict[str, Any]) -> Row:
    memory = case.nodes * forecast[f"nodes_{case.nodes}_memory_gb_per_node"]
    rate = forecast[f"nodes_{case.nodes}_steps_per_second"]
    return Row(name, rate, summary["average_fps"], memory, summary["peak_memory_gb"])


def _errors(rows: list[Row]) -> tuple[tuple[list[float], float], tuple[list[float], float]]:
    return ([row.speed_error for row in rows], SPEED_BAR), ([row.memory_error for row in rows], MEMORY_BAR)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one game")
    parser.add_argument("--measure-seconds", type=int, default=25, help="of plan's measurement (25)")
    parser.add_argument("--run-seconds", type=int, default=40, help="of each run (40)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
