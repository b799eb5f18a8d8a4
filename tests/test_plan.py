"""How many processes a run has, and the environments, threads and cores of each: cases by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlcluster.plan import (
    Peers,
    Plan,
    RankInputs,
    Rates,
    choose_split,
    forecast,
    local_placements,
    needs_rates,
    num_local_ranks,
    partition,
    peers_of,
    refuse_idle_helpers,
    resolve,
    share_of_rank,
    threads_alone,
    with_processes,
)
from rlcluster.settings.loading import load_settings
from rlcluster.settings.schema import Settings
from rlcluster.system.cores import Core, Cores
from rlcluster.system.errors import UserError
from rlcluster.system.launcher import Placement

FOUR = Cores(4, tuple(Core(k, k) for k in range(4)))
HYPER_THREADS = Cores(8, tuple(Core(k, k % 4) for k in range(8)))  # four physical cores 0..3, second threads 4..7
SIXTY_FOUR = Cores(128, tuple(Core(k, k % 64) for k in range(128)))
UNKNOWN = Cores(4, ())  # a system that does not tell the affinity
IMPALA = Rates(act=2000, learn=700)  # an actor's core feeds about three of the learner's


def settings_for(algorithm: str, mode: str, **flags: Any) -> Settings:
    return load_settings(algorithm, mode, flags={"env.name": "CartPole-v1", "env.num_envs": 8, **flags})


def plan_for(settings: Settings, cores: Cores, rates: Rates | None = None) -> Plan:
    placements = local_placements(num_local_ranks(settings, cores))
    return resolve(settings, [RankInputs(cores, placement, rates) for placement in placements])


# Threads


def test_threads_are_as_given_unless_that_would_be_more_than_32_per_core() -> None:
    assert threads_alone(None, FOUR) == 4
    assert threads_alone(None, HYPER_THREADS) == 4  # a second thread of a core adds little
    assert threads_alone(None, HYPER_THREADS._replace(allowed=3)) == 3
    assert threads_alone(None, UNKNOWN) == 4
    assert threads_alone(128, FOUR) == 128
    with pytest.raises(
        UserError, match=r"num_threads=129 but this process may use 4 cores: .*; use 4, or leave it out"
    ):
        threads_alone(129, FOUR)


# Ranks


def test_a_sequential_run_is_one_rank_with_all_cores_and_is_not_pinned() -> None:
    plan = plan_for(settings_for("ppo", "sequential"), HYPER_THREADS)
    (rank,) = plan.ranks
    assert (rank.envs, rank.threads, rank.cores, rank.helpers) == (range(8), 4, (), ())
    assert (rank.cores_allowed, rank.cores_physical) == (8, 4)
    assert (plan.world_size, plan.num_acting, plan.learner_threads, plan.num_cores) == (1, 1, 4, 4)


@pytest.mark.parametrize(
    ("mode", "given", "threads_that_pay", "expected"),
    [
        ("sequential", None, None, [64]),  # all physical cores
        ("sequential", None, 8, [8]),  # as many as a backward pass of a chunk can use
        ("sequential", "128", 8, [128]),
        ("parallel", None, 8, [8, 8]),
        ("parallel", None, 64, [32, 32]),
    ],
)
def test_no_default_has_more_threads_than_pay(
    mode: str, given: str | None, threads_that_pay: int | None, expected: list[int]
) -> None:
    """64 physical cores with two hardware threads each; two ranks in mode parallel."""
    flags = {} if given is None else {"hardware.num_threads": given}
    flags |= {"parallel.num_workers": "2"} if mode == "parallel" else {}
    settings = settings_for("ppo", mode, **flags)
    placements = local_placements(num_local_ranks(settings, SIXTY_FOUR))
    inputs = [RankInputs(SIXTY_FOUR, placement, threads_that_pay=threads_that_pay) for placement in placements]
    assert [rank.threads for rank in resolve(settings, inputs).ranks] == expected


def test_no_learner_of_impala_has_more_threads_than_pay() -> None:
    # 8 threads learn 8 * 700 samples a second, and 3 actors play 3 * 2000.
    assert choose_split(64, IMPALA, 64, threads_that_pay=8) == (5600, 3, 8)
    assert choose_split(64, IMPALA, 64, learner_threads=16, threads_that_pay=8).learner_threads == 16
    inputs = RankInputs(SIXTY_FOUR, Placement(), IMPALA, threads_that_pay=8)
    (rank,) = resolve(settings_for("impala", "parallel"), [inputs]).ranks
    assert (rank.threads, len(rank.helpers)) == (8, 3)


@pytest.mark.parametrize(
    ("network", "hidden_sizes", "given", "expected"),
    [
        ("mlp", "64,64", None, 1),
        ("mlp", "64,511", None, 1),
        ("mlp", "512,64", None, 4),
        ("impala", "64,64", None, 4),
        ("mlp", "64,64", "3", 3),
    ],
)
def test_a_small_mlp_has_one_thread_unless_told_otherwise(
    network: str, hidden_sizes: str, given: str | None, expected: int
) -> None:
    flags = {"policy.network": network, "policy.hidden_sizes": hidden_sizes}
    if given is not None:
        flags["hardware.num_threads"] = given
    settings = settings_for("ppo", "sequential", **flags)
    assert plan_for(settings, FOUR).ranks[0].threads == expected


def test_a_parallel_run_has_a_rank_for_each_physical_core() -> None:
    plan = plan_for(settings_for("ppo", "parallel"), HYPER_THREADS)
    assert [rank.envs for rank in plan.ranks] == [range(2), range(2, 4), range(4, 6), range(6, 8)]
    assert [rank.cores for rank in plan.ranks] == [(0,), (1,), (2,), (3,)]
    assert [rank.threads for rank in plan.ranks] == [1, 1, 1, 1]
    assert (plan.num_acting, plan.num_cores) == (4, 4)


def test_there_are_never_more_ranks_than_environments() -> None:
    assert num_local_ranks(settings_for("ppo", "parallel", **{"env.num_envs": 3}), HYPER_THREADS) == 3
    with pytest.raises(UserError, match=r"parallel.num_workers=9 but env.num_envs=8: every process needs an environ"):
        with_processes(settings_for("ppo", "parallel"), 9)


def test_a_rank_without_an_environment_is_refused() -> None:
    inputs = [RankInputs(FOUR, placement) for placement in local_placements(4)]
    with pytest.raises(UserError, match=r"parallel.num_workers=4 but env.num_envs=2: every process needs an environ"):
        resolve(settings_for("ppo", "distributed", **{"env.num_envs": 2}), inputs)


@pytest.mark.parametrize(("num_ranks", "threads"), [(1, 4), (2, 2), (3, 1), (4, 1), (8, 1), (20, 1)])
def test_ranks_partition_the_physical_cores_as_threads(num_ranks: int, threads: int) -> None:
    peers = Peers(0, num_ranks)
    assert share_of_rank(settings_for("ppo", "parallel"), HYPER_THREADS, peers).threads == threads
    given = settings_for("ppo", "parallel", **{"hardware.num_threads": 5})
    assert share_of_rank(given, HYPER_THREADS, peers).threads == 5


@pytest.mark.parametrize(
    ("num_ranks", "threads", "expected"),
    [
        (4, 1, [(0,), (1,), (2,), (3,)]),
        (2, 2, [(0, 1), (2, 3)]),
        (4, 2, [(0, 4), (1, 5), (2, 6), (3, 7)]),
        (2, 1, [(), ()]),  # another run may have the rest: who is free the system knows better
        (9, 1, [()] * 9),  # more than there are
    ],
)
def test_ranks_that_claim_all_cores_are_pinned_each_to_its_own(num_ranks: int, threads: int, expected: Any) -> None:
    settings = settings_for("ppo", "parallel", **{"hardware.num_threads": threads})
    peers = [Peers(rank, num_ranks) for rank in range(num_ranks)]
    assert [share_of_rank(settings, HYPER_THREADS, one).cores for one in peers] == expected
    free = settings_for("ppo", "parallel", **{"hardware.num_threads": threads, "parallel.pin_workers": "no"})
    assert [share_of_rank(free, HYPER_THREADS, one).cores for one in peers] == [()] * num_ranks


def mask(*numbers: int, allowed: int | None = None, socket_size: int = 16) -> Cores:
    """Cores without hyper-threads, `socket_size` on each socket."""
    affinity = tuple(Core(number, number, number // socket_size) for number in numbers)
    return Cores(allowed or len(numbers), affinity, len(numbers))


def plans_of(masks: list[Cores], **flags: Any) -> list[tuple[int, tuple[int, ...]]]:
    """(threads, cores) of ranks on one machine."""
    settings = settings_for("ppo", "distributed", **flags)
    ranks = zip(masks, local_placements(len(masks)), strict=True)
    return [(rank.threads, rank.cores) for rank in resolve(settings, [RankInputs(*one) for one in ranks]).ranks]


def test_ranks_whose_cores_are_their_own_use_them_all() -> None:
    """Four tasks with --cpus-per-task=8, each with its own mask."""
    masks = [mask(*range(8 * k, 8 * k + 8)) for k in range(4)]
    assert plans_of(masks) == [(8, tuple(range(8 * k, 8 * k + 8))) for k in range(4)]


def test_ranks_with_the_same_cores_partition_them_up_to_their_limit_per_task() -> None:
    """Four tasks with --cpus-per-task=8 on 32 cores, or 4 on 32, that the scheduler has not bound."""
    assert plans_of([mask(*range(32), allowed=8)] * 4) == [(8, tuple(range(8 * k, 8 * k + 8))) for k in range(4)]
    assert plans_of([mask(*range(32), allowed=4)] * 4) == [(4, ())] * 4


def test_ranks_share_a_limit_of_their_host_and_are_not_pinned_as_another_job_may_have_the_same_cores() -> None:
    """PBS without cpusets: two ranks with --cores-per-rank 2 on a host of 64 cores, and a run of four processes."""
    limited = SIXTY_FOUR._replace(allowed=4)
    assert plans_of([limited] * 2) == [(2, ())] * 2
    assert plans_of([limited] * 4) == [(1, ())] * 4
    plan = plan_for(settings_for("ppo", "parallel"), limited)
    assert [(rank.threads, rank.cores) for rank in plan.ranks] == [(1, ())] * 4
    assert plan.num_cores == 4


@pytest.mark.parametrize("algorithm", ["a3c", "impala"])
def test_helpers_are_not_pinned_where_their_host_has_more_cores_than_are_allowed(algorithm: str) -> None:
    limited = SIXTY_FOUR._replace(allowed=4)
    (rank,) = plan_for(settings_for(algorithm, "parallel"), limited, IMPALA).ranks
    assert rank.cores == ()
    assert {helper.cores for helper in rank.helpers} == {()}


def test_ranks_whose_cores_overlap_in_part_are_not_pinned() -> None:
    masks = [mask(0, 1, 2, 3), mask(2, 3, 4, 5), mask(8, 9)]
    assert plans_of(masks) == [(2, ()), (2, ()), (2, (8, 9))]
    placements = [(placement, cores) for placement, cores in zip(local_placements(3), masks, strict=True)]
    assert peers_of(placements) == [Peers(0, 2, False), Peers(1, 2, False), Peers(0, 1, True)]


@pytest.mark.parametrize(
    ("order", "num_ranks", "expected"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], 2, [(0, 2, 4, 6), (1, 3, 5, 7)]),  # even numbers are on socket 0
        ([0, 1, 2, 3, 4, 5, 7, 9], 4, [(0, 2), (1, 3), (5, 7), (4, 9)]),  # 3 and 5 cores: one rank has to span
    ],
)
def test_a_rank_spans_sockets_only_where_it_must(order: list[int], num_ranks: int, expected: Any) -> None:
    cores = Cores(len(order), tuple(Core(number, number, number % 2) for number in order))
    assert [own for _, own in plans_of([cores] * num_ranks)] == expected


def test_where_the_system_does_not_tell_its_cores_nothing_is_pinned() -> None:
    plan = plan_for(settings_for("a3c", "parallel", **{"parallel.num_workers": 2}), UNKNOWN)
    assert [helper.cores for helper in plan.ranks[0].helpers] == [(), ()]


def test_launched_ranks_on_two_machines_each_use_their_own() -> None:
    """Two ranks on a machine of four cores, one on a machine of eight hardware threads."""
    placements = [Placement(0, 3, 0, 2), Placement(1, 3, 1, 2), Placement(2, 3, 0, 1, node=1)]
    inputs = [RankInputs(*one) for one in zip([FOUR, FOUR, HYPER_THREADS], placements, strict=True)]
    plan = resolve(settings_for("ppo", "distributed"), inputs)
    assert [rank.envs for rank in plan.ranks] == [range(2), range(2, 5), range(5, 8)]
    assert [rank.threads for rank in plan.ranks] == [2, 2, 4]
    assert [rank.cores for rank in plan.ranks] == [(0, 1), (2, 3), (0, 1, 2, 3)]
    assert plan.num_cores == 8
    assert [plan.learners(rank) for rank in range(3)] == [[2], [2], [4]]
    assert [rank.cores_allowed for rank in plan.ranks] == [4, 4, 8]


def test_environments_are_partitioned_evenly_and_in_order() -> None:
    assert partition(range(10, 17), 3) == [range(10, 12), range(12, 14), range(14, 17)]


# Workers of A3C


def test_a3c_has_a_worker_with_one_thread_for_each_core_by_default() -> None:
    plan = plan_for(settings_for("a3c", "parallel"), FOUR)
    (rank,) = plan.ranks
    assert [(helper.envs, helper.threads, helper.cores) for helper in rank.helpers] == [
        (range(2), 1, (0,)),
        (range(2, 4), 1, (1,)),
        (range(4, 6), 1, (2,)),
        (range(6, 8), 1, (3,)),
    ]
    assert (plan.world_size, plan.num_acting, plan.learner_threads, plan.num_cores) == (1, 4, 1, 4)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"hardware.num_threads": 2}, [(2, ())] * 2),
        ({"hardware.num_threads": 9}, [(9, ())]),
        ({"parallel.num_workers": 3}, [(1, ())] * 3),  # fewer than the cores: not pinned
        ({"env.num_envs": 2}, [(1, ())] * 2),
    ],
)
def test_workers_of_a3c_follow_threads_environments_and_what_is_given(
    flags: dict[str, int], expected: list[tuple[int, tuple[int, ...]]]
) -> None:
    (rank,) = plan_for(settings_for("a3c", "parallel", **flags), FOUR).ranks
    assert [(helper.threads, helper.cores) for helper in rank.helpers] == expected


def test_a3c_on_several_ranks_partitions_twice() -> None:
    flags = {"parallel.num_workers": 2, "parallel.workers_per_rank": 2}
    plan = plan_for(settings_for("a3c", "distributed", **flags), FOUR)
    assert [[helper.envs for helper in rank.helpers] for rank in plan.ranks] == [
        [range(2), range(2, 4)],
        [range(4, 6), range(6, 8)],
    ]
    assert [[helper.cores for helper in rank.helpers] for rank in plan.ranks] == [[(0,), (1,)], [(2,), (3,)]]
    assert (plan.num_acting, plan.num_cores) == (4, 4)


# Actors of IMPALA


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        (1, (1, 1)),  # no other choice: they alternate
        (2, (1, 2)),  # apart: 700; together: 0.95 * 2 / (1/2000 + 1/700) = 985
        (4, (1, 3)),  # apart: min(2000, 2100); together: 1970
        (16, (4, 12)),  # apart: min(8000, 8400); together: 7881
    ],
)
def test_the_fastest_split_is_chosen(cores: int, expected: tuple[int, int]) -> None:
    assert choose_split(cores, IMPALA, most_actors=64)[1:] == expected


def test_what_is_given_stays() -> None:
    assert choose_split(8, IMPALA, 64, num_actors=3)[1:] == (3, 8)  # apart: min(6000, 5 * 700); together: 3941
    assert choose_split(8, IMPALA, 64, learner_threads=2)[1:] == (1, 2)  # one actor feeds them


def test_there_are_never_more_actors_than_environments() -> None:
    assert choose_split(8, Rates(act=10, learn=1000), most_actors=2).num_actors == 2


def test_actors_and_learner_have_cores_of_their_own_where_these_are_just_enough() -> None:
    plan = plan_for(settings_for("impala", "parallel"), FOUR, IMPALA)
    (rank,) = plan.ranks
    assert (rank.threads, rank.torch_threads, rank.cores) == (3, 3, (0, 1, 2))
    assert [(helper.envs, helper.threads, helper.cores) for helper in rank.helpers] == [(range(8), 1, (3,))]
    assert (plan.num_acting, plan.learner_threads, plan.num_cores) == (1, 3, 4)


def test_where_they_share_all_cores_no_actor_is_pinned() -> None:
    two = Cores(2, (Core(0, 0), Core(1, 1)))
    (rank,) = plan_for(settings_for("impala", "parallel"), two, IMPALA).ranks
    assert (rank.threads, [helper.cores for helper in rank.helpers]) == (2, [()])


@pytest.mark.parametrize(
    ("actors", "threads", "deterministic", "expected"),
    [
        (1, 3, False, 3),  # a core for each
        (1, 4, False, 3),
        (2, 4, False, 2),
        (6, 4, False, 1),
        (2, 4, True, 4),  # repeatable: nothing of the machine decides
    ],
)
def test_torch_leaves_the_cores_of_the_actors_alone(
    actors: int, threads: int, deterministic: bool, expected: int
) -> None:
    flags = {"parallel.num_workers": actors, "hardware.num_threads": threads, "parallel.deterministic": deterministic}
    settings = settings_for("impala", "parallel", **flags)
    (rank,) = plan_for(settings, FOUR).ranks
    assert rank.torch_threads == expected
    (without_kernels,) = resolve(settings, [RankInputs(FOUR, Placement(), has_kernels=False)]).ranks
    assert without_kernels.torch_threads == threads  # it has no other threads


def test_cores_of_a_run_are_never_more_than_its_machines_may_use() -> None:
    flags = {"parallel.num_workers": 3, "hardware.num_threads": 4}
    assert plan_for(settings_for("impala", "parallel", **flags), FOUR).num_cores == 4
    flags = {"parallel.num_workers": 2, "parallel.workers_per_rank": 1, "hardware.num_threads": 2}
    distributed = settings_for("impala", "distributed", **flags)
    assert plan_for(distributed, FOUR).num_cores == 4  # both ranks are on one machine
    placements = [Placement(rank, 2, 0, 1, node=rank) for rank in range(2)]
    apart = resolve(distributed, [RankInputs(FOUR, placement) for placement in placements])
    assert apart.num_cores == 2 * (2 + 1)


def test_only_an_open_split_between_actors_and_learner_needs_rates() -> None:
    both = {"parallel.num_workers": 1, "hardware.num_threads": 1}
    assert needs_rates(settings_for("impala", "parallel", **{"parallel.num_workers": 1}))
    assert needs_rates(settings_for("impala", "distributed", **both))
    assert not needs_rates(settings_for("impala", "parallel", **both))
    assert not needs_rates(settings_for("impala", "sequential"))
    assert not needs_rates(settings_for("a3c", "parallel"))
    assert forecast(settings_for("impala", "parallel"), FOUR) is None
    known = forecast(settings_for("a3c", "parallel"), FOUR)
    assert known is not None
    assert known.num_cores == 4


def test_more_helpers_than_environments_are_refused_with_both_numbers() -> None:
    settings = settings_for("impala", "distributed", **{"parallel.workers_per_rank": 5})
    with pytest.raises(UserError, match=r"parallel.workers_per_rank=5 but a rank has 4 of env.num_envs=8"):
        refuse_idle_helpers(settings, range(4))
    refuse_idle_helpers(settings, range(5))


# On disk


def test_a_plan_survives_json() -> None:
    plan = plan_for(settings_for("impala", "parallel"), FOUR, IMPALA)
    data = json.loads(json.dumps(plan.to_dict()))
    assert Plan.from_dict(data) == plan
    assert (data["world_size"], data["num_acting"], data["learner_threads"], data["num_cores"]) == (1, 1, 3, 4)


NO_WORKERS = {"envs": [0, 8], "threads": 1, "torch_threads": 1, "cores": [], "cores_allowed": 4, "helpers": []}


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"algorithm": "ppo", "mode": "sequential", "ranks": []},
        {"algorithm": "ppo", "mode": "sequential", "ranks": [{}]},
        {"algorithm": "ppo", "mode": "sequential", "ranks": None},
        {"algorithm": "a3c", "mode": "parallel", "ranks": [NO_WORKERS]},
        {"algorithm": "other", "mode": "parallel", "ranks": [NO_WORKERS]},
    ],
)
def test_data_that_is_not_a_plan_is_an_error(data: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Plan.from_dict(data)
