"""Errors of files name the remedy for their cause, and nobody else may write what a command makes."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlcluster.system.atomic_file import StorageError, keep_files_from_strangers, write_atomically
from rlcluster.system.errors import EXIT_STORAGE

from conftest import CARTPOLE, disk_full_after, flags, rlcluster


@contextmanager
def no_file_can_be_opened() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def test_too_many_open_files_are_not_blamed_on_the_disk(tmp_path: Path) -> None:
    with no_file_can_be_opened(), pytest.raises(StorageError) as caught:
        write_atomically(tmp_path / "file", b"x")
    reason = "cannot be written (Too many open files); raise the limit of open files (ulimit -n)"
    assert str(caught.value) == f"{tmp_path}/file {reason}"


def test_a_full_disk_is_blamed_on_the_disk(tmp_path: Path) -> None:
    with (
        disk_full_after(10),
        pytest.raises(StorageError, match=r"cannot be written \(File too large\); free some space$"),
    ):
        write_atomically(tmp_path / "file", b"x" * 100)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EROFS, "choose a folder that you can write"),
        (errno.ENOTDIR, "choose a folder that exists"),
        (errno.EIO, "check the disk, or choose another folder"),
    ],
)
def test_each_cause_has_its_remedy(number: int, remedy: str) -> None:
    error = StorageError("a", OSError(number, os.strerror(number)))
    assert str(error) == f"a cannot be written ({os.strerror(number)}); {remedy}"
    assert error.exit_code == EXIT_STORAGE


@pytest.mark.parametrize(("mask", "expected"), [(0o000, 0o022), (0o040, 0o062), (0o002, 0o002), (0o077, 0o077)])
def test_files_that_everybody_could_write_are_the_users_alone(mask: int, expected: int) -> None:
    with umask(mask):
        keep_files_from_strangers()
        assert os.umask(0) == expected


def test_a_run_under_an_open_mask_has_no_file_that_others_can_write(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = {**CARTPOLE, "--total-updates": 1, "--output-dir": run, "--mode": "parallel", "--num-workers": 1}
    with umask(0o000):
        result = rlcluster("train", "ppo", *flags(options))
    assert result.returncode == 0, result.stderr
    made = [run, *run.rglob("*")]
    assert len(made) > 8
    assert {str(path): oct(path.stat().st_mode) for path in made if path.stat().st_mode & 0o022} == {}
