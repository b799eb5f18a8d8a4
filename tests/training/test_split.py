"""How cores are shared out between actors and the learner: cases by hand."""

from __future__ import annotations

import pytest

from rlcluster.exchange.ranks import deal
from rlcluster.settings.loading import load_settings
from rlcluster.system import machine
from rlcluster.system.errors import UserError
from rlcluster.training.split import Rates, Split, choose, refuse_idle_workers, split_cores

IMPALA = Rates(act=2000, learn=700)  # an actor's core feeds about three of the learner's


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        (1, (1, 1)),  # no other choice: they take turns
        (2, (1, 2)),  # apart: 700; together: 0.95 * 2 / (1/2000 + 1/700) = 985
        (4, (1, 3)),  # apart: min(2000, 2100); together: 1970
        (16, (4, 12)),  # apart: min(8000, 8400); together: 7881
    ],
)
def test_the_fastest_split_is_chosen(cores: int, expected: tuple[int, int]) -> None:
    assert choose(cores, IMPALA, most_actors=64)[1:] == expected


def test_what_is_given_stays() -> None:
    assert choose(8, IMPALA, 64, num_actors=3)[1:] == (3, 8)  # apart: min(6000, 5 * 700); together: 3941
    assert choose(8, IMPALA, 64, learner_threads=2)[1:] == (1, 2)  # one actor feeds them


def test_there_are_never_more_actors_than_environments() -> None:
    assert choose(8, Rates(act=10, learn=1000), most_actors=2).num_actors == 2


def test_more_workers_than_environments_are_refused_with_both_numbers() -> None:
    settings = load_settings(
        "impala",
        "distributed",
        flags={"env.name": "CartPole-v1", "env.num_envs": "8", "parallel.workers_per_rank": "5"},
    )
    with pytest.raises(UserError, match=r"parallel.workers_per_rank=5 but a rank has 4 of env.num_envs=8"):
        refuse_idle_workers(settings, 4)
    refuse_idle_workers(settings, 5)


def test_environments_are_dealt_evenly_and_in_order() -> None:
    assert deal(range(10, 17), 3) == [range(10, 12), range(12, 14), range(14, 17)]


def test_cores_of_their_own_are_disjoint_and_shared_ones_are_none() -> None:
    apart = Split(num_actors=2, learner_threads=3, torch_threads=3, cores=[0, 1, 2, 3, 4])
    assert (list(apart.learner_cores()), [list(cores) for cores in apart.actor_cores()]) == ([0, 1, 2], [[3], [4]])
    shared = Split(num_actors=2, learner_threads=4, torch_threads=2, cores=[])
    assert (list(shared.learner_cores()), [list(cores) for cores in shared.actor_cores()]) == ([], [[], []])


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
    monkeypatch: pytest.MonkeyPatch, actors: int, threads: int, deterministic: bool, expected: int
) -> None:
    monkeypatch.setattr(machine, "default_workers", lambda: 4)
    flags = {"env.name": "CartPole-v1", "parallel.num_workers": actors, "hardware.num_threads": threads}
    settings = load_settings("impala", "parallel", flags={**flags, "parallel.deterministic": deterministic})
    assert split_cores(settings, 8, 1).torch_threads == expected
