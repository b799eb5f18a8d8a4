"""Latency and bandwidth between ranks, over a real gloo group: of this machine, or of the hosts of an allocation.

A ring all-reduce of B bytes among W ranks takes 2 (W - 1) (a + B / (W b)): a seconds of latency, b bytes per second.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from rlcluster.experiments.forecast import Network
from rlcluster.system import cores
from rlcluster.system.errors import UserError
from rlcluster.system.launcher import INTERFACE_VARIABLE, LOOPBACK, Placement, leave_launcher, prepare_network
from rlcluster.system.processes import run_ranks
from rlcluster.system.scratch import scratch_folder
from rlcluster.system.signals import StopRequest

if TYPE_CHECKING:
    from rlcluster.exchange.ranks import Ranks

LOCAL_RANKS = 2
LARGE_FLOATS = 2**20
REPEATS = 20  # between two looks at the clock
TIMEOUT_SECONDS = 60.0


def probe_local(seconds: float, stop: StopRequest) -> Network:
    """Between two ranks of this machine."""
    with scratch_folder() as folder:
        arguments = (str(folder / "rendezvous"), seconds)
        network: Network = run_ranks(LOCAL_RANKS, _probe_on_rank, arguments, stop, TIMEOUT_SECONDS)[0]
    return network


def probe_hosts(placement: Placement, master: tuple[str, int], seconds: float, stop: StopRequest) -> Network:
    """Between the hosts of an allocation: called by the one rank of each. Afterwards they are ranks no more."""
    from rlcluster.exchange.ranks import join_group

    if placement.local_world_size > 1:
        raise UserError(
            f"plan: the launcher has started {placement.local_world_size} ranks on a host; start one on each, as: "
            "srun --ntasks-per-node 1 rlcluster plan ..., or none to plan from this host alone"
        )
    prepare_network(placement, *master)
    network = probe(join_group(placement, TIMEOUT_SECONDS), seconds, stop)
    leave_launcher()
    return network


def probe(ranks: Ranks, seconds: float, stop: StopRequest) -> Network:
    """Half of the time for messages of one number, half for large ones. The same on all ranks; ends early if one of
    them is asked to stop.
    """
    small, large = (_typical_seconds(ranks, count, seconds / 2, stop) for count in (1, LARGE_FLOATS))
    messages = 2 * (ranks.world_size - 1)
    transfer = max(large - small, 1e-9)
    return Network(small / messages, messages / ranks.world_size * 4 * LARGE_FLOATS / transfer)


def _probe_on_rank(rank: int, stop: StopRequest, rendezvous: str, seconds: float) -> Network:
    cores.limit_threads(1)
    os.environ[INTERFACE_VARIABLE] = LOOPBACK
    from rlcluster.exchange.ranks import join_group

    return probe(
        join_group(Placement(rank, LOCAL_RANKS, rank, LOCAL_RANKS), TIMEOUT_SECONDS, rendezvous), seconds, stop
    )


def _typical_seconds(ranks: Ranks, count: int, seconds: float, stop: StopRequest) -> float:
    """The median over all-reduces of so many numbers; of the rank that took longest."""
    import torch

    values, times, start = torch.zeros(count), list[float](), time.perf_counter()
    is_over = False
    while not is_over:
        for _ in range(REPEATS):
            before = time.perf_counter()
            ranks.sum_(values)
            times.append(time.perf_counter() - before)
        is_over = ranks.any(time.perf_counter() - start > seconds or stop.requested)
    middle = sorted(times)[len(times) // 2]
    return float(ranks.max_(torch.tensor([middle], dtype=torch.float64)))
