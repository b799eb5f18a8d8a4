"""`pip install` with the CPU build of PyTorch: python scripts/install.py ARGUMENTS OF PIP INSTALL

First asks pip, by a dry run, what it would install. Only if that is a CUDA build does it install the CPU build from
PyTorch's own index; no other package comes from there, and otherwise the index is never contacted. The dry run covers
torch alone: an old pip downloads what it resolves (and finds it in its cache when it installs).

Runs with the bare Python of a new environment: standard library only.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
from rlcluster.system.torch_build import CPU_INDEX, brings_cuda  # noqa: E402 - not installed yet

PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
TORCH = ("--no-deps", "--constraint", str(ROOT / "constraints.txt"), "torch")
FROM_CPU_INDEX = ("--index-url", CPU_INDEX, "--retries", "1")


def main(arguments: Sequence[str]) -> int:
    """Installs, and returns pip's exit code."""
    report = would_install()
    if report is not None and brings_cuda(report) and not install_cpu_build():
        warn(f"no CPU build of PyTorch from {CPU_INDEX}; installing the default build, which includes CUDA: 5 GB")
    exit_code = subprocess.run([*PIP, *arguments], check=False).returncode
    if exit_code == 0:
        print(installed_text())
    if report is None and exit_code == 0:
        warn("this pip cannot say what it installs (before 22.2); `rlcluster check` says whether PyTorch includes CUDA")
    return exit_code


def warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def installed_text() -> str:
    """What this environment now holds, and its size on disk."""
    names = {package.metadata["Name"] for package in distributions()}
    num_bytes = sum(file.stat().st_size for file in Path(sys.prefix).rglob("*") if file.is_file())
    return f"{len(names)} packages in {sys.prefix}: {num_bytes / 1e9:.1f} GB"


def would_install(*options: str) -> Any:
    """pip's dry-run report on torch; None if pip fails. It is empty if torch is already installed."""
    command = [*PIP, "--dry-run", "--report", "-", *options, *TORCH]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(result.stdout) if result.returncode == 0 else None


def install_cpu_build() -> bool:
    """Installs the CPU build; returns False if it cannot. A dry run comes first: pip may be configured with further
    indexes and take the CUDA build from one of them.
    """
    report = would_install(*FROM_CPU_INDEX)
    if report is None or brings_cuda(report):
        return False
    return subprocess.run([*PIP, *FROM_CPU_INDEX, *TORCH], capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
