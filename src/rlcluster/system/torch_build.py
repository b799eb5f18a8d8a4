"""Distinguishes the CPU build of PyTorch from one that pulls in gigabytes of CUDA libraries, of no use here.

The installer (`scripts/install.py`) imports this module before anything is installed: standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distributions
from typing import Any

CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's own; pyproject.toml names it for uv, README for people
CUDA_PREFIXES = ("nvidia-", "cuda-")
COMPILER = "triton"  # for GPUs; comes only with the CUDA build


def brings_cuda(report: Mapping[str, Any]) -> bool:
    """Whether an installation pulls in CUDA, according to `pip install --report`."""
    environment = report.get("environment", {})
    return any(_is_cuda(item["metadata"], environment) for item in report.get("install", ()))


def cuda_note(version: str, cuda: str | None, num_bytes: int) -> str:
    """The note of `rlcluster check` on a CUDA build (`torch.version.cuda`); empty for a CPU build."""
    if cuda is None:
        return ""
    line = f"pip install --index-url {CPU_INDEX} torch=={version.partition('+')[0]}"
    return (
        f", but this is the CUDA build ({num_bytes / 1e9:.1f} GB on disk); the CPU build, in a new environment: {line}"
    )


def installed_bytes(found: Iterable[Distribution] | None = None) -> int:
    """The size of PyTorch and of a CUDA build's dependencies, from the file lists that pip keeps."""
    packages = {_normalised(str(package.name)): package for package in (distributions() if found is None else found)}
    sizes = [
        file.size or 0
        for name, package in packages.items()
        if name in ("torch", COMPILER) or name.startswith(CUDA_PREFIXES)
        for file in package.files or ()
    ]
    return sum(sizes)


def _is_cuda(metadata: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
    """By its name, its version (2.13.0+cu130) or its requirements: the report may cover torch alone."""
    if _normalised(metadata["name"]).startswith(CUDA_PREFIXES) or "+cu" in metadata["version"]:
        return True
    requirements = (requirement.partition(";") for requirement in metadata.get("requires_dist", ()))
    return any(
        _normalised(name).startswith(CUDA_PREFIXES) and _applies(marker, environment)
        for name, _, marker in requirements
    )


def _applies(marker: str, environment: Mapping[str, str]) -> bool:
    """Whether every `name == "value"` of a marker holds here. PyTorch's markers use only `and`."""
    conditions = re.findall(r"""(\w+)\s*==\s*['"]([^'"]*)['"]""", marker)
    return all(environment.get(name) == value for name, value in conditions)


def _normalised(name: str) -> str:
    return name.strip().lower().replace("_", "-")
