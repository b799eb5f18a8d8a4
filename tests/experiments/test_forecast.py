"""The model of `rlcluster plan`, with values worked out by hand."""

from __future__ import annotations

import math

import pytest

from rlcluster.experiments.forecast import (
    Measured,
    Network,
    Workload,
    exchange_seconds,
    flat,
    forecast,
    nodes_that_pay,
    straggler_spread,
)
from rlcluster.system.errors import UserError

WORK = Workload(
    steps_per_update=1000,
    num_envs=64,
    num_exchanges=4,
    num_small=6,
    exchanged_bytes=1e6,
    rollout_bytes_per_env=2**20,
    total_steps=3_600_000,
    total_seconds=None,
    has_one_rank=False,
)
LOCAL = Network(1e-4, 1e9)
ONE_RANK = Measured(
    workload=WORK,
    update_seconds=(10.0, 10.0, 10.0, 10.0),
    sync_seconds=(0.0,) * 4,
    num_ranks=1,
    num_cores=1,
    num_helpers=0,
    memory_gb=1.0625,  # 1 GB of the process, 64 MB of rollouts
    checkpoint_gb=0.5,
    log_bytes_per_update=2**20,
    local=LOCAL,
)


def test_one_rank_is_what_was_measured() -> None:
    one = forecast(ONE_RANK, WORK, 1, 1, LOCAL)
    assert (one.ranks, one.threads_per_rank, one.cores) == (1, 1, 1)
    assert one.steps_per_second == pytest.approx(100.0)
    assert (one.wall_hours, one.core_hours) == (pytest.approx(10.0), pytest.approx(10.0))
    assert (one.compute_share, one.network_share, one.straggler_share) == (1.0, 0.0, 0.0)
    assert one.memory_gb_per_node == pytest.approx(1.0625)
    assert one.disk_gb == pytest.approx(0.5 + 3600 / 1024)
    assert one.steps_per_second_low == pytest.approx(95.0)
    assert one.steps_per_second_high == pytest.approx(105.0)


def test_an_exchange_is_a_ring_of_messages() -> None:
    # 4 ranks: 6 messages of 0.1 ms, and 1.5 times the bytes; 4 such, and 6 small ones.
    assert exchange_seconds(WORK, 4, LOCAL) == pytest.approx(4 * (6e-4 + 1.5e-3) + 6 * 6e-4)
    assert exchange_seconds(WORK, 1, LOCAL) == 0.0


def test_cores_divide_the_computing_and_nodes_use_the_network_between_them() -> None:
    slow = Network(1e-3, 1e8)
    one, two = forecast(ONE_RANK, WORK, 1, 4, slow), forecast(ONE_RANK, WORK, 2, 4, slow)
    assert one.steps_per_second == pytest.approx(1000 / (2.5 + exchange_seconds(WORK, 4, LOCAL)))
    assert two.steps_per_second == pytest.approx(1000 / (1.25 + exchange_seconds(WORK, 8, slow)))
    assert two.network_share == pytest.approx(
        exchange_seconds(WORK, 8, slow) / (1.25 + exchange_seconds(WORK, 8, slow))
    )
    assert two.memory_gb_per_node == pytest.approx(4 * 1.0 + 0.0625 / 2)


def test_there_are_no_more_ranks_than_environments_and_the_rank_with_most_of_them_decides() -> None:
    many = forecast(ONE_RANK, WORK._replace(num_envs=6), 1, 12, LOCAL)
    assert (many.ranks, many.threads_per_rank) == (6, 2)
    uneven = forecast(ONE_RANK, WORK._replace(num_envs=6), 1, 4, Network(0.0, math.inf))
    assert uneven.compute_share * 1000 / uneven.steps_per_second == pytest.approx(10 / 4 * (2 / 1.5))


def test_a_run_that_has_one_rank_on_a_node_is_forecast_with_one_that_has_all_its_threads() -> None:
    one = forecast(ONE_RANK._replace(num_cores=2), WORK._replace(has_one_rank=True), 1, 32, LOCAL)
    assert (one.ranks, one.threads_per_rank, one.network_share) == (1, 32, 0.0)


def test_what_ranks_waited_beyond_the_exchange_is_their_spread() -> None:
    exchange = exchange_seconds(WORK, 2, LOCAL)
    two = ONE_RANK._replace(num_ranks=2, num_cores=2, sync_seconds=(1.0 + exchange,) * 4)
    compute = 10.0 - 1.0 - exchange
    assert straggler_spread(two) == pytest.approx(1.0 / compute / math.sqrt(2 * math.log(2)))
    assert forecast(two, WORK, 1, 2, LOCAL).steps_per_second == pytest.approx(100.0)  # as measured


def test_a_slow_network_ends_what_more_nodes_gain() -> None:
    assert nodes_that_pay(ONE_RANK, WORK, 1, Network(1e-6, 1e12)) == 64
    assert nodes_that_pay(ONE_RANK, WORK, 1, Network(1e-3, 1e6)) == 1


def test_more_nodes_than_environments_are_refused() -> None:
    with pytest.raises(UserError, match=r"--nodes 65: every node needs an environment, but env.num_envs=64"):
        forecast(ONE_RANK, WORK, 65, 1, LOCAL)


def test_the_figures_are_flat() -> None:
    figures = flat([forecast(ONE_RANK, WORK, nodes, 1, LOCAL) for nodes in (1, 2)])
    assert figures["nodes_1_steps_per_second"] == pytest.approx(100.0)
    assert figures["nodes_2_ranks"] == 2


def test_a_measured_run_with_fewer_steps_and_environments_is_scaled() -> None:
    half = WORK._replace(steps_per_update=500, num_envs=32)
    measured = ONE_RANK._replace(workload=half, memory_gb=1.03125)  # 1 GB of the process, 32 MB of rollouts
    one = forecast(measured, WORK, 1, 1, LOCAL)
    assert one.steps_per_second == pytest.approx(50.0)  # 500 steps in 10 s
    assert one.memory_gb_per_node == pytest.approx(1.0625)


def test_actors_grow_with_the_cores_of_a_node_and_so_does_their_memory() -> None:
    helped = WORK._replace(has_one_rank=True)
    # On 2 cores a learner and an actor, 0.5 GB each; 8 cores have a learner and 4 actors.
    measured = ONE_RANK._replace(workload=helped, num_cores=2, num_helpers=1)
    assert forecast(measured, helped, 1, 8, LOCAL).memory_gb_per_node == pytest.approx(5 * 0.5 + 0.0625)
