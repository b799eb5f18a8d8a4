"""Profile + facts of the run -> findings: the figures, and the first sentence, made from them.

The sentence names the largest loss that a setting can change, or says that there is none. Each rule has the share of
the ranks' time from which on it speaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from statistics import mean
from typing import Any, NamedTuple

from rlcluster.networks.operations import LayerWork
from rlcluster.plan import Plan, RankPlan
from rlcluster.profiling.analysis import EXCHANGE, NETWORK_PHASES, Profile
from rlcluster.profiling.roofline import LayerRate, Peaks, layer_rates, network_flops
from rlcluster.settings.schema import Settings
from rlcluster.system.console import counted
from rlcluster.system.phases import PHASES, Kind

WAITING_SHARE, EXCHANGE_SHARE, IDLE_SHARE, SIMULATOR_SHARE, SMALL_SHARE = 0.10, 0.10, 0.15, 0.20, 0.35
BLAME_SHARE = 0.5  # of all waiting: one rank causes it
BLAME_SLOWNESS = 1.05  # times slower than the others: it does cause it
ACTOR_IDLE_SHARE = 0.40  # of the actors' time
LOAD_SHARE = 0.10  # of the cores, taken by other programs
TINY_SHARE = 0.05  # of the peak: the calls take the time, not the arithmetic


class RunFacts(NamedTuple):
    """What is known of the run besides its recordings."""

    settings: Settings
    plan: Plan
    updates: int  # that were profiled
    peaks: Sequence[Peaks | None]  # of each rank
    background_load: float | None
    processor: str
    kernels: str


class Findings:
    """What the page, the console and the JSON file show."""

    def __init__(self, profile: Profile, facts: RunFacts, works: Sequence[LayerWork]) -> None:
        self.profile, self.facts, self.works = profile, facts, works

    @cached_property
    def layers(self) -> list[LayerRate]:
        return layer_rates(self.profile, self.works)

    @property
    def steps(self) -> int:
        return self.facts.updates * self.facts.settings.rollout_size

    @cached_property
    def network_share(self) -> float:
        return self.profile.share(*NETWORK_PHASES)

    @cached_property
    def network_gflops(self) -> float:
        """Of a learner, while it is in its network."""
        return mean(network_flops(learner, self.works) for learner in self.profile.learners) / 1e9

    @cached_property
    def peak(self) -> Peaks | None:
        """The mean over ranks; None if one has none."""
        known = [peak for peak in self.facts.peaks if peak is not None]
        if len(known) < len(self.facts.peaks):
            return None
        return Peaks(*(mean(column) for column in zip(*known, strict=True)))

    @property
    def peak_share(self) -> float | None:
        return None if self.peak is None else 1e9 * self.network_gflops / self.peak.flops

    def sentence(self) -> str:
        """The first sentence, and a second one where other programs have disturbed the measurement."""
        rules = (
            *(self._waiting, self._exchanging, self._idle, self._unused, self._idle_actors),
            *(self._simulating, self._small),
        )
        text = next((found for rule in rules if (found := rule()) is not None), None) or self._network()
        load = self.facts.background_load
        if load is not None and load >= LOAD_SHARE:
            text += f" Other programs took {load:.0%} of the cores meanwhile."
        return text

    def figures(self) -> dict[str, Any]:
        """One flat object, with units in the names."""
        profile, peak = self.profile, self.peak
        data: dict[str, Any] = {
            "finding": self.sentence(),
            "updates": self.facts.updates,
            "wall_seconds": profile.seconds,
            "steps_per_second": self.steps / profile.seconds,
            "attributed_share_min": min(process.attributed for process in profile.ranks),
            "waiting_share": profile.waiting_share,
            "network_share": self.network_share,
            "network_gflops_per_learner": self.network_gflops,
            "network_peak_share": self.peak_share,
            "peak_gflops_per_learner": None if peak is None else peak.flops / 1e9,
            "cache_gb_per_second_per_learner": None if peak is None else peak.cache_bandwidth / 1e9,
            "memory_gb_per_second_per_learner": None if peak is None else peak.memory_bandwidth / 1e9,
            "memory_gb_peak": self.memory_peak_gb(),
            "background_load_share": self.facts.background_load,
        }
        data |= {f"{part.lower()}_share": profile.split_share(part) for part in profile.ranks[0].split}
        for name in PHASES:
            seconds = sum(learner.seconds_in(name) for learner in profile.learners) / len(profile.learners)
            if seconds:
                data[f"phase_{name.replace(' ', '_')}_seconds_per_update"] = seconds / max(1, self.facts.updates)
        return data

    def memory_peak_gb(self) -> float:
        """The sum over processes of each one's largest sample."""
        return sum(max((row[1] for row in process.memory), default=0.0) for process in self.profile.processes)

    def _waiting(self) -> str | None:
        """For other ranks."""
        share, caused = self.profile.waiting_share, self.profile.waits_caused()
        if share < WAITING_SHARE:
            return None
        slowest = max(range(len(caused)), key=caused.__getitem__)
        ratio = self.profile.slowness(slowest)
        if caused[slowest] < BLAME_SHARE * sum(caused) or ratio < BLAME_SLOWNESS:
            return (
                f"{share:.0%} of the time is waiting of ranks for each other, for no one in particular: fewer ranks "
                "with more threads each (--num-workers, --num-threads) wait less."
            )
        return (
            f"{share:.0%} of the time is waiting for rank {slowest} ({self.profile.ranks[slowest].host}, {ratio:.1f} "
            "times slower than the others): see what else runs on its cores, and its core mask."
        )

    def _exchanging(self) -> str | None:
        share = self.profile.split_share(EXCHANGE)
        if share < EXCHANGE_SHARE:
            return None
        hosts = len({rank.host for rank in self.profile.ranks})
        remedy = (
            "--wire-dtype bfloat16 halves the bytes"
            if hosts > 1 and self.facts.settings.parallel.wire_dtype == "float32"
            else "larger minibatches (--batch-size) exchange less often, but change the algorithm"
        )
        return f"{share:.0%} of the time is the exchange of gradients between ranks: {remedy}."

    def _idle(self) -> str | None:
        """Of a learner that waits for its actors."""
        plan = self.facts.plan
        share = self.profile.split_share(Kind.IDLE.value) - self.profile.waiting_share
        if share < IDLE_SHARE or plan.learns_in_helpers or not plan.ranks[0].helpers:
            return None
        actors = counted(len(plan.ranks[0].helpers), "actor")
        return f"The learner waits {share:.0%} of its time for its {actors}: {self._remedy_for_a_waiting_learner()}."

    def _remedy_for_a_waiting_learner(self) -> str:
        """Every actor needs an environment."""
        own = self.facts.plan.ranks[0]
        if len(own.helpers) < len(own.envs):
            name = "--num-workers" if self.facts.settings.mode == "parallel" else "--workers-per-rank"
            return f"{name} {len(own.helpers) + 1}, or fewer threads for the learner (--num-threads)"
        if own.threads > 1:
            return "fewer threads for the learner (--num-threads) leave more of the cores to acting"
        return "more environments (--num-envs) allow more actors, but change the algorithm"

    def _idle_actors(self) -> str | None:
        """Actors that wait for a learner which could use their cores."""
        plan, actors = self.facts.plan, [one for one in self.profile.processes if not one.is_rank]
        if plan.learns_in_helpers or not actors or plan.learner_threads >= _cores_of(plan.ranks[0]):
            return None
        share = sum(one.split[Kind.IDLE.value] for one in actors) / sum(one.seconds for one in actors)
        if share < ACTOR_IDLE_SHARE:
            return None
        who = counted(len(plan.ranks[0].helpers), "actor")
        return (
            f"The learner decides the speed: {who} waited {share:.0%} of the time, so --num-threads "
            f"{plan.learner_threads + 1} lets the learner use those cores too."
        )

    def _unused(self) -> str | None:
        """On the host with the most cores that nobody uses."""
        plan = self.facts.plan
        used = [plan.num_threads(number) * rank.num_peers for number, rank in enumerate(plan.ranks)]
        cores = [_cores_of(rank) for rank in plan.ranks]
        worst = max(range(plan.world_size), key=lambda number: cores[number] - used[number])
        if used[worst] >= cores[worst]:
            return None
        where, remedy = "", "a higher --num-workers or --num-threads uses all"
        if plan.mode == "sequential":
            remedy = "--mode parallel uses all"
        elif plan.mode == "distributed":
            where = f" of {self.profile.ranks[worst].host}"
            remedy = "a higher --num-threads, or more ranks on each host, use all"
        return f"{used[worst]} of {cores[worst]} cores{where} are used: {remedy}."

    def _simulating(self) -> str | None:
        share = self.profile.split_share(Kind.SIMULATOR.value)
        if share < SIMULATOR_SHARE:
            return None
        return (
            f"The simulator takes {share:.0%}, on {self._threads()} per rank: all cores are busy, so only a faster "
            "game or more cores help."
        )

    def _small(self) -> str | None:
        """What is neither network nor simulator."""
        known = self.network_share + sum(
            self.profile.split_share(part) for part in (Kind.SIMULATOR.value, Kind.IDLE.value, EXCHANGE)
        )
        if 1 - known < SMALL_SHARE:
            return None
        names = [name for name, phase in PHASES.items() if phase.kind in (Kind.TORCH, Kind.PYTHON)]
        largest = max((name for name in names if name not in NETWORK_PHASES), key=self.profile.share)
        return (
            f"{1 - known:.0%} of the time are small operations around the network, above all {largest} "
            f"({self.profile.share(largest):.0%}): more environments in each step (--num-envs) share them, but change "
            "the algorithm."
        )

    def _network(self) -> str:
        share = f"{self.network_share:.0%} of the time is the network"
        if self.peak_share is None:
            return f"{share}, without our kernels: compile them (make clean setup)."
        if self.peak_share < TINY_SHARE:
            small = f"{self.peak_share:.1%}" if self.peak_share >= 0.001 else "less than 0.1%"
            return f"{share}, at {small} of what these cores can do: {self._remedy_for_calls()}."
        speed = f"at {self.peak_share:.0%} of what these cores can do"
        if self.peak_share > 1:
            speed = f"{self.peak_share:.1f} times as fast as direct convolution could be on these cores"
        remedy = "--kernels auto uses our convolutions" if self._lacks_kernels() else "nothing to gain by settings"
        return f"{share}, {speed}: {remedy}."

    def _remedy_for_calls(self) -> str:
        """Where the calls take the time, not the arithmetic."""
        threads = self.facts.plan.learner_threads
        if threads > 1 and not any(work.is_convolution for work in self.works):
            return f"its layers are too small to be shared by {threads} threads, use --num-threads 1"
        return "its calls are too small, more environments in each step (--num-envs) help but change the algorithm"

    def _lacks_kernels(self) -> bool:
        return self.facts.kernels == "torch" and any(work.is_convolution for work in self.works)

    def _threads(self) -> str:
        count = self.facts.plan.ranks[0].threads
        return f"{count} thread{'s' if count > 1 else ''}"


def _cores_of(rank: RankPlan) -> int:
    """On its machine; a second thread of a core adds little."""
    return rank.cores_physical or rank.cores_allowed
