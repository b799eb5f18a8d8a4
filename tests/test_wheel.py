"""The package as `pip install` leaves it: a wheel in an environment of its own, used from a folder without sources."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import smoke  # noqa: E402 - scripts/smoke.py

PRESETS = sorted(file.stem for file in (ROOT / "configs").glob("*.yaml"))


class Installed(NamedTuple):
    wheel: Path
    programs: Path  # the environment's
    elsewhere: Path  # an empty folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Its dependencies are those of this environment, found by a path file; the editable package is not."""
    folder = tmp_path_factory.mktemp("wheel")
    pip, sources = [sys.executable, "-m", "pip"], smoke.copy_of_the_sources(folder / "sources")
    _run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, sources, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    venv = folder / "venv"
    _run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=folder)
    packages = venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _run(*pip, "--python", venv / "bin" / "python", "install", "--quiet", "--no-deps", wheel, cwd=folder)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    return Installed(wheel, venv / "bin", elsewhere)


def _run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # it may lead to sources
    words = [str(word) for word in command]
    result = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_the_wheel_holds_the_presets_and_every_file_of_the_package_and_asks_for_one_torch(
    installed: Installed,
) -> None:
    package = installed.wheel.parent / "sources" / "src"
    others = [file for file in package.rglob("*") if file.is_file() and file.suffix not in (".py", ".cpp", ".hpp")]
    with zipfile.ZipFile(installed.wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("/METADATA"))
    assert [name for name in names if name.startswith("rlcluster/presets/")] == [
        f"rlcluster/presets/{name}.yaml" for name in PRESETS
    ]
    assert {str(file.relative_to(package)) for file in others if ".egg-info" not in str(file)} <= set(names)
    assert {"rlcluster/py.typed", "rlcluster/cluster/templates/slurm.sh"} <= set(names)
    assert "Requires-Dist: torch==2.13.0\n" in metadata


@pytest.mark.slow
def test_the_installed_command_checks_the_machine_and_trains_by_a_preset(installed: Installed) -> None:
    command, folder = installed.programs / "rlcluster", installed.elsewhere
    where = _run(installed.programs / "python", "-c", "import rlcluster; print(rlcluster.__file__)", cwd=folder)
    assert Path(where.strip()).is_relative_to(installed.programs.parent)
    assert "ppo_procgen " in _run(command, "presets", cwd=folder)
    _run(command, "check", cwd=folder)
    small = ("--num-envs", "4", "--n-steps", "16", "--batch-size", "64", "--num-threads", "1")
    _run(command, "train", "--config", "ppo_demo", "--duration", "10s", *small, "--output-dir", "run", cwd=folder)
    assert (folder / "run" / "benchmark_metrics.json").is_file()
