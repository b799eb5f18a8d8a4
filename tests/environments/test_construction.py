"""Making many environments is shown, and ends when a signal has arrived."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rlcluster.environments.construction import with_progress
from rlcluster.system.signals import StoppedError, StopRequest

from conftest import background, command


def test_progress_is_said_while_environments_are_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(with_progress(range(1000, 1003), seconds=0)) == [1000, 1001, 1002]
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [f"made {made} of 3 environments" for made in range(3)]
    assert captured.out == ""


def test_a_few_environments_are_made_silently_and_to_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with StopRequest():
        signal.raise_signal(signal.SIGTERM)
        assert list(with_progress(range(3), seconds=1000)) == [0, 1, 2]
    assert "made" not in capsys.readouterr().err


def test_a_signal_ends_a_construction_that_takes_long() -> None:
    with StopRequest():
        things = with_progress(range(3), seconds=0)
        next(things)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(StoppedError, match="stopped by SIGTERM"):
            next(things)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["ppo", "--num-threads", "1"],
        ["ppo", "--mode", "parallel", "--num-workers", "2"],
        ["impala", "--mode", "parallel", "--num-workers", "1", "--num-threads", "1"],
    ],
)
def test_ctrl_c_while_many_environments_are_made_ends_the_run_and_leaves_nothing(
    tmp_path: Path, arguments: list[str]
) -> None:
    run = tmp_path / "run"
    size = ["--env", "CartPole-v1", "--num-envs", "200000", "--n-steps", "2"]
    process = background(command("train", *arguments, *size, "--output-dir", run))
    assert process.stderr is not None
    while " environments" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"stopped by a signal before the first update; nothing is left in {run}" in out
    assert not run.exists()
