"""Ranks agree on one plan, though their machines differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlcluster.exchange.ranks import Ranks
from rlcluster.plan import Plan
from rlcluster.settings.loading import load_settings
from rlcluster.system import cores
from rlcluster.system.cores import Core, Cores
from rlcluster.system.errors import UserError
from rlcluster.system.launcher import Placement
from rlcluster.system.slurm_step import tasks_per_node
from rlcluster.training.introduction import PACKAGE, Convolutions, code_version, cores_line, introduce
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


class Launched(Ranks):
    """The ranks of a launcher as rank 0 sees them, with the same cores, code and settings."""

    def __init__(self, placements: list[Placement]) -> None:
        super().__init__()
        self.placement, self._placements = placements[0], placements

    def gather_bytes(self, parts: Sequence[bytes]) -> list[bytes]:
        _, *rest = json.loads(parts[0])
        return [json.dumps([placement, *rest]).encode() for placement in self._placements]


@pytest.mark.parametrize(
    ("layout", "expected"), [("2(x3),1", 4), ("2,1", 2), ("1,2(x3)", 4), ("3", 1), ("1(x2)", 2), ("1", 1)]
)
def test_machines_are_counted_by_the_ranks_that_are_on_them(layout: str, expected: int) -> None:
    counts = tasks_per_node(layout)
    nodes = [(node, local) for node, count in enumerate(counts) for local in range(count)]
    placements = [
        Placement(rank, sum(counts), local, counts[node], node=node, host=f"n{node}")
        for rank, (node, local) in enumerate(nodes)
    ]
    settings = load_settings("ppo", "distributed", flags={"env.name": "CartPole-v1"})
    assert introduce(settings, False, Launched(placements)).num_nodes == expected


@pytest.mark.parametrize("name", ["training/train.py", "native/thread_pool.cpp", "native/impala_winograd.hpp"])
def test_the_code_version_changes_with_every_kind_of_source(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.parent.mkdir()
    file.write_text("one")
    before = code_version(tmp_path)
    file.write_text("two")
    assert code_version(tmp_path) != before


def test_no_other_kind_of_source_is_in_the_package() -> None:
    assert {file.suffix for file in (PACKAGE / "networks" / "kernels" / "native").iterdir()} == {".cpp", ".hpp"}


def compare_kernels_with(ranks: Ranks, own: list[Convolutions]) -> tuple[str, list[str]]:
    """Each rank on a machine of its own: (error, warnings)."""
    from rlcluster.training import introduction

    warnings: list[str] = []
    introduction.warn = warnings.append
    ranks.placement = ranks.placement._replace(node=ranks.rank, host=f"n{ranks.rank}")
    try:
        introduction.compare_convolutions(own[ranks.rank], ranks)
    except UserError as error:
        return str(error), warnings
    return "", warnings


def test_ranks_with_and_without_kernels_or_with_another_library_are_refused_on_all_ranks() -> None:
    ours, torchs = Convolutions("avx2", "aa"), Convolutions("torch", "")
    mixed = (
        "rank 1 on n1 has kernels=torch, but rank 0 on n0 has kernels=avx2; compile the kernels on all machines (make "
        "clean setup), or use --kernels torch"
    )
    assert on_ranks(2, compare_kernels_with, [ours, torchs]) == [(mixed, [])] * 2
    library = (
        "rank 1 on n1 has another libkernels.so (bb) than rank 0 on n0 (aa): other sources or another compiler; "
        "install the same file on all machines, or use --kernels torch"
    )
    assert on_ranks(2, compare_kernels_with, [ours, Convolutions("avx2", "bb")]) == [(library, [])] * 2


def test_another_instruction_set_is_warned_of_once() -> None:
    warning = (
        "rank 1 on n1 has kernels=avx2, but rank 0 on n0 has kernels=avx512: their results differ by rounding, so "
        "the run is repeatable to the bit only on the same machines in the same order"
    )
    own = [Convolutions(name, "aa") for name in ("avx512", "avx2")]
    assert on_ranks(2, compare_kernels_with, own) == [("", [warning]), ("", [])]
    assert on_ranks(2, compare_kernels_with, [Convolutions("torch", "")] * 2) == [("", [])] * 2


def test_a_rank_says_its_cores_and_what_is_unfavourable_about_them() -> None:
    rank = Placement(3, 4, 1, 2, node=1, host="n2")
    assert cores_line(rank, Cores(8, tuple(Core(k, k) for k in range(8, 16))), ()) == "rank 3 on n2: cores 8-15"
    pinned = cores_line(rank, SMALL, (1,))
    assert pinned == "rank 3 on n2: cores 1"
    assert "cores 0,2; some are hyper-threads" in cores_line(rank, Cores(2, (Core(0, 0), Core(2, 0))), ())
    assert "cores 0,2; they span sockets" in cores_line(rank, Cores(2, (Core(0, 0), Core(2, 2, 1))), ())
    assert cores_line(rank, Cores(1, (Core(0, 0), Core(2, 2, 1))), ()) == "rank 3 on n2: at most 1 of cores 0,2"
