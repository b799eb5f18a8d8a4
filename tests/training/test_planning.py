"""Ranks agree on one plan, though their machines differ."""

from __future__ import annotations

from typing import Any

import pytest

from rlcluster.exchange.ranks import Ranks
from rlcluster.plan import Plan
from rlcluster.settings.loading import load_settings
from rlcluster.system import cores
from rlcluster.system.cores import Core, Cores
from rlcluster.system.errors import UserError
from rlcluster.system.launcher import Placement
from rlcluster.training.introduction import cores_line
from rlcluster.training.planning import agree_on_plan, measure
from rlcluster.training.train import _warn_of_too_many_threads

from conftest import on_ranks

SMALL, LARGE = (Cores(count, tuple(Core(k, k) for k in range(count))) for count in (2, 64))


def plan_and_warning(ranks: Ranks, machines: list[Cores]) -> tuple[dict[str, Any], list[str]]:
    """One rank per machine."""
    cores.observe = lambda: machines[ranks.rank]
    ranks.placement = Placement(ranks.rank, ranks.world_size, 0, 1, node=ranks.rank)
    settings = load_settings("ppo", "distributed", flags={"env.name": "CartPole-v1", "env.num_envs": 4})
    plan, warnings = agree_on_plan(settings, ranks), []
    from rlcluster.training import train

    train.warn = warnings.append
    _warn_of_too_many_threads(plan, ranks.placement)
    return plan.to_dict(), warnings


@pytest.mark.parametrize("machines", [[SMALL, LARGE], [LARGE, SMALL]])
def test_every_rank_has_the_same_plan_with_the_threads_of_its_own_machine(machines: list[Cores]) -> None:
    results = on_ranks(2, plan_and_warning, machines)
    (one, no_warning), (other, none_either) = results
    assert one == other
    assert [rank.threads for rank in Plan.from_dict(one).ranks] == [machine.allowed for machine in machines]
    assert (no_warning, none_either) == ([], [])


def test_more_threads_than_cores_are_warned_of_once_per_machine() -> None:
    warnings: list[str] = []
    settings = load_settings("ppo", "sequential", flags={"env.name": "CartPole-v1", "hardware.num_threads": 3})
    from rlcluster.training import train

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cores, "observe", lambda: SMALL)
        patch.setattr(train, "warn", warnings.append)
        plan = agree_on_plan(settings, Ranks())
        _warn_of_too_many_threads(plan, Placement())
        _warn_of_too_many_threads(plan, Placement(local_rank=1, local_world_size=2))
    assert warnings == ["1 process x 3 threads share 2 cores: they alternate; slower than 2 threads in all"]


def test_rates_are_measured_whatever_the_minibatches_of_the_run() -> None:
    """128 minibatches of one sample: more than the shortened rollout has samples."""
    flags = {"env.name": "CartPole-v1", "env.num_envs": 1, "training.n_steps": 128, "training.n_minibatches": 128}
    rates = measure(load_settings("impala", "parallel", flags=flags), num_envs=1)
    assert rates.act > 0
    assert rates.learn > 0


# Introductions


def introduce_with(ranks: Ranks, seeds: list[int], versions: list[str], resume: bool) -> str:
    from rlcluster.training import introduction

    introduction.code_version = lambda: versions[ranks.rank]
    ranks.placement = ranks.placement._replace(node=ranks.rank, host=f"n{ranks.rank}")
    settings = load_settings("ppo", "distributed", flags={"env.name": "CartPole-v1", "env.seed": seeds[ranks.rank]})
    try:
        return f"seed {introduction.introduce(settings, resume, ranks).settings.env.seed}"
    except UserError as error:
        return str(error)


def test_ranks_with_other_settings_or_other_code_are_found_on_all_ranks() -> None:
    other = "rank 1 on n1 was started with other settings: env.seed=8 but rank 0 has 7; use one command for all"
    assert on_ranks(2, introduce_with, [7, 8], ["a", "a"], False) == [other] * 2
    assert on_ranks(2, introduce_with, [7, 8], ["a", "a"], True) == ["seed 7"] * 2, "rank 0 alone reads the run"
    code = "rank 1 on n1 runs b, but rank 0 on n0 runs a; install the same version on all machines"
    assert on_ranks(2, introduce_with, [7, 7], ["a", "b"], False) == [code] * 2


def test_a_rank_says_its_cores_and_what_is_unfavourable_about_them() -> None:
    rank = Placement(3, 4, 1, 2, node=1, host="n2")
    assert cores_line(rank, Cores(8, tuple(Core(k, k) for k in range(8, 16))), ()) == "rank 3 on n2: cores 8-15"
    pinned = cores_line(rank, SMALL, (1,))
    assert pinned == "rank 3 on n2: cores 1"
    assert "cores 0,2; some are hyper-threads" in cores_line(rank, Cores(2, (Core(0, 0), Core(2, 0))), ())
    assert "cores 0,2; they span sockets" in cores_line(rank, Cores(2, (Core(0, 0), Core(2, 2, 1))), ())
