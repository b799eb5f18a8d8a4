"""Callbacks of runs with several ranks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import rlcluster


class Sleeper:
    """Takes longer than the time-out, in an update and at the end."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_update(self, record: dict[str, Any]) -> None:
        if not self.events:
            self._sleep("on_update")

    def on_end(self, summary: dict[str, Any]) -> None:
        self._sleep("on_end")

    def _sleep(self, event: str) -> None:
        self.events.append(event)
        time.sleep(8)


@pytest.mark.slow
def test_all_ranks_wait_for_a_callback_that_takes_longer_than_the_time_out(tmp_path: Path) -> None:
    sleeper = Sleeper()
    settings: dict[str, Any] = {"env": "CartPole-v1", "num_envs": 4, "n_steps": 32, "num_threads": 1}
    run = rlcluster.train(
        "ppo",
        output_dir=tmp_path / "run",
        callbacks=[sleeper],
        **{**settings, "total_updates": 2, "mode": "parallel", "num_workers": 2, "timeout_seconds": 5},
    )
    assert run.status == "finished"
    assert sleeper.events == ["on_update", "on_end"]
