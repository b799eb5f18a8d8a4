"""A run directory of an earlier commit is read, evaluated and resumed.

`recorded/ppo_cartpole` was written at commit 109fb69, less one checkpoint, by `rlcluster train ppo --env CartPole-v1
--num-envs 2 --n-steps 8 --hidden-sizes 4 --total-updates 4 --checkpoint-updates 2 --num-threads 1`;
`recorded/impala_cartpole` and `recorded/a3c_cartpole` at commit ec750a3 with `--mode parallel --num-workers 2`. None is
ever written anew: when the format grows, another one is added.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rlcluster.runs.reader import read_run

from conftest import metrics, rlcluster

FOLDER = Path(__file__).parent / "recorded"
RECORDED = FOLDER / "ppo_cartpole"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDED, tmp_path / "run"))


def test_an_earlier_run_is_read_whole(run: Path) -> None:
    recorded = read_run(run)
    assert list(recorded.warnings) == []
    assert recorded.is_finished
    assert recorded.machine["cpu_model"] == "AMD EPYC"
    assert (recorded.summary["total_updates"], recorded.summary["total_timesteps"]) == (4, 64)


def test_an_earlier_run_is_evaluated(run: Path) -> None:
    result = rlcluster("evaluate", "--checkpoint", run, "--num-episodes", "2", "--num-threads", "1")
    assert result.returncode == 0, result.stderr
    assert "ppo_sequential_final.pt (step 64)" in result.stdout


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_an_earlier_run_is_resumed(run: Path, mode: str) -> None:
    result = rlcluster("train", "--resume", "--output-dir", run, "--total-updates", "6", "--mode", mode)
    assert result.returncode == 0, result.stderr
    assert "resuming at update 4, step 64" in result.stdout
    records = metrics(run)
    assert [record["update"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert records[:4] == metrics(RECORDED)
    assert read_run(run).summary["total_updates"] == 6


def test_an_earlier_run_without_its_last_checkpoint_is_resumed_from_the_one_before(run: Path) -> None:
    (run / "checkpoints" / "ppo_sequential_final.pt").unlink()
    result = rlcluster("train", "--resume", "--output-dir", run)
    assert result.returncode == 0, result.stderr
    assert "resuming at update 2, step 32" in result.stdout
    assert [record["update"] for record in metrics(run)] == [1, 2, 3, 4]


@pytest.mark.parametrize("mode", ["sequential", "parallel", "distributed"])
@pytest.mark.parametrize("algorithm", ["impala", "a3c"])
def test_an_earlier_asynchronous_run_is_resumed_in_any_mode(algorithm: str, mode: str, tmp_path: Path) -> None:
    recorded = FOLDER / f"{algorithm}_cartpole"
    run = Path(shutil.copytree(recorded, tmp_path / "run"))
    result = rlcluster("train", "--resume", "--output-dir", run, "--total-updates", "6", "--mode", mode)
    assert result.returncode == 0, result.stderr
    assert "resuming at update 4" in result.stdout
    records = metrics(run)
    assert [record["update"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert records[:4] == metrics(recorded)
    assert read_run(recorded).cores >= 1
