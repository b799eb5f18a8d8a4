"""The choice of `rlcluster tune` versus the best of all candidates, measured exhaustively: the ratio of their speeds.

    .venv/bin/python benchmarks/tuning.py                     # PPO on CoinRun
    .venv/bin/python benchmarks/tuning.py impala --minutes 3 --rounds 12

First `tune` runs for its minutes. Then every layout of the cores and every variant of each takes turns of one update,
the same number each: nothing is dropped. The ratio compares the medians of these turns, so that both come from the same
minutes. Bars: the ratio is at least 0.97, and tune ends within 1.2 times its minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from rlcluster.experiments.candidates import Candidate, layouts, variants
from rlcluster.experiments.tuning import Race, TuneRequest, settings_to_tune, tune_command
from rlcluster.experiments.turns import LocalProcesses, PausedRun
from rlcluster.flags import flag_names
from rlcluster.settings.schema import Settings, setting_fields
from rlcluster.system import cores, machine
from rlcluster.system.signals import StopRequest

RATIO_BAR, TIME_BAR = 0.97, 1.2
WORK = {"env.num_envs": "32", "training.n_steps": "32"}


def main() -> None:
    options = _options()
    cores.limit_threads(1)  # this process only waits
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = name  # what the user has tuned stays known
        request = _request(options, folder)
        start = time.perf_counter()
        tune_command(request)
        minutes = (time.perf_counter() - start) / 60
        assert request.json is not None
        chosen = json.loads(request.json.read_text())["best"]
        rates = _measure_all(request, folder / "runs", options.rounds)
    best = max(rates, key=lambda name: median(rates[name]))
    ratio = median(rates[chosen]) / median(rates[best])
    print(f"\n{machine.cpu_model()}, commit {machine.git_commit()}; load average before: {load:.1f}\n")
    print("| candidate | steps/s (median) | lowest to highest |\n|---|---|---|")
    for name in sorted(rates, key=lambda name: -median(rates[name])):
        row = rates[name]
        mark = " (chosen)" if name == chosen else ""
        print(f"| {name}{mark} | {median(row):,.0f} | {min(row):,.0f} to {max(row):,.0f} |")
    print(f"\nchosen / best: {ratio:.3f}; bar {RATIO_BAR}: {'met' if ratio >= RATIO_BAR else 'missed'}")
    print(
        f"tune took {minutes:.1f} of {options.minutes:g} minutes; bar {TIME_BAR} times: "
        f"{'met' if minutes <= TIME_BAR * options.minutes else 'missed'}"
    )


def _request(options: argparse.Namespace, folder: Path) -> TuneRequest:
    epochs = {} if options.algorithm in ("a2c", "a3c") else {"training.n_epochs": "1"}
    return TuneRequest(
        algorithm=options.algorithm,
        config=None,
        flags={**WORK, "env.name": options.env, **epochs},
        flag_names={field.key: flag_names(field)[0] for field in setting_fields()},
        minutes=options.minutes,
        start=time.perf_counter(),
        allow_algorithm_changes=False,
        output=folder / "tuned.yaml",
        json=folder / "tuned.json",
    )


def all_candidates(settings: Settings) -> list[Candidate]:
    """Every layout, with every variant of it."""
    from rlcluster import environments
    from rlcluster.networks.policy import make_policy, threads_that_pay

    spec = environments.describe(settings.env)
    chunk_size = make_policy(settings.policy, spec, 0, settings.hardware.kernels).chunk_size
    pays = threads_that_pay(settings.policy, settings.hardware, spec)
    found = layouts(settings, cores.observe().physical, pays)
    each = [one for layout in found for one in (layout, *variants(settings, layout, chunk_size))]
    return list({one.name: one for one in each}.values())


def _measure_all(request: TuneRequest, folder: Path, rounds: int) -> dict[str, list[float]]:
    """Steps per second in each turn, by name."""
    settings = settings_to_tune(request, "parallel")
    folder.mkdir()
    with StopRequest() as stop, ExitStack() as opened:
        race = Race(request, settings, folder, stop)
        runs: dict[str, PausedRun] = {}
        for number, candidate in enumerate(all_candidates(settings)):
            print(f"starting: {candidate.name}", flush=True)
            own, arguments = race.training(candidate)
            path = folder / f"run_{number}"
            processes = LocalProcesses([*arguments, "--output-dir", str(path)])
            runs[candidate.name] = opened.enter_context(PausedRun(path, own, processes, stop))
            runs[candidate.name].turn(math.inf)  # warm-up, with the start
            runs[candidate.name].turn(math.inf)
        rates: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", flush=True)
            for name, run in runs.items():
                rates[name].append(run.turn(math.inf))
    return rates


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm", nargs="?", default="ppo", choices=("ppo", "a2c", "a3c", "impala"))
    parser.add_argument("--env", default="coinrun", help="environment (coinrun)")
    parser.add_argument("--minutes", type=float, default=3.0, help="of tune (3)")
    parser.add_argument("--rounds", type=int, default=8, help="turns of every candidate (8)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
