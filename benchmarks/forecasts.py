"""Forecasts of `rlcluster plan` versus what the runs then did: steps/s and memory, as a Markdown table.

    .venv/bin/python benchmarks/forecasts.py             # PPO and IMPALA, 1 to 4 ranks, three games: 20 minutes
    .venv/bin/python benchmarks/forecasts.py --games coinrun
    .venv/bin/python benchmarks/forecasts.py --hosts     # PPO on two hosts, with limited bandwidth (root): 5 minutes

For one rank and for four, `plan` measures for a while, then a run of its own follows. That of one rank is the
measurement for two: their forecast comes from the model alone, with latency and bandwidth from its gloo probe; on two
hosts, network namespaces with a core each, from its probe between them. Nothing else should run meanwhile. The bars:
steps/s within 15 %, memory within 20 %.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from measuring import run
from rlcluster.experiments.commands import rlcluster_command
from rlcluster.runs.reader import read_summary
from rlcluster.system import machine
from two_hosts import TwoHosts

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
    measures: bool = False  # itself; otherwise one rank's run is the measurement


CASES = (
    Case("ppo", "1 rank", ("--mode", "sequential", "--num-threads", "1"), (), 1, True),
    Case("ppo", "2 ranks", ("--mode", "parallel", "--num-workers", "2"), ("--cores-per-node", "2"), 1),
    Case("ppo", "4 ranks on 2 cores", ("--mode", "parallel", "--num-workers", "4"), ("--cores-per-node", "2"), 1, True),
    Case("impala", "1 rank", ("--mode", "parallel", "--num-workers", "1", "--num-threads", "2"), (), 1, True),
    Case(
        "impala",
        "2 ranks",
        ("--mode", "distributed", "--cluster-num-workers", "2", "--workers-per-rank", "1", "--num-threads", "1"),
        ("--nodes", "2", "--cores-per-node", "1", "--interconnect", "MEASURE"),
        2,
    ),
)


ON_HOSTS = Case("ppo", "2 hosts", ("--mode", "distributed", "--num-threads", "1"), ("--cores-per-node", "1"), 2)
RATES = (None, "1gbit", "100mbit")  # of the cable between the hosts


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
        rows = _compare_hosts(Path(folder), options) if options.hosts else _compare_all(Path(folder), options)
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


def _compare_all(folder: Path, options: argparse.Namespace) -> list[Row]:
    rows = [
        row
        for game in options.games
        for algorithm in ("ppo", "impala")
        for row in _compare(folder, game, algorithm, options)
    ]
    if not rows:
        raise SystemExit(f"--only {options.only}: matches no case, such as {_name('ppo', options.games[0], CASES[0])}")
    return rows


def _compare(folder: Path, game: str, algorithm: str, options: argparse.Namespace) -> list[Row]:
    """One rank, two from its run, four."""
    rows: list[Row] = []
    basis = folder / f"{algorithm}_{game}_{CASES[0].name.replace(' ', '_')}"
    for case in (case for case in CASES if case.algorithm == algorithm):
        name = _name(algorithm, game, case)
        if not re.search(options.only, name):
            continue
        print(f"{name} ...", flush=True)
        figures, path = folder / "forecast.json", folder / f"{algorithm}_{game}_{case.name.replace(' ', '_')}"
        flags = [algorithm, "--env", game, *WORK, *case.training]
        measured = ["--seconds", str(options.measure_seconds)] if case.measures else ["--run", str(basis)]
        run(rlcluster_command("plan", *flags, *case.planning, *measured, "--json", str(figures)))
        forecast = json.loads(figures.read_text())
        run(rlcluster_command("train", *flags, "--duration", f"{options.run_seconds}s", "--output-dir", str(path)))
        rows.append(_row(name, case, forecast, read_summary(path)))
    return rows


def _name(algorithm: str, game: str, case: Case) -> str:
    return f"{algorithm}, {game}, {case.name}"


def _compare_hosts(folder: Path, options: argparse.Namespace) -> list[Row]:
    """One rank's run, then the same run over two hosts, for each bandwidth."""
    game, alone, rows = options.games[0], CASES[0], []
    basis = folder / "basis"
    duration = ["--duration", f"{options.run_seconds}s"]
    run(rlcluster_command("train", "ppo", "--env", game, *WORK, *alone.training, *duration, "--output-dir", str(basis)))
    with TwoHosts() as hosts:
        for rate in RATES:
            hosts.limit(rate)
            name = f"ppo, {game}, {ON_HOSTS.name}, {rate or 'no limit'}"
            print(f"{name} ...", flush=True)
            figures, path = folder / "forecast.json", folder / f"hosts_{rate}"
            flags = ["ppo", "--env", game, *WORK, *ON_HOSTS.training]
            nodes = ["--nodes", str(ON_HOSTS.nodes), *ON_HOSTS.planning, "--run", str(basis), "--json", str(figures)]
            hosts.run([rlcluster_command("plan", *flags, *nodes)] * 2)
            forecast = json.loads(figures.read_text())
            hosts.run([rlcluster_command("train", *flags, *duration, "--output-dir", str(path))] * 2)
            rows.append(_row(name, ON_HOSTS, forecast, read_summary(path)))
    return rows


def _row(name: str, case: Case, forecast: dict[str, Any], summary: dict[str, Any]) -> Row:
    memory = case.nodes * forecast[f"nodes_{case.nodes}_memory_gb_per_node"]
    rate = forecast[f"nodes_{case.nodes}_steps_per_second"]
    return Row(name, rate, summary["average_fps"], memory, summary["peak_memory_gb"])


def _errors(rows: list[Row]) -> tuple[tuple[list[float], float], tuple[list[float], float]]:
    return ([row.speed_error for row in rows], SPEED_BAR), ([row.memory_error for row in rows], MEMORY_BAR)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", default=",".join(GAMES), help=f"also other environments ({','.join(GAMES)})")
    parser.add_argument("--hosts", action="store_true", help="two hosts made of network namespaces, as root")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases by name; 2 ranks need 1 rank's run")
    parser.add_argument("--measure-seconds", type=int, default=25, help="of plan's measurement (25)")
    parser.add_argument("--run-seconds", type=int, default=40, help="of each run (40)")
    options = parser.parse_args()
    options.games = options.games.split(",")
    return options


if __name__ == "__main__":
    main()
