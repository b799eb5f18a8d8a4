"""Who waited for whom, and how time splits, on recordings made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from rlcluster.profiling.analysis import analyse, clock_offset, who_waited


def recording(rank: int, host: str = "n1", offset: float = 0.0, helper: str | None = None, **changes: Any) -> dict:
    """10 s: an update of 9.5 s, of which 6 s are learning (4 s convolutions), 2 s rollout (1 s simulator), 1 s sync."""
    paths = [[], ["update"], ["update", "learn"], ["update", "learn", "convolutions"], ["update", "rollout"]]
    paths += [["update", "rollout", "simulator"], ["update", "sync"]]
    seconds = [0.0, 9.5, 6.0, 4.0, 2.0, 1.0, 1.0]
    return {
        "rank": rank,
        "helper": helper,
        "threads": 1,
        "num_processes": 2,
        "host": host,
        "pid": 100 + rank,
        "begin": 50.0 + offset,
        "end": 60.0 + offset,
        "paths": paths,
        "counts": [0, 1, 1, 3, 1, 5, 2],
        "seconds": seconds,
        "amounts": [0, 0, 0, 300, 0, 40, 0],
        "events": [[1, 0.0, 9.5e6]],
        "syncs": [],
        "memory": [[50.0 + offset, 0.5, 0.0], [55.0 + offset, 0.7, 0.0]],
        "layers": None,
        **changes,
    }


def test_time_splits_by_who_worked_and_the_rest_is_python() -> None:
    (process,) = analyse([recording(0)]).processes
    # Python: 0.5 outside, 0.5 of the update, 2 of learning and 1 of the rollout outside their inner phases.
    assert process.split == pytest.approx(
        {"native": 4.0, "torch": 0.0, "Python": 4.0, "simulator": 1.0, "idle": 0.0, "exchange": 1.0}
    )
    assert sum(process.split.values()) == pytest.approx(10.0)
    assert process.attributed == pytest.approx((4 + 1 + 1) / 10)


def test_the_tree_has_each_path_before_its_inner_ones_and_the_longest_first() -> None:
    (process,) = analyse([recording(0)]).processes
    assert [node.path[-1] for node in process.nodes] == [
        *("update", "learn", "convolutions", "rollout", "simulator", "sync")
    ]
    assert [node.own_seconds for node in process.nodes] == pytest.approx([0.5, 2.0, 4.0, 1.0, 1.0, 1.0])


def test_a_collective_begins_when_its_last_rank_arrives() -> None:
    # First: ranks 0 and 1 wait for rank 2, one second and half a second. Second: all wait for rank 0.
    syncs = [[(1.0, 2.5), (5.0, 5.1)], [(1.5, 2.5), (4.0, 5.1)], [(2.0, 2.5), (4.5, 5.1)]]
    assert who_waited(syncs) == ((0.0, 0.0, 1.0), (1.0, 0.0, 0.5), (0.5, 0.0, 0.0))


def test_nobody_waits_longer_than_its_own_collective_takes() -> None:
    assert who_waited([[(1.0, 1.2)], [(3.0, 3.1)]]) == ((0.0, pytest.approx(0.2)), (0.0, 0.0))


def test_waiting_is_idle_time_and_the_rest_of_a_collective_is_exchange() -> None:
    early, late = recording(0, syncs=[[52.0, 53.0]]), recording(1, syncs=[[52.75, 53.0]])
    profile = analyse([late, early])  # in any order
    assert [rank.split["idle"] for rank in profile.ranks] == pytest.approx([0.75, 0.0])
    assert [rank.split["exchange"] for rank in profile.ranks] == pytest.approx([0.25, 1.0])
    assert profile.waits_caused() == pytest.approx([0.0, 0.75])
    assert profile.waiting_share == pytest.approx(0.75 / 20)
    assert profile.slowness(1) == pytest.approx(10 / 9.25)


def test_the_clock_of_another_host_is_aligned_by_the_ends_of_collectives() -> None:
    here = recording(0, syncs=[[51.0, 52.0], [54.0, 55.0], [57.0, 58.0]])
    there = recording(1, host="n2", offset=1000, syncs=[[1051.9, 1052.0], [1054.9, 1055.001], [1057.9, 1057.999]])
    assert clock_offset(here, there) == pytest.approx(1000.0)
    assert clock_offset(here, {**there, "host": "n1"}) == 0.0
    profile = analyse([here, there])
    assert profile.processes[1].begin == pytest.approx(50.0)
    assert profile.processes[1].memory[0][0] == pytest.approx(50.0)
    assert profile.waits[0][1] == pytest.approx(2.7, abs=1e-6)


def test_workers_are_the_learners_of_a3c() -> None:
    leading = {"paths": [[], ["update"], ["update", "wait"]], "counts": [0, 1, 1], "seconds": [0.0, 10.0, 9.0]}
    rank = recording(0, amounts=[0, 0, 0], events=[], **leading)
    profile = analyse([recording(0, helper="worker 0"), rank])
    assert [process.name for process in profile.processes] == ["rank 0", "rank 0, worker 0"]
    assert [learner.name for learner in profile.learners] == ["rank 0, worker 0"]
    assert profile.share("convolutions") == pytest.approx(0.4)
