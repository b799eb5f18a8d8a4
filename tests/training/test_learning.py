"""Learning: the shipped CartPole configurations solve it (475 over 100 evaluation episodes)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import rlcluster

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "mode"),
    [
        ("ppo", ()),
        ("a2c", ()),
        ("impala", ()),
        ("impala", ("--mode", "parallel", "--num-workers", "1")),
        ("a3c", ("--mode", "parallel", "--num-workers", "2")),
    ],
)
def test_cartpole_is_solved(algorithm: str, mode: tuple[str, ...], tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "evaluation.json"
    config = CONFIGS / f"{algorithm}_cartpole.yaml"
    trained = rlcluster("train", algorithm, "--config", config, "--output-dir", run, "--num-threads", "1", *mode)
    assert trained.returncode == 0, trained.stderr
    evaluated = rlcluster("evaluate", "--checkpoint", run, "--num-episodes", "100", "--json", file)
    assert evaluated.returncode == 0, evaluated.stderr
    assert json.loads(file.read_text())["results"]["test"]["reward_mean"] >= 475
