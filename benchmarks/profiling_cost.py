"""What profiling costs: the same updates of one training, profiled and not, taking turns in one process.

    .venv/bin/python benchmarks/profiling_cost.py                       # PPO on CoinRun, one thread
    .venv/bin/python benchmarks/profiling_cost.py --pairs 120 --num-threads 2

A pair is two updates in a row, one with the recorder on and one with it off; which comes first alternates. Phases, the
kernels' clocks and the memory samples are all on. The ratio of a pair is

    (seconds of the profiled update + seconds to start and stop the recorder / updates of a profile) / seconds of the
    other update

by the wall clock. Printed is the median over pairs with its 95 % interval by bootstrap. The bar of 1 % is met if the
whole interval is below it, missed if the whole interval is above it, and otherwise not decided: take more pairs, or a
quieter machine. The estimate does not depend on this verdict. A second line, which decides nothing, counts what the
recorder did in an update and multiplies it by what each of these takes on its own.
"""

from __future__ import annotations

import argparse
import random
import time
import timeit
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from rlcluster.plan import RankInputs, resolve
from rlcluster.settings.loading import load_settings
from rlcluster.system import cores, machine

BAR = 1.01
UPDATES = 20  # of a profile, by default
DRAWS = 4000


class Pair(NamedTuple):
    profiled: float  # seconds
    plain: float
    fixed: float  # to start and to stop

    @property
    def ratio(self) -> float:
        return (self.profiled + self.fixed / UPDATES) / self.plain


def main() -> None:
    options = _options()
    cores.limit_threads(options.num_threads)
    load = machine.BackgroundLoad()
    pairs, recorded = _measure(options)
    low, high = interval([pair.ratio for pair in pairs])
    plain = median(pair.plain for pair in pairs)
    used = f"{options.num_threads} threads, {options.pairs} pairs of updates, commit {machine.git_commit()}"
    share = load.share()
    others = "unknown" if share is None else f"{share:.0%} of the cores"
    print(f"{machine.cpu_model()}, {used}; other programs took {others}")
    ratio = median(pair.ratio for pair in pairs)
    print(f"an update takes {plain:.3f} s; profiled / plain: {ratio:.4f} (95 % interval {low:.4f} to {high:.4f})")
    print(f"in it, start and stop: {1000 * median(pair.fixed for pair in pairs):.1f} ms for {UPDATES} updates")
    counted = _seconds_by_counting(recorded, plain)
    print(f"by counting: {len(recorded['events'])} phases and the memory samples: {counted / plain:.4%} of an update")
    print(f"bar {BAR}: {verdict(low, high)}")


def verdict(low: float, high: float) -> str:
    """By the interval alone."""
    return "met" if high < BAR else "missed" if low > BAR else "not decided"


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """95 % of the median, by bootstrap over the pairs."""
    draws = random.Random(0)
    medians = sorted(median(draws.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    return medians[round(0.025 * DRAWS)], medians[round(0.975 * DRAWS) - 1]


def _measure(options: argparse.Namespace) -> tuple[list[Pair], dict[str, Any]]:
    """The pairs, and what the recorder has returned for the last update."""
    from rlcluster.exchange.ranks import Ranks
    from rlcluster.profiling.recorder import ProcessName, Recorder
    from rlcluster.training.synchronous import Synchronous

    flags = {"env.num_envs": str(options.num_envs), "training.n_steps": str(options.n_steps), "training.n_epochs": "1"}
    settings = load_settings("ppo", "sequential", None, {**flags, "hardware.num_threads": str(options.num_threads)})
    ranks = Ranks()
    engine = Synchronous(settings, resolve(settings, [RankInputs(cores.observe(), ranks.placement)]), ranks, None)
    recorded: dict[str, Any] = {}

    def plain() -> float:
        begin = time.perf_counter()
        engine.update(0.0)
        return time.perf_counter() - begin

    def profiled() -> tuple[float, float]:
        recorder = Recorder(ProcessName(0), engine.model.policy)
        before = time.perf_counter()
        recorder.start()
        started = time.perf_counter() - before
        seconds = plain()
        before = time.perf_counter()
        recorded.update(recorder.stop())
        return seconds, started + time.perf_counter() - before

    profiled(), plain()  # warm-up
    pairs = []
    for number in range(options.pairs):
        first = plain() if number % 2 else None
        with_recorder, fixed = profiled()
        pairs.append(Pair(with_recorder, plain() if first is None else first, fixed))
    engine.close()
    return pairs, recorded


def _seconds_by_counting(recorded: dict[str, Any], update_seconds: float) -> float:
    """Phases, and memory samples, times what one of each takes. The kernels read the clock inside their threads: about
    40 ns for each layer of 4 images, which is not counted here.
    """
    from rlcluster.profiling.recorder import MEMORY_SECONDS, private_memory_gb, shared_memory_gb
    from rlcluster.system.phases import clock

    def phase() -> None:
        with clock("act"):
            pass

    clock.start()
    of_phase = min(timeit.repeat(phase, number=1000, repeat=20)) / 1000
    clock.stop()
    of_sample = min(timeit.repeat(lambda: (private_memory_gb(), shared_memory_gb()), number=20, repeat=20)) / 20
    return of_phase * len(recorded["events"]) + of_sample * update_seconds / MEMORY_SECONDS


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60, help="pairs of updates (60)")
    parser.add_argument("--num-threads", type=int, default=1, help="threads (1)")
    parser.add_argument("--num-envs", type=int, default=16, help="environments (16)")
    parser.add_argument("--n-steps", type=int, default=32, help="steps of a rollout (32)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
