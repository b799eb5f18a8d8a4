"""The forecast of a run on n nodes: pure functions of what was measured on one. docs/scaling.md explains the equations.

    update    t(n) = c + x + s
    compute   c = core-seconds of an update / (n C)
    exchange  x = E (2 (W - 1) a + 2 (W - 1) / W B / b) + e 2 (W - 1) a    ring all-reduces: E of gradients, e small
    straggler s = k c sqrt(2 ln W)                                         the latest of W ranks, k their spread

W ranks, a seconds of latency per message, b bytes per second, B bytes of a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from rlcluster.system.errors import UserError

PAYS_FROM = 1.2  # times the speed for twice the nodes: below this, more nodes do not pay
EXCHANGE_FACTORS = (0.5, 2.0)  # of the forecast exchange and straggler terms, for the interval
SPEED_MARGIN = 0.05  # of the measured speed: what two minutes on one machine differ by


class Network(NamedTuple):
    """Between two ranks."""

    latency_seconds: float  # of a message
    bytes_per_second: float


# What such networks usually reach with TCP; `--interconnect MEASURE` probes instead.
NETWORKS = {"10GbE": Network(40e-6, 1.1e9), "1GbE": Network(80e-6, 0.115e9)}


class Workload(NamedTuple):
    """What the settings and the network of the policy decide."""

    steps_per_update: int
    num_envs: int
    num_exchanges: float  # of gradients (or parameters) per update
    num_small: float  # other collectives per update
    exchanged_bytes: float  # of one exchange
    rollout_bytes_per_env: float
    total_steps: int | None  # the budget, if it is one of steps
    total_seconds: float | None  # ... or of time
    has_one_rank: bool  # on each node: it is sequential, or leads actors or workers


class Measured(NamedTuple):
    """One node, measured."""

    workload: Workload  # of the measured run
    update_seconds: tuple[float, ...]
    sync_seconds: tuple[float, ...]  # of each update, in collectives
    num_ranks: int
    num_cores: int
    num_helpers: int  # actors or workers, of all ranks
    memory_gb: float  # of all processes
    checkpoint_gb: float
    log_bytes_per_update: float
    local: Network  # between ranks of this machine


class Forecast(NamedTuple):
    """Of a run on so many nodes; flat, with units in the names."""

    nodes: int
    cores: int
    ranks: int
    threads_per_rank: int
    steps_per_second: float
    steps_per_second_low: float
    steps_per_second_high: float
    wall_hours: float | None
    core_hours: float | None
    memory_gb_per_node: float
    disk_gb: float
    compute_share: float
    network_share: float
    straggler_share: float


def forecast(measured: Measured, workload: Workload, nodes: int, cores_per_node: int, network: Network) -> Forecast:
    """Raises a UserError if a node would have no environment."""
    if nodes > workload.num_envs:
        raise UserError(
            f"--nodes {nodes}: every node needs an environment, but env.num_envs={workload.num_envs}; use more "
            "environments (--num-envs) or fewer nodes"
        )
    ranks, threads = layout(measured, workload, nodes, cores_per_node)
    link = network if nodes > 1 else measured.local
    compute = core_seconds(measured, workload) / cores_per_node / nodes * _unevenness(workload, ranks)
    exchange = exchange_seconds(workload, ranks, link)
    straggler = straggler_spread(measured) * compute * _latest_of(ranks)
    total = compute + exchange + straggler
    least, most = (compute + factor * (exchange + straggler) for factor in EXCHANGE_FACTORS)
    rate = workload.steps_per_update / total
    margin = SPEED_MARGIN + relative_error(measured)
    wall = _wall_hours(workload, rate)
    return Forecast(
        nodes=nodes,
        cores=nodes * cores_per_node,
        ranks=ranks,
        threads_per_rank=threads,
        steps_per_second=rate,
        steps_per_second_low=workload.steps_per_update / most * (1 - margin),
        steps_per_second_high=workload.steps_per_update / least * (1 + margin),
        wall_hours=wall,
        core_hours=None if wall is None else wall * nodes * cores_per_node,
        memory_gb_per_node=memory_gb(measured, workload, (nodes, cores_per_node), ranks),
        disk_gb=_disk_gb(measured, workload, rate),
        compute_share=compute / total,
        network_share=exchange / total,
        straggler_share=straggler / total,
    )


def layout(measured: Measured, workload: Workload, nodes: int, cores_per_node: int) -> tuple[int, int]:
    """Ranks and threads of each: as on the measured node, and no more ranks than environments."""
    per_node = max(1, round(measured.num_ranks * cores_per_node / measured.num_cores))
    if workload.has_one_rank:
        per_node = 1
    ranks = min(nodes * per_node, workload.num_envs)
    return ranks, max(1, nodes * cores_per_node // ranks)


def core_seconds(measured: Measured, workload: Workload) -> float:
    """Of one update, without collectives: the median over updates; in proportion to its steps."""
    ratio = workload.steps_per_update / measured.workload.steps_per_update
    return ratio * _compute_seconds(measured) * measured.num_cores


def _compute_seconds(measured: Measured) -> float:
    pairs = zip(measured.update_seconds, measured.sync_seconds, strict=True)
    return _median([seconds - sync for seconds, sync in pairs])


def exchange_seconds(workload: Workload, ranks: int, link: Network) -> float:
    """Of one update."""
    if ranks == 1:
        return 0.0
    latency = 2 * (ranks - 1) * link.latency_seconds
    transfer = 2 * (ranks - 1) / ranks * workload.exchanged_bytes / link.bytes_per_second
    return workload.num_exchanges * (latency + transfer) + workload.num_small * latency


def straggler_spread(measured: Measured) -> float:
    """k: from what the measured ranks waited beyond the exchange; with one rank, from the spread of its updates."""
    if measured.num_ranks == 1:
        return _relative_spread(measured.update_seconds)
    exchange = exchange_seconds(measured.workload, measured.num_ranks, measured.local)
    waited = _median(measured.sync_seconds) - exchange
    return max(0.0, waited) / _compute_seconds(measured) / _latest_of(measured.num_ranks)


def memory_gb(measured: Measured, workload: Workload, cluster: tuple[int, int], ranks: int) -> float:
    """Of one node: its processes as measured, with their part of the environments' rollouts. `cluster` is nodes and
    cores of each. There are as many actors or workers per core as in the measured run.
    """
    nodes, cores_per_node = cluster
    process = (measured.memory_gb - _rollout_gb(measured.workload)) / (measured.num_ranks + measured.num_helpers)
    helpers = math.ceil(measured.num_helpers * cores_per_node / measured.num_cores)
    return max(0.0, process) * (math.ceil(ranks / nodes) + helpers) + _rollout_gb(workload) / nodes


def _rollout_gb(workload: Workload) -> float:
    """Of all environments."""
    return workload.num_envs * workload.rollout_bytes_per_env / 2**30


def nodes_that_pay(measured: Measured, workload: Workload, cores_per_node: int, network: Network) -> int:
    """The largest power of two such that twice the nodes would not make the run PAYS_FROM times as fast."""
    nodes = 1
    while 2 * nodes <= workload.num_envs:
        pair = [forecast(measured, workload, count, cores_per_node, network) for count in (nodes, 2 * nodes)]
        if pair[1].steps_per_second < PAYS_FROM * pair[0].steps_per_second:
            break
        nodes *= 2
    return nodes


def relative_error(measured: Measured) -> float:
    """Two standard errors of the mean update."""
    return 2 * _relative_spread(measured.update_seconds) / math.sqrt(len(measured.update_seconds))


def flat(forecasts: Sequence[Forecast]) -> dict[str, Any]:
    """One flat object: `nodes_4_steps_per_second`."""
    return {
        f"nodes_{one.nodes}_{name}": value
        for one in forecasts
        for name, value in one._asdict().items()
        if name != "nodes"
    }


def _unevenness(workload: Workload, ranks: int) -> float:
    """The rank with the most environments decides."""
    return math.ceil(workload.num_envs / ranks) * ranks / workload.num_envs


def _latest_of(ranks: int) -> float:
    """By how many standard deviations the latest of so many normal times is late, about."""
    return math.sqrt(2 * math.log(ranks))


def _wall_hours(workload: Workload, rate: float) -> float | None:
    if workload.total_seconds is not None:
        return workload.total_seconds / 3600
    return None if workload.total_steps is None else workload.total_steps / rate / 3600


def _disk_gb(measured: Measured, workload: Workload, rate: float) -> float:
    steps = workload.total_steps or (workload.total_seconds or 0.0) * rate
    updates = steps / workload.steps_per_update
    return measured.checkpoint_gb + updates * measured.log_bytes_per_update / 2**30


def _relative_spread(values: Sequence[float]) -> float:
    """The standard deviation over the mean, from the median absolute deviation: one disturbed update does not count."""
    middle = _median(values)
    return 1.4826 * _median([abs(value - middle) for value in values]) / middle


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
