"""A minute of `make stress`: runs that are harmed at random lose nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STRESS = Path(__file__).parents[1] / "benchmarks" / "stress.py"


@pytest.mark.slow
def test_a_minute_of_random_harm_is_survived() -> None:
    command = [sys.executable, str(STRESS), "--minutes", "1", "--seed", "1"]  # the same harm for everybody
    result = subprocess.run(command, capture_output=True, text=True, timeout=590, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("seed 1\n")
    assert "rounds survived" in result.stdout.splitlines()[-1]
