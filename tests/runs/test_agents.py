"""The trained agents of the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlcluster
from rlcluster.runs.agents import FOLDER, agent_file, agent_names
from rlcluster.runs.checkpoints import find_checkpoint

MAX_MEGABYTES = 3.0


@pytest.mark.parametrize("name", agent_names())
def test_an_agent_is_found_by_its_name_and_acts(name: str) -> None:
    assert (FOLDER / f"{name}.pt").stat().st_size <= MAX_MEGABYTES * 1e6
    agent = rlcluster.load(name, num_threads=1)
    assert agent.steps_global >= 1_000_000
    actions = agent.act(np.zeros((2, *agent.spec.observation_shape), np.uint8), deterministic=True)
    assert len(actions) == 2


def test_an_agent_has_its_parameters_alone(tmp_path: Path) -> None:
    (name, *_) = agent_names()
    assert set(find_checkpoint(Path(name)).content["learner"]) == {"parameters", "updates", "steps_global"}


def test_files_go_before_agents_and_other_paths_mean_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (name, *_) = agent_names()
    monkeypatch.chdir(tmp_path)
    assert agent_file(Path(name)) == FOLDER / f"{name}.pt"
    assert agent_file(tmp_path / name) is None
    Path(name).mkdir()
    with pytest.raises(rlcluster.UserError, match="no checkpoint"):
        rlcluster.load(name)


@pytest.mark.slow
def test_a_run_begins_with_an_agent(tmp_path: Path) -> None:
    (name, *_) = agent_names()
    settings = {"num_envs": 2, "n_steps": 8, "n_minibatches": 2, "total_updates": 1, "num_threads": 1}
    run = rlcluster.train("ppo", env="coinrun", init_from=name, output_dir=tmp_path / "run", **settings)
    assert run.status == "finished"
