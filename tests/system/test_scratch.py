"""Folders of runs: gone with them, or at the start of the next."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rlcluster.system.scratch import PREFIX, remove_abandoned, scratch_folder

from conftest import CARTPOLE, background, command, end, flags, rlcluster

OWNER = """
import sys
from rlcluster.system.scratch import scratch_folder
with scratch_folder() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def age(folder: Path) -> None:
    os.utime(folder, (0, 0))


def test_a_folder_is_private_and_gone_afterwards() -> None:
    with scratch_folder() as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()


def test_the_folder_of_a_killed_process_is_removed_by_the_next_and_that_of_a_living_one_stays() -> None:
    owners = [background([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stderr=None) for _ in range(2)]
    folders = [Path(owner.stdout.readline().strip()) for owner in owners if owner.stdout is not None]
    owners[0].kill()
    owners[0].communicate()
    for folder in folders:
        age(folder)
    with scratch_folder():
        assert [folder.exists() for folder in folders] == [False, True]
    owners[1].communicate("", timeout=30)
    assert not folders[1].exists()


def test_a_young_folder_and_other_names_stay(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}young").mkdir()
    (tmp_path / "rlcluster-other").mkdir()
    age(tmp_path / "rlcluster-other")
    with scratch_folder():
        assert (tmp_path / f"{PREFIX}young").exists()
        assert (tmp_path / "rlcluster-other").exists()


@pytest.mark.slow
def test_a_sequential_training_removes_what_killed_commands_have_left(tmp_path: Path) -> None:
    left = tmp_path / f"{PREFIX}left"
    (left / "run").mkdir(parents=True)
    age(left)
    result = rlcluster("train", "ppo", "--output-dir", tmp_path / "run", *flags({**CARTPOLE, "--total-updates": 1}))
    assert result.returncode == 0, result.stderr
    assert not left.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["tune", "ppo", "--env", "CartPole-v1", "--minutes", "5", "--output", "tuned.yaml"],
        ["plan", "ppo", "--env", "CartPole-v1", "--seconds", "60"],
    ],
    ids=["tune", "plan"],
)
def test_the_runs_of_a_killed_command_are_removed_by_the_next_training(arguments: list[str], tmp_path: Path) -> None:
    process = background(command(*arguments), cwd=tmp_path)
    while not list(tmp_path.glob(f"{PREFIX}*/**/run_state.json")):
        assert process.poll() is None, process.communicate()
    end(process)
    left = list(tmp_path.glob("rlcluster-*"))
    assert left
    for folder in left:
        age(folder)
    remove_abandoned()
    assert not list(tmp_path.glob("rlcluster-*"))
