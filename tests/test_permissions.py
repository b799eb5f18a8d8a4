"""Files and folders that the user may not read: one line with the path, never a traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rlcluster.system.errors import EXIT_STORAGE

from conftest import command, write_run

# Root reads everything, unless it gives up these two capabilities.
CAPABILITIES = "-dac_override,-dac_read_search"
AS_A_USER = ["setpriv", f"--bounding-set={CAPABILITIES}", f"--inh-caps={CAPABILITIES}"] if os.geteuid() == 0 else []

pytestmark = pytest.mark.skipif(bool(AS_A_USER) and shutil.which("setpriv") is None, reason="needs setpriv")


def refused(*arguments: str | Path) -> str:
    """The error of a command that may not read something."""
    result = subprocess.run(
        [*AS_A_USER, *command(*arguments)], capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == EXIT_STORAGE, result.stderr
    assert result.stderr.startswith("rlcluster: error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "folder" / "run", {}, [1.0, 2.0])


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--resume", "--output-dir"],
        ["plot"],
        ["watch", "--once"],
        pytest.param(["train", "ppo", "--env", "CartPole-v1", "--output-dir"], marks=pytest.mark.slow),
        pytest.param(["evaluate"], marks=pytest.mark.slow),
        pytest.param(["suite"], marks=pytest.mark.slow),
    ],
)
def test_a_path_in_a_folder_that_may_not_be_read_is_named(run: Path, arguments: list[str]) -> None:
    run.parent.chmod(0)
    try:
        error = refused(*arguments, run)
    finally:
        run.parent.chmod(0o755)
    assert str(run) in error
    assert "Permission denied" in error


@pytest.mark.parametrize("arguments", [["train", "--resume", "--output-dir"], ["plot"]])
def test_the_settings_of_a_run_that_may_not_be_read_are_named(run: Path, arguments: list[str]) -> None:
    (run / "config.yaml").chmod(0)
    error = f"rlcluster: error: the run's {run / 'config.yaml'}: Permission denied; change who may read it\n"
    assert refused(*arguments, run) == error


def test_a_settings_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.touch(mode=0)
    error = f"rlcluster: error: --config {file}: Permission denied; change who may read it\n"
    assert refused("train", "ppo", "--config", file) == error
