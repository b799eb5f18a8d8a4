"""The probe of a network: over a real gloo group, the same on all ranks, and who may take part."""

from __future__ import annotations

import os

import pytest

from rlcluster.exchange.ranks import Ranks
from rlcluster.experiments.forecast import Network, Workload, exchange_seconds
from rlcluster.experiments.probe import LARGE_FLOATS, probe, probe_hosts
from rlcluster.system.errors import UserError
from rlcluster.system.launcher import Placement, launched, leave_launcher
from rlcluster.system.signals import StopRequest

from conftest import on_ranks


def probe_shortly(ranks: Ranks) -> Network:
    return probe(ranks, 0.1, StopRequest())


def test_all_ranks_find_the_same_network_and_the_model_gives_back_what_was_measured() -> None:
    found = on_ranks(3, probe_shortly)
    assert found[0] == found[1] == found[2]
    one_exchange = Workload(1, 1, 1, 0, 4.0 * LARGE_FLOATS, 0.0, None, None, False)
    small = 2 * 2 * found[0].latency_seconds  # a ring of three: four messages, one after the other
    transfer = 4 / 3 * 4 * LARGE_FLOATS / found[0].bytes_per_second
    assert exchange_seconds(one_exchange, 3, found[0]) == pytest.approx(small + transfer)
    assert small > 0


class Scripted(Ranks):
    """Ranks of a known network, by a clock that only it moves."""

    placement = Placement(0, 4, 0, 1)

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.now = 0.0
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def sum_(self, values):
        self.now += 2 * 3 * (5e-5 + 4 * len(values) / 4 / 1e8)  # 50 µs, 0.1 GB/s, four ranks
        return values


def test_latency_and_bandwidth_of_a_known_ring_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = probe(Scripted(monkeypatch), 10.0, StopRequest())
    assert found.latency_seconds == pytest.approx(5e-5, rel=1e-2)  # the one number travels too
    assert found.bytes_per_second == pytest.approx(1e8, rel=1e-3)


def test_several_ranks_on_a_host_are_refused() -> None:
    with pytest.raises(UserError, match="has started 2 ranks on a host; start one on each, as: srun"):
        probe_hosts(Placement(0, 4, 0, 2), ("n1", 29500), 1.0, StopRequest())


def test_a_process_that_leaves_its_launcher_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": 1}.items():
        monkeypatch.setenv(name, str(value))
    step = {"STEP_ID": 0, "STEP_NUM_TASKS": 2, "PROCID": 0, "NODEID": 0, "LOCALID": 0, "JOB_ID": 3}
    for name, value in {**step, "STEP_TASKS_PER_NODE": "1(x2)", "STEP_NODELIST": "n[1-2]", "CPUS_PER_TASK": 2}.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    assert launched() is not None
    leave_launcher()
    assert launched() is None
    assert os.environ["SLURM_CPUS_PER_TASK"] == "2"
