"""Settings + cores + launcher -> Plan: how many processes a run has, and the environments, threads and cores of each.

Every rank resolves the same inputs to the same plan, once, before its loop starts. The plan is stored in the run
directory; loops and reports read it and make no such decision themselves.

    rank    takes part in gradient synchronisation; has environments, or leads helpers that have them
    actor   a helper of IMPALA: plays only
    worker  a helper of A3C: plays, and steps the shared model
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rlcluster.settings.algorithms import ALGORITHMS
from rlcluster.settings.schema import Settings
from rlcluster.system.console import counted
from rlcluster.system.cores import Core, Cores
from rlcluster.system.errors import UserError
from rlcluster.system.launcher import Placement

SHARED_EFFICIENCY = 0.95  # of cores on which actors and learner alternate: they evict each other's caches
MOST_THREADS_PER_CORE = 32
THREADS_PAY_FROM = 512  # hidden units of an MLP; docs/results.md has the measurement for processes


class Rates(NamedTuple):
    """What one core does in a second."""

    act: float  # environment steps
    learn: float  # samples


class RankInputs(NamedTuple):
    """What one rank reports about itself, before the plan is resolved."""

    cores: Cores
    placement: Placement
    rates: Rates | None = None  # required where `needs_rates`
    has_kernels: bool = True  # our convolutions, whose threads are not torch's
    threads_that_pay: int | None = None  # in a backward pass; None: nothing limits them


class Peers(NamedTuple):
    """The ranks of a machine that may use the same cores, this one included."""

    number: int = 0  # of this rank among them, from 0
    size: int = 1
    are_alike: bool = True  # all have the same cores, so they can partition them

    @classmethod
    def expected(cls, placement: Placement) -> Peers:
        """Before the ranks have compared their cores: all ranks of the machine."""
        return cls(placement.local_rank, placement.local_world_size)


class HelperPlan(NamedTuple):
    """An actor or a worker."""

    envs: range
    threads: int
    cores: tuple[int, ...]  # pinned to these; empty: not pinned


class RankPlan(NamedTuple):
    """A rank and the helpers that it leads."""

    envs: range
    threads: int  # of our kernels and, unless it has fewer, of torch
    torch_threads: int
    cores: tuple[int, ...]  # pinned to these; empty: not pinned
    cores_allowed: int  # on its machine
    helpers: tuple[HelperPlan, ...] = ()
    num_peers: int = 1  # ranks that these cores are allowed to, this one included
    cores_physical: int | None = None  # of those allowed; None: unknown


class Plan(NamedTuple):
    """All processes of a run."""

    algorithm: str
    mode: str
    ranks: tuple[RankPlan, ...]

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    @property
    def num_acting(self) -> int:
        """Processes that play: the helpers where there are some, else the ranks."""
        return sum(len(rank.helpers) or 1 for rank in self.ranks)

    @property
    def learns_in_helpers(self) -> bool:
        """True for A3C with workers: the ranks only lead."""
        return ALGORITHMS[self.algorithm].helpers_in(self.mode) == "workers"

    def learners(self, rank: int) -> list[int]:
        """The threads of each process of a rank that learns."""
        own = self.ranks[rank]
        return [helper.threads for helper in own.helpers] if self.learns_in_helpers else [own.threads]

    @property
    def learner_threads(self) -> int:
        """Of a process that learns, on rank 0."""
        return self.learners(0)[0]

    @property
    def num_cores(self) -> int:
        """Cores that the run keeps busy; on each machine no more than it may use, which its ranks share."""
        shares = (rank.cores_allowed / rank.num_peers for rank in self.ranks)
        return round(sum(map(min, map(self.num_threads, range(self.world_size)), shares)))

    def num_threads(self, rank: int) -> int:
        """Of a rank with its helpers."""
        actors = () if self.learns_in_helpers else self.ranks[rank].helpers
        return sum(self.learners(rank)) + sum(actor.threads for actor in actors)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; includes the derived properties."""
        derived = {name: getattr(self, name) for name in ("world_size", "num_acting", "learner_threads", "num_cores")}
        return {**self._asdict(), **derived, "ranks": [_rank_to_dict(rank) for rank in self.ranks]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Raises KeyError, TypeError or ValueError if `data` is not a plan."""
        plan = cls(str(data["algorithm"]), str(data["mode"]), tuple(_rank_from_dict(rank) for rank in data["ranks"]))
        if not plan.ranks or not all(map(plan.learners, range(plan.world_size))):
            raise ValueError("a plan has ranks, and each has a process that learns")
        return plan


def resolve(settings: Settings, inputs: Sequence[RankInputs]) -> Plan:
    """The plan of a run with these ranks. Raises a UserError if a process would have no environment."""
    refuse_idle_processes(settings, len(inputs))
    shares = partition(range(settings.env.num_envs), len(inputs))
    each = zip(inputs, peers_of([(own.placement, own.cores) for own in inputs]), shares, strict=True)
    ranks = tuple(_resolve_rank(settings, own, peers, share) for own, peers, share in each)
    return Plan(settings.algorithm, settings.mode, ranks)


def peers_of(ranks: Sequence[tuple[Placement, Cores]]) -> list[Peers]:
    """Of each rank: those on its machine whose cores overlap its own. A scheduler may give each rank its own cores, or
    give all ranks of a machine the same.
    """
    masks = [frozenset(cores.numbers) for _, cores in ranks]
    machines = [(placement.node, placement.host) for placement, _ in ranks]
    positions: dict[tuple[int, str], dict[frozenset[int], list[int]]] = {}  # of the ranks, by machine and mask
    for k, (machine, mask) in enumerate(zip(machines, masks, strict=True)):
        positions.setdefault(machine, {}).setdefault(mask, []).append(k)
    groups = {
        (machine, mask): _overlapping(mask, by_mask) for machine, by_mask in positions.items() for mask in by_mask
    }
    return [
        Peers(bisect_left(group.positions, k), len(group.positions), group.are_alike)
        for k, group in enumerate(map(groups.__getitem__, zip(machines, masks, strict=True)))
    ]


class _Group(NamedTuple):
    """Ranks of one machine whose cores overlap those of a rank, which is one of them."""

    positions: list[int]  # ascending
    are_alike: bool  # they have the same cores


def _overlapping(mask: frozenset[int], by_mask: Mapping[frozenset[int], list[int]]) -> _Group:
    kinds = [other for other in by_mask if other == mask or not mask or other & mask]
    return _Group(sorted(k for kind in kinds for k in by_mask[kind]), len(kinds) == 1)


def forecast(settings: Settings, cores: Cores) -> Plan | None:
    """The plan of a run on this machine; None if it depends on rates that the run measures at its start."""
    if needs_rates(settings):
        return None
    placements = local_placements(num_local_ranks(settings, cores))
    return resolve(settings, [RankInputs(cores, placement) for placement in placements])


def needs_rates(settings: Settings) -> bool:
    """True if the split of cores between actors and learner depends on measured rates."""
    leads_actors = settings.traits.helpers_in(settings.mode) == "actors"
    return leads_actors and None in (settings.given_helpers, settings.hardware.num_threads)


def num_local_ranks(settings: Settings, cores: Cores) -> int:
    """Ranks of a run on one machine without a launcher."""
    return settings.given_ranks or min(cores.physical, settings.env.num_envs)


def local_placements(world_size: int) -> list[Placement]:
    """The placements of ranks that are all on one machine."""
    return [Placement(rank, world_size, rank, world_size) for rank in range(world_size)]


def with_processes(settings: Settings, num_processes: int) -> Settings:
    """The settings with this `num_workers`; raises a UserError if there is not an environment for each."""
    refuse_idle_processes(settings, num_processes)
    parallel = settings.parallel.model_copy(update={"num_workers": num_processes})
    return settings.model_copy(update={"parallel": parallel})


def refuse_idle_processes(settings: Settings, num_processes: int) -> None:
    if num_processes > settings.env.num_envs:
        raise UserError(
            f"parallel.num_workers={num_processes} but env.num_envs={settings.env.num_envs}: every process needs an "
            "environment; use fewer processes or more environments"
        )


class Share(NamedTuple):
    """The part of its machine that a rank uses."""

    threads: int
    cores: tuple[int, ...]  # pinned to these; empty: not pinned


def share_of_rank(settings: Settings, cores: Cores, peers: Peers, threads_that_pay: int | None = None) -> Share:
    """Ranks with the same cores partition them; a rank with cores of its own uses them all. Unless it is told how many,
    it has no more threads than pay.
    """
    threads = threads_alone(settings.hardware.num_threads, cores)
    if settings.hardware.num_threads is None:
        if peers.size > 1:
            threads = _physical_cores_of_rank(cores, peers.size)
        threads = 1 if _has_small_network(settings) else min(threads, threads_that_pay or threads)
    is_pinned = settings.mode != "sequential" and settings.parallel.pin_workers and peers.are_alike
    return Share(threads, _cores_of_rank(cores, peers, threads) if is_pinned else ())


def _has_small_network(settings: Settings) -> bool:
    """True for an MLP whose layers cost less than handing them to a second thread."""
    return settings.policy.network == "mlp" and max(settings.policy.hidden_sizes) < THREADS_PAY_FROM


def threads_alone(given: int | None, cores: Cores) -> int:
    """Threads of a process that has the machine to itself, such as a sequential run or an evaluation."""
    refuse_too_many_threads(given, cores)
    return given or (cores.physical if cores.affinity else cores.allowed)


def refuse_too_many_threads(given: int | None, cores: Cores) -> None:
    """OpenMP ends the process with a segmentation fault if it gets fewer threads than it asks for."""
    if given is not None and given > MOST_THREADS_PER_CORE * cores.allowed:
        raise UserError(
            f"num_threads={given} but this process may use {counted(cores.allowed, 'core')}: more than "
            f"{MOST_THREADS_PER_CORE} threads per core only wait for each other; use {cores.allowed}, or leave it out"
        )


def ranks_that_fit(threads: int, cores: Cores) -> int:
    """Ranks with so many threads each that the physical cores can run."""
    return max(1, cores.physical // threads)


def refuse_idle_helpers(settings: Settings, envs: range) -> None:
    """Raises a UserError if a rank with these environments has more helpers."""
    given = settings.given_helpers
    if settings.traits.helpers_in(settings.mode) and given is not None and given > len(envs):
        key = "num_workers" if settings.mode == "parallel" else "workers_per_rank"
        raise UserError(
            f"parallel.{key}={given} but a rank has {len(envs)} of env.num_envs={settings.env.num_envs}: every "
            "process needs an environment; use fewer processes or more environments"
        )


def partition(things: range, parts: int) -> list[range]:
    """Contiguous parts, as even as possible."""
    return [things[k * len(things) // parts : (k + 1) * len(things) // parts] for k in range(parts)]


def _resolve_rank(settings: Settings, inputs: RankInputs, peers: Peers, envs: range) -> RankPlan:
    cores = inputs.cores
    share = share_of_rank(settings, cores, peers, inputs.threads_that_pay)
    allowed, physical = cores.allowed, cores.physical
    if peers.size > 1:
        allowed, physical = cores.together or cores.allowed, cores.physical_together
    known = physical if cores.affinity else None
    plan = RankPlan(
        envs, share.threads, share.threads, share.cores, allowed, num_peers=peers.size, cores_physical=known
    )
    helpers = settings.traits.helpers_in(settings.mode)
    if helpers is None:
        return plan
    refuse_idle_helpers(settings, envs)
    available = _physical_cores_of_rank(cores, peers.size)
    exclusive = _exclusive_cores(cores, share, available, peers.size)
    if helpers == "workers":
        return _with_workers(plan, settings, available, exclusive)
    return _with_actors(plan, settings, inputs, (available, exclusive))


def _with_workers(plan: RankPlan, settings: Settings, available: int, exclusive: tuple[int, ...]) -> RankPlan:
    """As many workers as the cores can run; each is pinned to a core if they claim all cores."""
    threads = settings.hardware.num_threads or 1
    size = settings.given_helpers or max(1, min(available // threads, len(plan.envs)))
    is_pinned = settings.parallel.pin_workers and size == available and threads == 1
    helpers = tuple(
        HelperPlan(part, threads, exclusive[k : k + 1] if is_pinned else ())
        for k, part in enumerate(partition(plan.envs, size))
    )
    return plan._replace(helpers=helpers)


def _with_actors(
    plan: RankPlan, settings: Settings, inputs: RankInputs, cores: tuple[int, tuple[int, ...]]
) -> RankPlan:
    """Actors and learner are pinned to separate cores if these are just enough; otherwise they share all cores."""
    available, exclusive = cores
    actors, threads = settings.given_helpers, settings.hardware.num_threads
    if actors is None or threads is None:
        assert inputs.rates is not None, "needs_rates says where they are required"
        _, actors, threads = choose_split(
            available, inputs.rates, len(plan.envs), actors, threads, inputs.threads_that_pay
        )
    is_apart = settings.parallel.pin_workers and actors + threads == available and bool(exclusive)
    # Where there are more threads than cores and our kernels have threads of their own, torch leaves the actors' cores
    # alone: its operations are short, and its threads would spin or wait for each other in between. What must be
    # repeatable may not depend on the machine.
    is_limited = inputs.has_kernels and not settings.parallel.deterministic
    helpers = tuple(
        HelperPlan(part, 1, exclusive[threads + k : threads + k + 1] if is_apart else ())
        for k, part in enumerate(partition(plan.envs, actors))
    )
    return plan._replace(
        threads=threads,
        torch_threads=min(threads, max(1, available - actors)) if is_limited else threads,
        cores=exclusive[:threads] if is_apart else plan.cores,
        helpers=helpers,
    )


class Split(NamedTuple):
    rate: float  # samples per second that it should reach
    num_actors: int
    learner_threads: int


def choose_split(
    cores: int,
    rates: Rates,
    most_actors: int,
    num_actors: int | None = None,
    learner_threads: int | None = None,
    threads_that_pay: int | None = None,
) -> Split:
    """Actors and threads of the learner, where they are not given: those with the highest rate.

    Apart: A actors and L threads with a core each reach min(A act, L learn). Together, on all cores: whoever has work
    takes a core, so the cores' whole time is used, at some cost for alternating.
    """
    most_threads = threads_that_pay or cores
    threads = learner_threads or min(cores, most_threads)
    together = min(SHARED_EFFICIENCY * cores / (1 / rates.act + 1 / rates.learn), threads * rates.learn)
    enough = num_actors or min(most_actors, math.ceil(together / rates.act))
    candidates = [Split(min(together, enough * rates.act), enough, threads)]
    for actors in [num_actors] if num_actors else range(1, min(most_actors, cores - 1) + 1):
        threads = learner_threads or min(cores - actors, most_threads)
        if threads > 0 and actors + threads <= cores:
            candidates.append(Split(min(actors * rates.act, threads * rates.learn), actors, threads))
    return max(candidates, key=lambda candidate: (candidate.rate, -candidate.num_actors))


def _physical_cores_of_rank(cores: Cores, num_ranks: int) -> int:
    """Of a rank that shares its cores with others; at least 1."""
    return max(1, min(cores.physical, cores.physical_together // num_ranks))


def _cores_of_rank(cores: Cores, peers: Peers, threads: int) -> tuple[int, ...]:
    """The rank's part of the cores, if the ranks together claim all physical cores. Otherwise it stays unpinned: a
    second run on the machine would be pinned to the same cores.
    """
    if cores.is_partly_allowed:
        return ()
    order, num_cores = list(cores.affinity), peers.size * threads
    if num_cores > cores.physical_together:  # then a rank has both threads of its cores
        order.sort(key=lambda core: (core.first_sibling, core.number))
    if not cores.physical_together <= num_cores <= len(order):
        return ()
    return tuple(core.number for core in _parts_within_sockets(order, peers.size, threads)[peers.number])


def _parts_within_sockets(order: Sequence[Core], num_parts: int, size: int) -> list[list[Core]]:
    """Parts of `size` cores, each of the first socket that has as many left: what a rank reads and writes then lies in
    the memory of its own socket. A part spans sockets only if none has enough.
    """
    left = list(order)
    parts = []
    for _ in range(num_parts):
        by_socket = [[core for core in left if core.socket == socket] for socket in sorted({c.socket for c in left})]
        part = next((own[:size] for own in by_socket if len(own) >= size), left[:size])
        left = [core for core in left if core not in part]
        parts.append(part)
    return parts


def _exclusive_cores(cores: Cores, share: Share, available: int, num_ranks: int) -> tuple[int, ...]:
    """`available` cores that only this rank uses; none if other ranks or jobs of the machine may use them too."""
    if cores.is_partly_allowed:
        return ()
    own = tuple(number for number in cores.numbers if number in share.cores) if share.cores else cores.numbers
    return own[:available] if len(own) == available or (num_ranks == 1 and len(own) > available) else ()


def _rank_to_dict(rank: RankPlan) -> dict[str, Any]:
    helpers = [{**helper._asdict(), "envs": [helper.envs.start, helper.envs.stop]} for helper in rank.helpers]
    return {**rank._asdict(), "envs": [rank.envs.start, rank.envs.stop], "helpers": helpers}


def _rank_from_dict(data: Mapping[str, Any]) -> RankPlan:
    helpers = tuple(
        HelperPlan(range(*one["envs"]), int(one["threads"]), tuple(one["cores"])) for one in data["helpers"]
    )
    threads, torch_threads, allowed = (int(data[name]) for name in ("threads", "torch_threads", "cores_allowed"))
    num_peers, physical = int(data.get("num_peers", 1)), data.get("cores_physical")
    cores = tuple(data["cores"])
    return RankPlan(range(*data["envs"]), threads, torch_threads, cores, allowed, helpers, num_peers, physical)
