"""Ctrl-C ends profile, tune and plan with exit code 130, and with them all that they have started."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from conftest import CARTPOLE, command, flags, start

LONG = {**CARTPOLE, "--mode": "parallel", "--num-workers": 2}
METRICS = "logs/*/metrics.jsonl"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "until"),
    [
        (("profile", "ppo", *flags(LONG), "--updates", "100000", "--output", "run"), f"run/{METRICS}"),
        (("tune", "ppo", *flags(CARTPOLE), "--minutes", "60"), f"rlcluster-*/run_2/{METRICS}"),
        (("plan", "ppo", *flags(LONG), "--seconds", "3600"), "rlcluster-*/rendezvous*"),  # it probes
        (("plan", "ppo", *flags(LONG), "--seconds", "3600"), f"rlcluster-*/run/{METRICS}"),  # it measures
    ],
)
def test_ctrl_c_ends_a_command_and_all_its_processes(arguments: tuple[str, ...], until: str, tmp_path: Path) -> None:
    variables: dict[str, Any] = {**os.environ, "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    own = {"env": variables, "cwd": tmp_path, "start_new_session": True}
    process = start(tmp_path, command(*arguments), until, **own)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: all of the group that it knows
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    _, left = psutil.wait_procs(children, timeout=30)
    assert left == []
    assert list(tmp_path.glob("rlcluster-*")) == []
