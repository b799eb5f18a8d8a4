"""`rlcluster check`: passes here, and says how to fix what is missing."""

from __future__ import annotations

from pathlib import Path

from conftest import rlcluster


def test_every_check_passes_on_a_working_machine(tmp_path: Path) -> None:
    result = rlcluster("check", "--output-dir", tmp_path)
    assert result.returncode == 0, result.stdout
    lines = result.stdout.splitlines()
    names = ("Python", "PyTorch", "Cores", "Memory", "Procgen engine", "Policy", "Kernels", "Write access")
    assert [line.split(":")[0].split(maxsplit=1) for line in lines[:-1]] == [["ok", name] for name in names]
    assert "steps/s" in result.stdout
    assert "samples/s" in result.stdout


def test_an_unwritable_directory_is_named_with_a_fix(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = rlcluster("check", "--output-dir", tmp_path / "file" / "run")
    assert result.returncode == 1
    assert "FAILED Write access" in result.stdout
    assert "choose another --output-dir" in result.stdout
