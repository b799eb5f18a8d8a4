"""run_state.json: the status of a run, for any reader at any time."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcluster.runs.files import STATE_FILE
from rlcluster.runs.status import RunState, is_being_written, read_state, write_state
from rlcluster.runs.writer import RunDirectory
from rlcluster.settings.loading import load_settings
from rlcluster.system.errors import EXIT_RUN_FAILED, RankError

SAVED = {"learner": {"updates": 1, "steps_global": 8}}  # of a run without anything, nothing is left


def run_in(folder: Path) -> RunDirectory:
    return RunDirectory.create(load_settings(flags={"env.name": "CartPole-v1", "output.output_dir": str(folder)}))


def state_of(folder: Path) -> RunState:
    state = read_state(folder)
    assert state is not None
    return state


def test_a_run_is_running_while_it_is_open(tmp_path: Path) -> None:
    with run_in(tmp_path / "run"):
        assert state_of(tmp_path / "run").state == "running"
        assert is_being_written(tmp_path / "run")


def test_a_run_that_nobody_writes_any_more_has_failed(tmp_path: Path) -> None:
    """As after a kill -9: the file says running, but nobody holds the lock."""
    with run_in(tmp_path / "run"):
        pass
    state = state_of(tmp_path / "run")
    assert (state.state, state.reason) == ("failed", "its process ended without reporting an error")


def test_how_a_run_ends_is_kept(tmp_path: Path) -> None:
    with run_in(tmp_path / "run") as run:
        run.save(SAVED)
        run.conclude("preempted", "SIGTERM")
    state = state_of(tmp_path / "run")
    assert (state.state, state.reason) == ("preempted", "SIGTERM")


def test_an_error_is_the_reason_in_one_line_with_the_failed_rank(tmp_path: Path) -> None:
    def fail() -> None:
        with run_in(tmp_path / "run") as run:
            run.save(SAVED)
            raise RankError("rank 3 did not answer\nand more", EXIT_RUN_FAILED, failed_rank=3)

    with pytest.raises(RankError):
        fail()
    state = state_of(tmp_path / "run")
    assert (state.state, state.reason, state.failed_rank) == ("failed", "rank 3 did not answer", 3)


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"state": "running", "unknown": 1}'])
def test_what_is_no_state_is_none(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / STATE_FILE).write_text(content)
    assert read_state(tmp_path) is None
    assert read_state(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state", "asleep"),
        ("state", None),
        ("steps_global", "7"),
        ("steps_global", -1),
        ("update", 1.5),
        ("restarts", None),
        ("reason", 3),
        ("failed_rank", []),
    ],
)
def test_a_state_with_a_value_that_no_run_writes_is_none(name: str, value: object, tmp_path: Path) -> None:
    write_state(tmp_path, RunState("finished", 8, 1, "a reason", 0)._replace(**{name: value}))  # type: ignore[arg-type]
    assert read_state(tmp_path) is None
