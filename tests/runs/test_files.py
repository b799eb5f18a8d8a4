"""The files of a run are known to rlcluster.runs alone, and it reads them without torch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlcluster
import rlcluster.runs
from rlcluster.runs.files import refuse_occupied
from rlcluster.system.atomic_file import StorageError

PACKAGE = Path(rlcluster.__file__).parent
ROOM = Path(rlcluster.runs.__file__).parent
OTHER_MODULES = sorted(file for file in PACKAGE.rglob("*.py") if not file.is_relative_to(ROOM))
FILE_NAMES = re.compile(
    r"metrics\.jsonl|config\.yaml|plan\.json|benchmark_metrics|machine\.json|run_state|checkpoints/|tfevents|evaluation\S*\.json"
    r"|play\S*\.mp4|_final\b|_step_|\.pt\b"
)
FOR_USERS = ("help", "description")  # arguments whose text the user reads


def texts(tree: ast.AST) -> Iterator[str]:
    """The strings that a module works with: neither its docstrings nor what it tells its users of settings."""
    for node in ast.iter_child_nodes(tree):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_docstring or (isinstance(node, ast.keyword) and node.arg in FOR_USERS):
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        yield from texts(node)


def names_imported_from_runs(tree: ast.AST) -> list[str]:
    return [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("rlcluster.runs")
        for alias in node.names
    ]


@pytest.mark.parametrize("file", OTHER_MODULES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_no_other_room_names_a_file_of_a_run(file: Path) -> None:
    tree = ast.parse(file.read_text())
    assert [text for text in texts(tree) if FILE_NAMES.search(text)] == []
    assert [name for name in names_imported_from_runs(tree) if name.endswith(("_FILE", "_FILES"))] == []


def test_names_are_found_where_a_module_works_with_them() -> None:
    source = '''
"""Writes metrics.jsonl."""
def f(path, name):
    """Reads config.yaml."""
    parser.add_argument("--log-file", help="a metrics.jsonl instead of a run")
    g(path / "config.yaml", f"{name}_step_7.pt", kind="machine.json")
'''
    found = [text for text in texts(ast.parse(source)) if FILE_NAMES.search(text)]
    assert found == ["config.yaml", "_step_7.pt", "machine.json"]


def test_runs_are_imported_without_torch() -> None:
    names = {file.stem for file in ROOM.glob("*.py")} - {"__init__"}
    modules = [f"rlcluster.runs.{name}" for name in sorted(names)]
    assert len(modules) > 5
    code = f"import sys, {', '.join(modules)}\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_output_directory_that_may_not_be_looked_at_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(
        StorageError, match=r"^output\.output_dir=.* cannot be written \(File name too long\); choose a"
    ):
        refuse_occupied(tmp_path / ("a" * 300), "remedy")
