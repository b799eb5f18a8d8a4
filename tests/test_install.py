"""scripts/install.py with a fake pip, which records its calls and gives prepared answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ARGUMENTS = ["--constraint", "constraints.txt", "--editable", ".[dev]"]

# `python -m pip` finds it first. Each dry run takes the next answer; null is a failure.
STAND_IN = """
import json, pathlib, sys
folder = pathlib.Path(__file__).parent
with (folder / "calls.jsonl").open("a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
if "--dry-run" in sys.argv:
    first, *others = json.loads((folder / "answers.json").read_text())
    (folder / "answers.json").write_text(json.dumps(others))
    if first is None:
        sys.exit("ERROR: Could not find a version that satisfies the requirement torch")
    print(json.dumps(first))
elif ".[dev]" in sys.argv:
    sys.exit(int((folder / "exit_code").read_text()))
"""


class Outcome(NamedTuple):
    exit_code: int
    calls: list[list[str]]  # pip's arguments
    err: str


def report(version: str, *requirements: str) -> dict[str, Any]:
    metadata = {"name": "torch", "version": version, "requires_dist": list(requirements)}
    return {"version": "1", "install": [{"metadata": metadata}], "environment": {"platform_system": "Linux"}}


CPU = report("2.13.0+cpu", "filelock")
CUDA = report("2.13.0", 'nvidia-nccl-cu13==2.30.7; platform_system == "Linux"')


def install(folder: Path, answers: list[dict[str, Any] | None], exit_code: int = 0) -> Outcome:
    (folder / "pip.py").write_text(STAND_IN)
    (folder / "answers.json").write_text(json.dumps(answers))
    (folder / "exit_code").write_text(str(exit_code))
    command = [sys.executable, str(ROOT / "scripts" / "install.py"), *ARGUMENTS]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    calls = [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]
    return Outcome(result.returncode, calls, result.stderr)


def test_a_cpu_build_by_default_contacts_no_other_index(tmp_path: Path) -> None:
    outcome = install(tmp_path, [CPU])
    question, installation = outcome.calls
    assert (question[0], question[-1]) == ("install", "torch")
    assert {"--dry-run", "--report", "--no-deps"} <= set(question)
    assert installation[0] == "install"
    assert installation[-4:] == ARGUMENTS
    assert CPU_INDEX not in [*question, *installation]
    assert (outcome.exit_code, outcome.err) == (0, "")


def test_instead_of_a_cuda_build_only_torch_comes_from_the_cpu_index(tmp_path: Path) -> None:
    outcome = install(tmp_path, [CUDA, CPU])
    first, second, torch, installation = outcome.calls
    assert CPU_INDEX not in first
    for call in (second, torch):
        assert call[call.index("--index-url") + 1] == CPU_INDEX
        assert "--no-deps" in call
        assert call[-1] == "torch"
    assert "--dry-run" in second
    assert "--dry-run" not in torch
    assert installation[-4:] == ARGUMENTS
    assert CPU_INDEX not in installation
    assert (outcome.exit_code, outcome.err) == (0, "")


def test_without_the_cpu_index_one_line_warns_and_the_default_build_is_installed(tmp_path: Path) -> None:
    for name, answer in {"unreachable": None, "another source gives CUDA": CUDA}.items():
        folder = tmp_path / name
        folder.mkdir()
        outcome = install(folder, [CUDA, answer])
        _, _, installation = outcome.calls
        assert installation[-4:] == ARGUMENTS
        assert outcome.exit_code == 0
        assert outcome.err.count("\n") == 1
        assert outcome.err.startswith(f"warning: no CPU build of PyTorch from {CPU_INDEX}; ")


def test_if_the_dry_run_fails_the_installation_itself_reports_why(tmp_path: Path) -> None:
    outcome = install(tmp_path, [None], exit_code=1)
    assert [call[-1] for call in outcome.calls] == ["torch", ".[dev]"]
    assert outcome.exit_code == 1
    assert "warning" not in outcome.err


def test_a_pip_that_cannot_report_is_warned_of_if_the_installation_succeeds(tmp_path: Path) -> None:
    outcome = install(tmp_path, [None])
    assert outcome.exit_code == 0
    assert outcome.err.count("\n") == 1
    assert "`rlcluster check` says whether PyTorch includes CUDA" in outcome.err
