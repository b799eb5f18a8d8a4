"""A forecast that was made before a job is submitted: recorded with the run, and its outcome added where it trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlcluster.cli import main
from rlcluster.experiments.forecast import Forecast
from rlcluster.experiments.predictions import record_outcome, remember, track_record
from rlcluster.runs.config import write_run_settings
from rlcluster.runs.files import refuse_occupied
from rlcluster.settings.loading import load_settings
from rlcluster.settings.schema import Settings
from rlcluster.system import machine

SUMMARY = {"world_size": 32, "num_cores": 32, "average_fps": 1500.0, "peak_memory_gb": 64.0}


@pytest.fixture(autouse=True)
def _login_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a cache and a scheduler of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nothing"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/bash\necho 17\n")
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")


def settings_for(**flags: Any) -> Settings:
    return load_settings("ppo", "distributed", None, {"env.name": "CartPole-v1", "env.num_envs": "64", **flags})


def forecast_for(nodes: int) -> Forecast:
    ranks = 16 * nodes
    return Forecast(nodes, ranks, ranks, 1, 1000.0, 900.0, 1100.0, None, None, 32.0, 1.0, 0.9, 0.1, 0.0)


def submit(run: Path, *more: str) -> None:
    job = ("submit", "--scheduler", "slurm", "--nodes", "2", "--ranks-per-node", "16")
    training = ("train", "ppo", "--env", "CartPole-v1", "--num-envs", "64", "--output-dir", str(run), *more)
    assert main([*job, "--", *training]) == 0


def train(run: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """As a finished run on the nodes of the cluster leaves it: another processor, and perhaps another cache."""
    settings = settings_for(**{"output.output_dir": str(run), "policy.network": "mlp"})
    write_run_settings(run, settings)
    monkeypatch.setattr(machine, "cpu_model", lambda: "the processor of a node")
    record_outcome(run, {**SUMMARY, **changes}, 2)


def prediction(run: Path) -> dict[str, Any]:
    return json.loads((run / "prediction.json").read_text())


def test_a_submission_records_its_forecast_and_the_job_adds_the_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(settings_for(), "mlp", [forecast_for(1), forecast_for(2)])
    submit(tmp_path / "run", "--seed", "7")
    assert (prediction(tmp_path / "run")["nodes"], prediction(tmp_path / "run")["steps_per_second"]) == (2, 1000.0)
    refuse_occupied(tmp_path / "run", "choose another")  # the run can begin there
    train(tmp_path / "run", monkeypatch, num_cores=16)  # the job asked for 32 hardware threads
    found = prediction(tmp_path / "run")
    assert (found["steps_per_second"], found["outcome_steps_per_second"], found["outcome_memory_gb"]) == (
        *(1000.0, 1500.0, 64.0),
    )
    assert track_record() == (
        "1 earlier forecast had an outcome: steps/s were off by 33%, memory by 0% (median)"  # 1000/1500, 2 * 32/64
    )


def test_a_submission_without_a_forecast_of_such_runs_records_none(tmp_path: Path) -> None:
    remember(settings_for(), "mlp", [forecast_for(1)])  # on one node
    remember(settings_for(**{"parallel.wire_dtype": "bfloat16"}), "mlp", [forecast_for(2)])
    submit(tmp_path / "run")
    assert not (tmp_path / "run" / "prediction.json").exists()


def test_a_forecast_of_another_run_in_the_directory_gets_no_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(settings_for(), "mlp", [forecast_for(2)])
    submit(tmp_path / "run")
    train(tmp_path / "run", monkeypatch, world_size=16)  # it was resumed with fewer ranks
    assert "outcome_steps_per_second" not in prediction(tmp_path / "run")
