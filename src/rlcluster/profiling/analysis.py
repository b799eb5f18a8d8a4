"""Recordings of all processes -> Profile: how each spent its time, and which rank the others waited for.

A collective begins when its last rank arrives. So a rank's wait in it is the time from its own arrival to that of the
last one, and the rest is the exchange of data. Ranks of one host share a clock; that of another host is aligned by the
ends of the collectives, which all ranks leave together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from rlcluster.system.phases import PHASES, Kind

NETWORK_PHASES = ("act", "forward", "backward", "convolutions", "torch convolutions", "linear")
EXCHANGE = "exchange"  # the part of `Kind.SYNC` in which data moves


class Node(NamedTuple):
    """One path of phases in one process."""

    path: tuple[str, ...]
    calls: int
    seconds: float
    own_seconds: float  # without its inner phases
    amount: float  # samples

    @property
    def name(self) -> str:
        return self.path[-1]


class ProcessProfile(NamedTuple):
    """How one process spent its time."""

    name: str  # "rank 0", "rank 0, actor 1"
    rank: int
    is_rank: bool
    host: str
    threads: int
    begin: float  # by the clock of rank 0
    seconds: float
    nodes: tuple[Node, ...]
    waiting_seconds: float  # for other ranks
    events: Sequence[Sequence[float]]  # number of the path, begin and end in microseconds since `begin`
    paths: Sequence[tuple[str, ...]]
    memory: Sequence[Sequence[float]]  # time by the clock of rank 0, GB, GB in /dev/shm
    layers: Mapping[str, Sequence[float]] | None

    @property
    def split(self) -> dict[str, float]:
        """Seconds by who worked: the kinds, with sync as waiting (idle) and exchange. Python includes what no phase
        names.
        """
        parts = dict.fromkeys([kind.value for kind in Kind if kind is not Kind.SYNC] + [EXCHANGE], 0.0)
        for node in self.nodes:
            kind = PHASES[node.name].kind
            parts[EXCHANGE if kind is Kind.SYNC else kind.value] += node.own_seconds
        parts[EXCHANGE] -= self.waiting_seconds
        parts[Kind.IDLE.value] += self.waiting_seconds
        parts[Kind.PYTHON.value] += self.seconds - self._outermost_seconds
        return parts

    @property
    def attributed(self) -> float:
        """The share of its time that a phase with a meaning of its own names."""
        return sum(node.own_seconds for node in self.nodes if not PHASES[node.name].is_container) / self.seconds

    @property
    def _outermost_seconds(self) -> float:
        return sum(node.seconds for node in self.nodes if len(node.path) == 1)

    @property
    def busy_seconds(self) -> float:
        """Without waiting for other ranks or processes."""
        return self.seconds - self.split[Kind.IDLE.value]

    def seconds_in(self, *names: str) -> float:
        """Own time of the phases with these names."""
        return sum(node.own_seconds for node in self.nodes if node.name in names)


class Profile(NamedTuple):
    """All processes of a run, ranks first."""

    processes: tuple[ProcessProfile, ...]
    waits: tuple[tuple[float, ...], ...]  # [waiting rank][rank that arrived last], seconds

    @property
    def ranks(self) -> list[ProcessProfile]:
        return [process for process in self.processes if process.is_rank]

    @property
    def seconds(self) -> float:
        return max(rank.seconds for rank in self.ranks)

    @property
    def learners(self) -> list[ProcessProfile]:
        """The processes whose speed decides that of the run: the ranks, or the workers that they lead (A3C)."""
        found = [process for process in self.processes if any(node.name == "learn" for node in process.nodes)]
        return found or self.ranks

    def share(self, *names: str) -> float:
        """Of the learners' time, in the phases with these names."""
        return sum(one.seconds_in(*names) for one in self.learners) / sum(one.seconds for one in self.learners)

    def split_share(self, part: str) -> float:
        """Of the learners' time, by who worked."""
        return sum(one.split[part] for one in self.learners) / sum(one.seconds for one in self.learners)

    @property
    def waiting_share(self) -> float:
        """Of the ranks' time, waiting for other ranks."""
        return sum(rank.waiting_seconds for rank in self.ranks) / sum(rank.seconds for rank in self.ranks)

    def waits_caused(self) -> list[float]:
        """Seconds that the other ranks have waited for each rank."""
        return [sum(column) for column in zip(*self.waits, strict=True)]

    def slowness(self, rank: int) -> float:
        """The busy time of a rank compared with the median of the others."""
        others = [one.busy_seconds for one in self.ranks if one.rank != rank]
        return self.ranks[rank].busy_seconds / median(others) if others else 1.0


def analyse(recordings: Sequence[Mapping[str, Any]]) -> Profile:
    """`recordings` are what `Recorder.stop` returns, in any order."""
    ordered = sorted(recordings, key=lambda one: (one["helper"] is not None, one["rank"], one["helper"] or ""))
    ranks = [one for one in ordered if one["helper"] is None]
    offsets = {one["rank"]: clock_offset(ranks[0], one) for one in ranks}
    waits = who_waited(
        [[(start - offsets[one["rank"]], end - offsets[one["rank"]]) for start, end in one["syncs"]] for one in ranks]
    )
    processes = [
        _process(one, offsets[one["rank"]], sum(waits[one["rank"]]) if one["helper"] is None else 0.0)
        for one in ordered
    ]
    return Profile(tuple(processes), waits)


def clock_offset(first: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Seconds by which the clock of `other` is ahead of that of `first`."""
    if first["host"] == other["host"] or not first["syncs"] or not other["syncs"]:
        return 0.0
    pairs = zip(first["syncs"], other["syncs"], strict=False)
    return float(median(theirs[1] - ours[1] for ours, theirs in pairs))


def who_waited(syncs: Sequence[Sequence[tuple[float, float]]]) -> tuple[tuple[float, ...], ...]:
    """[waiting rank][rank that arrived last], seconds. `syncs` are each rank's collectives, (start, end), in order."""
    waits = [[0.0] * len(syncs) for _ in syncs]
    for collective in zip(*syncs, strict=False):  # of every rank
        last = max(range(len(collective)), key=lambda rank: collective[rank][0])
        for rank, (start, end) in enumerate(collective):
            waits[rank][last] += max(0.0, min(collective[last][0], end) - start)
    return tuple(map(tuple, waits))


def _process(recording: Mapping[str, Any], offset: float, waiting_seconds: float) -> ProcessProfile:
    helper, rank = recording["helper"], recording["rank"]
    return ProcessProfile(
        name=f"rank {rank}" if helper is None else f"rank {rank}, {helper}",
        rank=rank,
        is_rank=helper is None,
        host=recording["host"],
        threads=recording["threads"],
        begin=recording["begin"] - offset,
        seconds=recording["end"] - recording["begin"],
        nodes=_nodes(recording),
        waiting_seconds=waiting_seconds,
        events=recording["events"],
        paths=[tuple(path) for path in recording["paths"]],
        memory=[(at - offset, *rest) for at, *rest in recording["memory"]],
        layers=recording["layers"],
    )


def _nodes(recording: Mapping[str, Any]) -> tuple[Node, ...]:
    """In the order of a tree: each path before those inside it, the longest first."""
    paths = [tuple(path) for path in recording["paths"]]
    seconds = dict(zip(paths, recording["seconds"], strict=True))
    inner = dict.fromkeys(paths, 0.0)
    for path in paths[1:]:
        inner[path[:-1]] += seconds[path]
    nodes = {
        path: Node(path, calls, seconds[path], seconds[path] - inner[path], amount)
        for path, calls, amount in zip(paths, recording["counts"], recording["amounts"], strict=True)
        if path
    }
    order = {path: tuple((-seconds[path[: k + 1]], path[k]) for k in range(len(path))) for path in nodes}
    return tuple(nodes[path] for path in sorted(nodes, key=order.__getitem__))
