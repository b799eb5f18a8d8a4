"""Ranks of a launcher whose environments all hang: none of them waits for another, so each watches itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlcluster.runs.status import read_state

from conftest import CARTPOLE, flags

HANGING = """
import time
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Hanging(CartPoleEnv):
    num_steps = 0

    def step(self, action):
        self.num_steps += 1
        if self.num_steps > 100:
            time.sleep(1000)
        return super().step(action)

gymnasium.register("Hanging-v0", Hanging, max_episode_steps=50)
"""
OPTIONS = {**CARTPOLE, "--env": "hanging:Hanging-v0", "--timeout-seconds": 6, "--total-updates": 100_000}


@pytest.mark.slow
def test_ranks_of_torchrun_that_all_hang_in_a_step_end_within_the_time_out(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    run = tmp_path / "run"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    program = ["-m", "rlcluster", "train", "ppo", "--mode", "distributed", "--output-dir", str(run), *flags(OPTIONS)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(
        [*launch, *program], capture_output=True, text=True, timeout=240, check=False, env=environment
    )
    assert result.returncode == 1  # torchrun's, whatever the reason
    said = r"rlcluster: error: rank [01]: an environment did not finish its step for parallel\.timeout_seconds=6; raise"
    assert re.search(said, result.stderr), result.stderr
    assert re.search(r"exitcode\s*:\s*71", result.stderr), result.stderr
    state = read_state(run)
    assert state is not None
    assert state.state == "failed"
    assert json.loads((run / "run_state.json").read_text())["state"] == "failed", "recorded, not only found out"
