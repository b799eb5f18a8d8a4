"""The first sentence names what the figures support."""

from __future__ import annotations

from typing import Any

import pytest
from test_analysis import recording

from rlcluster.networks.operations import LayerWork
from rlcluster.plan import HelperPlan, Plan, RankPlan
from rlcluster.profiling.analysis import analyse
from rlcluster.profiling.findings import Findings, RunFacts
from rlcluster.profiling.roofline import Peaks
from rlcluster.profiling.summary import summary_text
from rlcluster.profiling.trace import trace_events
from rlcluster.settings.loading import load_settings

CONVOLUTION = LayerWork("3 → 16 at 64×64", True, 2e8, 4e8, 1e6, 2e6)
ONE_CORE = RankPlan(range(8), 1, 1, (), 1)
LINEAR = LayerWork("linear 4 → 2", False, 1e3, 2e3, 1e2, 2e2)


def process(rank: int, shares: dict[str, float], **changes: Any) -> dict[str, Any]:
    """100 s with these seconds in phases of its update; `linear` has 300 samples in a forward pass."""
    paths = [[], ["update"], ["update", "learn"], ["update", "forward"], ["update", "forward", "linear"]]
    seconds = [0.0, 100.0, 0.0, 0.0, 0.0]
    for name, value in shares.items():
        paths.append(["update", name])
        seconds.append(value)
    amounts = [0.0, 0, 0, 0, 600, *([0.0] * len(shares))]
    changes = {"begin": 0.0, "end": 100.0, "memory": [[0.0, 0.5, 0.0], [90.0, 0.7, 0.1]], **changes}
    counts = [0, *([1] * (len(paths) - 1))]
    return recording(rank, paths=paths, seconds=seconds, counts=counts, amounts=amounts, events=[], **changes)


def findings(
    recordings: list[dict[str, Any]],
    mode: str = "parallel",
    rank: RankPlan = ONE_CORE,
    works: tuple[LayerWork, ...] = (CONVOLUTION,),
    **changes: Any,
) -> Findings:
    world_size = sum(one["helper"] is None for one in recordings)
    facts = RunFacts(
        settings=load_settings("impala" if rank.helpers else "ppo", mode),
        plan=Plan("impala" if rank.helpers else "ppo", mode, (rank,) * world_size),
        updates=10,
        peaks=[Peaks(1e9, 1e9, 1e9)] * world_size,
        background_load=0.0,
        processor="a processor",
        kernels="avx512",
    )
    return Findings(analyse(recordings), facts._replace(**changes), works)


def test_a_network_that_takes_all_the_time_leaves_nothing_to_gain() -> None:
    found = findings([process(0, {"convolutions": 84.0, "simulator": 5.0})])
    # 300 forward passes in 84 s: 300 * 2e8 / 84 = 0.714e9 of 1e9
    assert found.sentence() == (
        "84% of the time is the network, at 71% of what these cores can do: nothing to gain by settings."
    )


def test_winograd_can_beat_what_direct_convolution_could_do() -> None:
    found = findings([process(0, {"convolutions": 84.0})], peaks=[Peaks(0.5e9, 1e9, 1e9)])
    assert "the network, 1.4 times as fast as direct convolution could be on these cores: nothing" in found.sentence()


def test_other_programs_on_the_cores_are_mentioned() -> None:
    found = findings([process(0, {"convolutions": 84.0})], background_load=0.4)
    assert found.sentence().endswith("Other programs took 40% of the cores meanwhile.")


def test_the_rank_that_others_wait_for_is_named_with_its_host() -> None:
    early = process(0, {"convolutions": 50.0, "sync": 40.0}, syncs=[[50.0, 90.0]])
    late = process(1, {"convolutions": 89.0, "sync": 1.0}, syncs=[[89.0, 90.0]], host="n1")
    text = findings([early, late]).sentence()
    assert text.startswith("20% of the time is waiting for rank 1 (n1, 1.6 times slower than the others)")


def test_ranks_that_wait_for_each_other_evenly_are_not_blamed() -> None:
    starts = [(10, 140, 210), (40, 110, 225), (25, 125, 240)]  # each rank is the last one once
    recordings = [
        process(rank, {"sync": 60.0}, syncs=[[start, 300.0] for start in own]) for rank, own in enumerate(starts)
    ]
    assert "waiting of ranks for each other, for no one in particular" in findings(recordings).sentence()


def test_no_rank_is_blamed_that_is_as_fast_as_the_others() -> None:
    """It arrives last, because it began last: both work for 80 of 100 s."""
    early = process(0, {"convolutions": 80.0, "sync": 20.0}, syncs=[[80.0, 100.0]])
    late = process(1, {"convolutions": 80.0, "wait": 20.0}, syncs=[[100.0, 100.0]])
    assert findings([early, late]).sentence() == (
        "10% of the time is waiting of ranks for each other, for no one in particular: fewer ranks with more threads "
        "each (--num-workers, --num-threads) wait less."
    )


def test_the_exchange_of_gradients_is_named_with_the_setting_for_slow_networks() -> None:
    recordings = [
        process(rank, {"sync": 30.0, "convolutions": 60.0}, host=f"n{rank}", syncs=[[10.0, 40.0]]) for rank in range(2)
    ]
    text = findings(recordings, mode="distributed").sentence()
    assert text == "30% of the time is the exchange of gradients between ranks: --wire-dtype bfloat16 halves the bytes."


def test_a_learner_that_waits_for_its_actors_needs_more_of_them() -> None:
    rank = RankPlan(range(8), 2, 2, (), 2, (HelperPlan(range(8), 1, ()),) * 2)
    text = findings([process(0, {"wait": 30.0, "convolutions": 60.0})], rank=rank).sentence()
    assert text.startswith("The learner waits 30% of its time for its 2 actors: --num-workers 3")


@pytest.mark.parametrize(
    ("threads", "expected"),
    [
        (2, "actor: fewer threads for the learner (--num-threads) leave more of the cores to acting."),
        (1, "actor: more environments (--num-envs) allow more actors, but change the algorithm."),
    ],
)
def test_no_more_actors_than_environments_are_advised(threads: int, expected: str) -> None:
    rank = RankPlan(range(1), threads, threads, (), 2, (HelperPlan(range(1), 1, ()),))
    text = findings([process(0, {"wait": 30.0, "convolutions": 60.0})], rank=rank).sentence()
    assert text.removeprefix("The learner waits 30% of its time for its 1 ") == expected


def test_a_learner_whose_actors_wait_needs_more_threads() -> None:
    actor = HelperPlan(range(8), 1, ())
    waiting = recording(
        0,
        helper="actor 0",
        paths=[[], ["wait"], ["rollout"]],
        seconds=[0.0, 60.0, 40.0],
        counts=[0, 1, 1],
        amounts=[0.0, 0.0, 0.0],
        **{"events": [], "begin": 0.0, "end": 100.0, "memory": []},
    )
    busy = process(0, {"convolutions": 90.0})
    text = findings([busy, waiting], rank=RankPlan(range(8), 1, 1, (), 2, (actor,))).sentence()
    assert text == (
        "The learner decides the speed: 1 actor waited 60% of the time, so --num-threads 2 lets the learner use those "
        "cores too."
    )
    on_all_cores = findings([busy, waiting], rank=RankPlan(range(8), 2, 2, (), 2, (actor,))).sentence()
    assert on_all_cores.endswith("nothing to gain by settings.")


def test_cores_that_nobody_uses_are_named() -> None:
    rank = RankPlan(range(8), 1, 1, (), 4)
    text = findings([process(0, {"convolutions": 90.0})], mode="sequential", rank=rank).sentence()
    assert text == "1 of 4 cores are used: --mode parallel uses all."


def test_a_host_whose_ranks_leave_cores_unused_is_named() -> None:
    rank = RankPlan(range(8), 1, 1, (), 16)
    recordings = [process(number, {"simulator": 90.0}, host=f"n{number}") for number in range(2)]
    assert findings(recordings, "distributed", rank).sentence() == (
        "1 of 16 cores of n0 are used: a higher --num-threads, or more ranks on each host, use all."
    )


def test_ranks_that_share_a_host_may_use_all_its_cores_together() -> None:
    rank = RankPlan(range(8), 4, 4, (), 16, num_peers=4)
    text = findings([process(number, {"simulator": 90.0}) for number in range(4)], "distributed", rank).sentence()
    assert text.startswith("The simulator takes 90%, on 4 threads per rank: all cores are busy")


def test_second_hardware_threads_are_not_unused_cores() -> None:
    rank = RankPlan(range(8), 4, 4, (), 8, cores_physical=4)
    text = findings([process(0, {"convolutions": 90.0})], mode="sequential", rank=rank).sentence()
    assert text.endswith("nothing to gain by settings.")


def test_small_layers_on_many_threads_are_told_to_use_one() -> None:
    rank = RankPlan(range(8), 2, 2, (), 2)
    text = findings([process(0, {"convolutions": 90.0})], "sequential", rank, works=(LINEAR,)).sentence()
    assert "its layers are too small to be shared by 2 threads, use --num-threads 1" in text


def test_small_operations_are_named_by_the_largest() -> None:
    text = findings([process(0, {"sample": 40.0, "copy": 10.0, "convolutions": 50.0})]).sentence()
    assert text.startswith("50% of the time are small operations around the network, above all sample (40%)")


def test_the_figures_are_flat_numbers_with_units_and_the_console_shows_the_sentence() -> None:
    found = findings([process(0, {"convolutions": 84.0, "simulator": 5.0})])
    figures = found.figures()
    assert all(value is None or isinstance(value, str | int | float) for value in figures.values())
    assert figures["steps_per_second"] == pytest.approx(10 * 32 * 128 / 100)
    assert figures["phase_simulator_seconds_per_update"] == pytest.approx(0.5)
    assert figures["memory_gb_peak"] == pytest.approx(0.7)
    assert summary_text(found).startswith(found.sentence())


def test_the_trace_has_a_track_per_process_and_times_since_the_first_began() -> None:
    one = recording(0)
    other = {**recording(1), "begin": 51.0, "end": 61.0}
    events = trace_events(analyse([one, other]))["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["rank 0 (n1)", "rank 1 (n1)"]
    phases = [(event["pid"], event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert phases == [(0, "update", 0.0, 9.5e6), (1, "update", 1e6, 9.5e6)]
