"""The memory that a run needs: sizes by hand, and refusals before anything is allocated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlcluster import environments
from rlcluster.exchange.ranks import Ranks
from rlcluster.plan import RankInputs, local_placements, resolve
from rlcluster.settings.loading import load_settings
from rlcluster.system.cores import Core, Cores
from rlcluster.system.errors import UserError, explained
from rlcluster.system.processes import RankFailedError
from rlcluster.training.memory import Need, need, refuse, refuse_too_many_processes

from conftest import on_ranks, rlcluster

TWO = Cores(2, tuple(Core(k, k) for k in range(2)))
COINRUN_OBSERVATION = 64 * 64 * 3
# CartPole's mlp: two towers 4-64-64, a head for 2 actions and one for the value.
CARTPOLE_PARAMETERS = 2 * ((4 * 64 + 64) + (64 * 64 + 64)) + (64 * 2 + 2) + (64 + 1)


def need_of(algorithm: str, mode: str, env: str, **flags: Any) -> Need:
    given = {"env.name": env, "env.num_envs": 4, "training.n_steps": 16, "hardware.num_threads": 1, **flags}
    settings = load_settings(algorithm, mode, flags=given)
    plan = resolve(settings, [RankInputs(TWO, placement) for placement in local_placements(settings.given_ranks or 1)])
    return need(settings, plan.ranks[0], environments.describe(settings.env))


def rollout_bytes(num_envs: int) -> int:
    """16 steps of coinrun: actions, four columns of floats and the ends of episodes; environments and versions, each
    rounded up to a cache line.
    """
    steps = 16 * num_envs
    return (steps + num_envs) * COINRUN_OBSERVATION + steps * 8 + 4 * steps * 4 + max(64, steps) + 64 + 64


def test_a_sequential_run_holds_one_rollout_and_one_engine_per_environment() -> None:
    own = need_of("ppo", "sequential", "coinrun")
    assert own.rollouts == rollout_bytes(4)
    assert own.environments == 4 * 120_000
    assert own.processes == 0


def test_the_network_is_counted_with_its_gradients_and_the_statistics_of_the_optimiser() -> None:
    assert need_of("ppo", "sequential", "CartPole-v1").network == 4 * 4 * CARTPOLE_PARAMETERS  # adam has two
    assert need_of("a2c", "sequential", "CartPole-v1").network == 4 * 3 * CARTPOLE_PARAMETERS


def test_actors_hold_their_slots_and_the_learner_a_copy_of_their_observations() -> None:
    own = need_of("impala", "parallel", "coinrun", **{"parallel.num_workers": 2})
    assert own.rollouts == 2 * 2 * rollout_bytes(2) + 16 * 4 * COINRUN_OBSERVATION
    assert own.processes == 2 * 200_000_000


def test_rollouts_on_disk_take_no_memory(tmp_path: Path) -> None:
    assert need_of("ppo", "sequential", "coinrun", **{"hardware.rollout_dir": str(tmp_path)}).rollouts == 0


@pytest.mark.parametrize(
    ("purpose", "remedy"),
    [
        (
            "rollouts",
            r"fewer environments \(--num-envs\) or steps \(--n-steps\), or rollouts on disk \(--rollout-dir\)",
        ),
        ("environments", r"fewer environments \(--num-envs\)"),
        ("network", r"a smaller network \(--network, --hidden-sizes\)"),
        ("processes", r"fewer processes \(--num-workers\)"),
    ],
)
def test_a_run_that_does_not_fit_is_refused_with_both_numbers_and_the_remedy(purpose: str, remedy: str) -> None:
    needed = Need(*[2**28] * 4)._replace(**{purpose: 10 * 2**30})
    refuse(needed, 10.75)
    reason = rf"needs at least 10\.8 GB of memory \(10\.0 GB for its {purpose}\), but 10\.7 GB are available"
    with pytest.raises(UserError, match=f"{reason}; use {remedy}$"):
        refuse(needed, 10.74)


def test_more_processes_than_fit_are_refused_before_one_is_started() -> None:
    with pytest.raises(UserError, match=r"needs at least 186,264\.5 GB"):
        refuse_too_many_processes(10**6)


@pytest.mark.parametrize(
    ("flags", "purpose"),
    [
        (["--env", "coinrun", "--num-envs", "1048576", "--rollout-dir", "."], "environments"),
        (["--env", "coinrun", "--num-envs", "1048576", "--mode", "parallel", "--num-workers", "1"], "rollouts"),
        (["--env", "CartPole-v1", "--hidden-sizes", "1000000,1000000"], "network"),
        (["--env", "CartPole-v1", "--num-envs", "10000", "--mode", "parallel", "--num-workers", "10000"], "processes"),
    ],
)
def test_a_run_that_cannot_fit_is_refused_in_one_line_and_leaves_nothing(
    tmp_path: Path, flags: list[str], purpose: str
) -> None:
    result = rlcluster("train", "ppo", *flags, "--num-threads", "1", "--output-dir", "run", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert f"GB for its {purpose}), but " in result.stderr
    assert list(tmp_path.iterdir()) == []


def allocate(ranks: Ranks) -> None:
    torch.empty(2**60, dtype=torch.uint8)


def test_memory_that_the_system_refuses_ends_a_rank_with_one_line() -> None:
    with pytest.raises(RankFailedError, match=r"^rank 0 failed: out of memory \(.*\); free some, or .*$") as caught:
        on_ranks(1, allocate)
    assert not caught.value.may_pass


def test_an_array_or_tensor_that_does_not_fit_is_a_shortage_of_memory_and_a_bug_is_none() -> None:
    for fill in (lambda: np.zeros(2**60, np.uint8), lambda: torch.empty(2**60, dtype=torch.uint8)):
        with pytest.raises((MemoryError, RuntimeError)) as caught:
            fill()
        assert "--rollout-dir" in str(explained(caught.value))
    assert explained(RuntimeError("a bug")) is None
