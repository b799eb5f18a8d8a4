"""Ranks agree on one plan, though their machines differ."""

from __future__ import annotations

from typing import Any

import pytest

from rlcluster.exchange.ranks import Ranks
from rlcluster.plan import Plan
from rlcluster.settings.loading import load_settings
from rlcluster.system import cores
from rlcluster.system.cores import Core, Cores
from rlcluster.system.launcher import Placement
from rlcluster.training.planning import agree_on_plan, measure
from rlcluster.training.train import _warn_of_too_many_threads

from conftest import on_ranks

SMALL, LARGE = (Cores(count, tuple(Core(k, k) for k in range(count))) for count in (2, 64))


def plan_and_warning(ranks: Ranks, machines: list[Cores]) -> tuple[dict[str, Any], list[str]]:
    """One rank per machine."""
    cores.observe = lambda: machines[ranks.rank]
    ranks.placement = Placement(ranks.rank, ranks.world_size, 0, 1)
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
