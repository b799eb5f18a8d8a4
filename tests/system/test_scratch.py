"""Folders of runs: gone with them, or at the start of the next."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rlcluster.system.scratch import PREFIX, scratch_folder

from conftest import background

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
