"""Which build of PyTorch would be installed, or is."""

from __future__ import annotations

import tomllib
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from rlcluster.system.torch_build import CPU_INDEX, brings_cuda, cuda_note, installed_bytes

ROOT = Path(__file__).parents[2]
LINUX = {"platform_system": "Linux", "platform_machine": "x86_64", "python_version": "3.12"}
CUDA_REQUIREMENTS = (
    'cuda-toolkit[cublas,cudart]==13.0.3; platform_system == "Linux"',
    'nvidia-nccl-cu13==2.30.7; platform_system == "Linux" and python_version < "3.15"',
)


def report(name: str, version: str, *requirements: str, environment: dict[str, str] = LINUX) -> dict[str, Any]:
    """As `pip install --report` writes it."""
    metadata: dict[str, Any] = {"name": name, "version": version}
    if requirements:
        metadata["requires_dist"] = list(requirements)
    return {"version": "1", "install": [{"metadata": metadata}], "environment": environment}


@pytest.mark.parametrize(
    "content",
    [
        report("torch", "2.13.0", "filelock", CUDA_REQUIREMENTS[0]),
        report("torch", "2.13.0", CUDA_REQUIREMENTS[1]),
        report("torch", "2.13.0+cu130"),
        report("nvidia_cublas", "13.1.1.3"),
        report("torch", "2.13.0", "nvidia-cublas==13.1"),
    ],
)
def test_a_cuda_build_is_recognised_by_its_requirements_version_or_dependencies(content: dict[str, Any]) -> None:
    assert brings_cuda(content)


@pytest.mark.parametrize(
    "content",
    [
        report("torch", "2.13.0+cpu", "filelock", "sympy>=1.13.3", 'opt-einsum>=3.3; extra == "opt-einsum"'),
        report("torch", "2.13.0", *CUDA_REQUIREMENTS, environment={**LINUX, "platform_system": "Darwin"}),
        report("torch", "2.13.0", 'nvidia-cublas==13.1; platform_machine == "aarch64"'),
        report("torch", "2.13.0", 'nvidia-cublas==13.1; extra == "gpu"'),
        {"version": "1", "install": [], "environment": LINUX},  # torch is already installed
    ],
)
def test_a_cpu_build_has_no_cuda_and_requirements_of_other_platforms_do_not_count(content: dict[str, Any]) -> None:
    assert not brings_cuda(content)


def test_the_size_includes_torch_and_the_dependencies_of_a_cuda_build(tmp_path: Path) -> None:
    sizes = {"torch": (700, 50), "nvidia_cublas": (3_000,), "cuda-toolkit": (20,), "triton": (600,), "numpy": (9_999,)}
    for name, numbers in sizes.items():
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "RECORD").write_text("".join(f"{name}/{k}.so,,{size}\n" for k, size in enumerate(numbers)))
    assert installed_bytes(distributions(path=[str(tmp_path)])) == 700 + 50 + 3_000 + 20 + 600


def test_a_cuda_build_is_reported_with_its_size_and_the_command_for_the_cpu_build() -> None:
    assert cuda_note("2.13.0+cpu", None, 700_000_000) == ""
    assert cuda_note("2.13.0+cu130", "13.0", 5_120_000_000) == (
        ", but this is the CUDA build (5.1 GB on disk); the CPU build, in a new environment: "
        "pip install --index-url https://download.pytorch.org/whl/cpu torch==2.13.0"
    )


def test_uv_and_the_readme_name_the_same_address() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (index,) = project["tool"]["uv"]["index"]
    assert (index["url"], index["explicit"]) == (CPU_INDEX, True)  # explicit: nothing but torch comes from there
    assert project["tool"]["uv"]["sources"] == {"torch": {"index": index["name"]}}
    (torch,) = (requirement for requirement in project["project"]["dependencies"] if requirement.startswith("torch"))
    assert f"pip install --index-url {CPU_INDEX} {torch}" in (ROOT / "README.md").read_text()
