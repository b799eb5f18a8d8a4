"""`rlcluster plan` on real runs: the workload of settings, a forecast from a run, and its outcome."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlcluster.experiments.planning import refuse_other_work, workload_of
from rlcluster.experiments.predictions import track_record
from rlcluster.runs.reader import read_run
from rlcluster.settings.loading import load_settings
from rlcluster.system.errors import UserError

from conftest import CARTPOLE, flags, rlcluster, train, write_run


def test_the_workload_of_ppo_is_one_exchange_per_minibatch() -> None:
    settings = load_settings(
        "ppo", "parallel", None, {"env.name": "CartPole-v1", "training.n_epochs": "3", "training.n_minibatches": "4"}
    )
    work = workload_of(settings, None)
    # Two towers of 4 -> 64 -> 64, and heads of 2 and 1; the loss travels with the gradients.
    parameters = 2 * (4 * 64 + 64 + 64 * 64 + 64) + (64 * 2 + 2) + (64 + 1)
    assert work.exchanged_bytes == 4 * (parameters + 1)
    assert work.num_exchanges == 12
    assert work.steps_per_update == 32 * 128
    assert work.total_steps == 25_000_000


def test_averaged_parameters_travel_every_sync_updates() -> None:
    given = {"env.name": "CartPole-v1", "parallel.sync_strategy": "parameters", "parallel.sync_updates": "6"}
    assert workload_of(load_settings("ppo", "parallel", None, given), None).num_exchanges == pytest.approx(3 / 6)


@pytest.mark.slow
def test_a_forecast_from_a_run_is_written_and_a_later_run_records_its_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options = {**CARTPOLE, "--mode": "parallel", "--num-workers": 2}
    for name in ("before", "after"):
        result = train("ppo", tmp_path / name, {**options, "--total-updates": 6})
        assert result.returncode == 0, result.stderr
        if name == "before":
            assert not (tmp_path / name / "prediction.json").exists()
            file = tmp_path / "forecast.json"
            planned = rlcluster(
                *("plan", "ppo", *flags(options), "--run", tmp_path / name, "--nodes", "1,2", "--json", file)
            )
            assert planned.returncode == 0, planned.stderr
            assert "do not pay" in planned.stdout
            assert "between nodes: 10GbE, 40 µs, 1.10 GB/s" in planned.stdout
            other = rlcluster("plan", "a2c", *flags(options), "--run", tmp_path / name)
            assert other.returncode == 2
            assert "it has algorithm=ppo instead of a2c, training.n_epochs=4 instead of 1; give a run" in other.stderr
    figures = json.loads(file.read_text())
    outcome = json.loads((tmp_path / "after" / "prediction.json").read_text())
    assert outcome["steps_per_second"] == figures["nodes_1_steps_per_second"]
    assert outcome["outcome_steps_per_second"] > 0
    again = rlcluster("plan", "ppo", *flags(options), "--run", tmp_path / "after")  # a newer forecast of such a run
    assert again.returncode == 0, again.stderr
    record = track_record()
    assert record is not None
    assert record in again.stdout
    speed, memory = (outcome[name] for name in ("outcome_steps_per_second", "outcome_memory_gb"))
    errors = [abs(outcome["steps_per_second"] / speed - 1), abs(outcome["memory_gb_per_node"] / memory - 1)]
    assert record == (
        f"1 earlier forecast had an outcome: steps/s were off by {errors[0]:.0%}, memory by {errors[1]:.0%} (median)"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--nodes", "1,4"), "--nodes 4: mode sequential uses one; use --mode distributed"),
        (
            ("--cores-per-node", "32"),
            "--cores-per-node 32: mode sequential is one process and uses the cores of its threads; leave it out, or "
            "use --mode parallel",
        ),
    ],
)
def test_nodes_and_cores_that_a_sequential_run_cannot_use_are_refused(given: tuple[str, str], message: str) -> None:
    result = rlcluster("plan", "ppo", *given)
    assert result.returncode == 2
    assert message in result.stderr


@pytest.mark.parametrize(("mode", "is_one"), [("sequential", True), ("parallel", False)])
def test_a_sequential_run_has_one_rank(mode: str, is_one: bool) -> None:
    assert workload_of(load_settings("ppo", mode, None, {"env.name": "CartPole-v1"}), None).has_one_rank is is_one


def test_a_run_of_many_ranks_says_nothing_about_a_sequential_one(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", {"mode": "parallel", "policy.network": "impala"}, [1.0]))
    with pytest.raises(UserError, match="it has mode=parallel instead of sequential; give a run with the same"):
        refuse_other_work(load_settings("ppo", "sequential"), run)
    refuse_other_work(load_settings("ppo", "distributed"), run)
