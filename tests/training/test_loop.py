"""What all engines have in common: an interrupted asynchronous run resumes with its counters."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from conftest import CARTPOLE, command, flags, metrics, start, train

OPTIONS = {**CARTPOLE, "--mode": "parallel", "--num-workers": 2, "--total-updates": 100_000}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "number", "workers_then"), [("impala", signal.SIGTERM, 2), ("a3c", signal.SIGINT, 3)]
)
def test_an_interrupted_run_resumes_with_its_counters(
    algorithm: str, number: signal.Signals, workers_then: int, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = start(run, command("train", algorithm, "--output-dir", run, *flags(OPTIONS)), "checkpoints/*_step_*.pt")
    os.kill(process.pid, number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + number, stderr
    done = metrics(run)[-1]
    more = {"--total-updates": done["update"] + 5, "--num-workers": workers_then}
    resumed = train(algorithm, run, more, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    records = metrics(run)
    assert [record["update"] for record in records] == list(range(1, done["update"] + 6))
    assert records[-1]["steps_global"] > done["steps_global"]
    if algorithm == "impala":  # A3C's workers may have made one update more when they came to rest
        assert records[-1]["steps_global"] == (done["update"] + 5) * 4 * 32
