"""Output files are refused before any work if they could not, or must not, be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcluster.reports.compare import choose_outputs
from rlcluster.reports.output_paths import check_output_file, check_outside_runs
from rlcluster.system.atomic_file import StorageError
from rlcluster.system.errors import EXIT_STORAGE, UserError

from conftest import rlcluster


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


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"^--json /proc/evaluation\.json cannot be written \(.*\); choose a folder"):
        check_output_file("--json", Path("/proc/evaluation.json"))
    with pytest.raises(UserError, match=r"^--json .*: is a directory; give the name of a file$"):
        check_output_file("--json", tmp_path)
    with pytest.raises(
        StorageError, match=r"^--json .* cannot be written \(File name too long\); choose a shorter name$"
    ):
        check_output_file("--json", tmp_path / ("a" * 255))
    with pytest.raises(StorageError, match=r"^--output /proc/comparison\.png cannot be written"):
        choose_outputs(Path("/proc"), [], [])


def test_a_check_leaves_everything_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("old")
    check_output_file("--json", tmp_path / "old.json")
    check_output_file("--json", tmp_path / "new.json")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("old.json", "old")]


@pytest.mark.parametrize("flags", [["--video", "/proc/play.mp4"], ["--json", "/proc/evaluation.json"]])
def test_an_evaluation_that_could_not_be_written_is_refused_before_its_checkpoint_is_read(flags: list[str]) -> None:
    result = rlcluster("evaluate", "--checkpoint", "missing", *flags)
    assert (result.returncode, result.stdout) == (EXIT_STORAGE, "")
    assert result.stderr.startswith(f"rlcluster: error: {' '.join(flags)} cannot be written (")
    assert result.stderr.count("\n") == 1
