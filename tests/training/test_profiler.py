"""A profiled run: the same result, the time of every process attributed, and a slowed rank named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rlcluster.system import cores
from rlcluster.system.phases import PHASES

from conftest import CARTPOLE, COINRUN, flags, metrics, rlcluster, train

UPDATES = {"--total-updates": 5, "--profile": 3, "--profile-updates": 2}
TIMES = ("learner_idle", "actor_idle", "slot_occupancy")  # what arrived when
MIN_ATTRIBUTED = 0.97  # of every rank's time, in updates so long that one switch of processes does not matter
LONG = {**COINRUN, "--num-envs": 16, "--n-steps": 64}
BUSY_LOOP = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: pass"


def figures(run: Path) -> dict[str, Any]:
    return json.loads((run / "profile.json").read_text())


def without_times(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in metrics(run)]


def test_a_short_profile_writes_page_figures_and_trace(tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "figures.json"
    options = {key: value for key, value in CARTPOLE.items() if key != "--checkpoint-updates"}
    result = rlcluster("profile", "ppo", *flags(options), "--updates", "2", "--output", run, "--json", file)
    assert result.returncode == 0, result.stderr
    found = json.loads(file.read_text())
    assert found == figures(run)
    assert found["updates"] == 2
    assert found["finding"] in result.stdout
    assert found["finding"].split(":")[0] in (run / "profile.html").read_text()
    events = json.loads((run / "trace.json").read_text())["traceEvents"]
    names = {event["name"] for event in events if event["ph"] == "X"}
    assert {"update", "rollout", "simulator", "learn", "forward", "backward"} <= names <= set(PHASES)
    assert_nested(events)


def assert_nested(events: list[dict[str, Any]]) -> None:
    """Phases of one process never overlap in part. Times are rounded to a tenth of a microsecond."""
    open_ends: list[float] = []
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"])):
        while open_ends and open_ends[-1] <= event["ts"] + 0.2:
            open_ends.pop()
        assert not open_ends or event["ts"] + event["dur"] <= open_ends[-1] + 0.2
        open_ends.append(event["ts"] + event["dur"])


def test_what_the_command_decides_itself_is_refused_as_a_flag(tmp_path: Path) -> None:
    result = rlcluster("profile", "ppo", "--total-updates", "5", "--output", tmp_path / "run")
    assert result.returncode == 2
    assert "training.total_updates=5: --updates decides how long it runs; leave it out" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        ("ppo", {**LONG, "--mode": "parallel", "--num-workers": 2}),
        ("ppo", {**LONG, "--env": "CartPole-v1", "--network": "mlp", "--n-steps": 256, "--mode": "sequential"}),
        ("impala", {**LONG, "--mode": "parallel", "--num-workers": 2, "--deterministic": "true"}),
        ("a3c", {**LONG, "--mode": "parallel", "--num-workers": 1}),
    ],
)
def test_a_profiled_run_learns_the_same_and_names_what_its_processes_do(
    algorithm: str, more: dict[str, Any], tmp_path: Path
) -> None:
    for name, extra in (("plain", {"--total-updates": 5}), ("profiled", UPDATES)):
        result = train(algorithm, tmp_path / name, {**more, **extra})
        assert result.returncode == 0, result.stderr
    assert without_times(tmp_path / "profiled") == without_times(tmp_path / "plain")
    assert figures(tmp_path / "profiled")["attributed_share_min"] >= MIN_ATTRIBUTED
    assert figures(tmp_path / "profiled")["updates"] == 2


@pytest.mark.slow
def test_what_a_rank_and_its_worker_do_between_updates_has_a_name(tmp_path: Path) -> None:
    """With small updates it is several per cent of their time."""
    result = train("a3c", tmp_path / "run", {**CARTPOLE, **UPDATES, "--mode": "parallel", "--num-workers": 1})
    assert result.returncode == 0, result.stderr
    events = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    rank, worker = ([event["name"] for event in events if event["pid"] == track] for track in (0, 1))
    assert rank.count("checks") == 3 * rank.count("update"), "counting and reports of the engine, and the loop's own"
    assert worker.count("commands") >= worker.count("update") > 0


@pytest.mark.slow
def test_a_run_that_ends_before_its_profile_writes_what_it_has(tmp_path: Path) -> None:
    result = train("ppo", tmp_path / "run", {**CARTPOLE, **UPDATES, "--profile": 5, "--profile-updates": 20})
    assert result.returncode == 0, result.stderr
    assert figures(tmp_path / "run")["updates"] == 1


@contextmanager
def busy(core: int, num_loops: int) -> Iterator[None]:
    """Loops that take most of a core."""
    loops = [
        subprocess.Popen([sys.executable, "-c", BUSY_LOOP, str(core)], stdout=subprocess.PIPE) for _ in range(num_loops)
    ]
    try:
        for loop in loops:
            assert loop.stdout is not None
            loop.stdout.readline()
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.communicate()


@pytest.mark.slow
@pytest.mark.skipif(cores.observe().physical < 2, reason="needs a core for the slowed rank and one for another")
def test_a_rank_that_is_slowed_down_is_the_one_that_the_first_sentence_names(tmp_path: Path) -> None:
    own = cores.observe()
    last = own.physical - 1  # as many ranks as physical cores: each is pinned to its own
    options = {
        **COINRUN,
        **UPDATES,
        **{"--mode": "parallel", "--num-workers": own.physical, "--num-envs": 8 * own.physical, "--n-epochs": 2},
    }
    with busy(own.numbers[last], num_loops=6):
        result = train("ppo", tmp_path / "run", options)
    assert result.returncode == 0, result.stderr
    assert f"of the time is waiting for rank {last} (" in figures(tmp_path / "run")["finding"]
