"""Installs the wheel as users do, into an empty environment, and tries it: python scripts/smoke.py PYTHON

Runs `rlcluster check` and ten seconds of training by a preset, from a folder without the sources. Skipped, with the
reason, where there is no such Python, or no CPU build of PyTorch for it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NO_CPU_BUILD = 3  # exit code of the question below
QUESTION = f"""
import sys
sys.path.insert(0, {str(ROOT / "scripts")!r})
from install import FROM_CPU_INDEX, brings_cuda, would_install
offers = (would_install(), would_install(*FROM_CPU_INDEX))
sys.exit(0 if any(offer is not None and not brings_cuda(offer) for offer in offers) else {NO_CPU_BUILD})
"""


def main(python: str) -> int:
    environment = _environment(python)
    with tempfile.TemporaryDirectory(prefix="rlcluster-smoke-") as folder:
        venv = Path(folder, "venv")
        if not _runs([python, "-m", "venv", str(venv)], environment):
            return _skip(f"{python} cannot be started here")
        if not _runs([str(venv / "bin" / "python"), "-c", QUESTION], environment):
            return _skip(f"there is no CPU build of PyTorch for {python} here")
        sources = copy_of_the_sources(Path(folder, "sources"))
        install = [str(venv / "bin" / "python"), str(ROOT / "scripts" / "install.py")]
        subprocess.run([*install, "--constraint", str(ROOT / "constraints.txt"), str(sources)], check=True)
        command, elsewhere = str(venv / "bin" / "rlcluster"), Path(folder, "elsewhere")
        elsewhere.mkdir()
        for arguments in (["check"], ["train", "--config", "ppo_demo", "--duration", "10s"]):
            subprocess.run([command, *arguments], check=True, cwd=elsewhere, env=environment)
    return 0


def copy_of_the_sources(folder: Path) -> Path:
    """Of what a wheel is made of. A build leaves files behind that a later one would pack again."""
    folder.mkdir()
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("src", "configs"):
        ignored = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    return folder


def _environment(python: str) -> dict[str, str]:
    """pyenv starts `python3.12` only if that version is selected; PYTHONPATH may lead to the sources."""
    version = re.fullmatch(r"python(3\.\d+)", Path(python).name)
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**inherited, **({"PYENV_VERSION": version[1]} if version else {})}


def _runs(command: list[str], environment: dict[str, str]) -> bool:
    try:
        return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _skip(reason: str) -> int:
    print(f"skipped: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
