"""Output files are refused before any work if they could not, or must not, be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcluster.reports.output_paths import check_output_file, check_outside_runs
from rlcluster.system.errors import EXIT_STORAGE, UserError


def test_a_file_needs_an_existing_directory_and_a_known_suffix(tmp_path: Path) -> None:
    check_output_file("--json", tmp_path / "anything")
    check_output_file("--output", tmp_path / "figure.svg", (".png", ".svg"))
    with pytest.raises(UserError, match=r"^--output .*figure\.txt: the name should end in \.png, \.svg$"):
        check_output_file("--output", tmp_path / "figure.txt", (".png", ".svg"))
    with pytest.raises(UserError, match=r"^--json .*: no such directory: .*missing$") as caught:
        check_output_file("--json", tmp_path / "missing" / "evaluation.json")
    assert caught.value.exit_code == EXIT_STORAGE


def test_a_path_inside_a_run_is_refused_also_through_a_link(tmp_path: Path) -> None:
    first, second = tmp_path / "run", tmp_path / "run_2"
    first.mkdir()
    second.mkdir()
    (tmp_path / "link").symlink_to(second)
    check_outside_runs("--output", tmp_path / "run_20", [first, second])
    with pytest.raises(UserError, match=rf"is inside the run {second};"):
        check_outside_runs("--output", tmp_path / "link" / "logs", [first, second])
