"""Runs as their readers see them: whole ones, and what killed, running and foreign ones look like."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rlcluster.plan import forecast
from rlcluster.runs.fields import NAMES
from rlcluster.runs.files import runs_below
from rlcluster.runs.metrics import read_metrics_file
from rlcluster.runs.plan_file import write_plan
from rlcluster.runs.reader import read_run
from rlcluster.runs.status import RunState, acquire_lock
from rlcluster.runs.summary import Processes, processes_without_plan
from rlcluster.settings.loading import load_settings
from rlcluster.system.cores import Core, Cores
from rlcluster.system.errors import UserError

from conftest import evaluation_of, write_run

REWARDS = [float(k % 7) for k in range(20)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", {}, REWARDS)


def metrics_of(run: Path) -> Path:
    (file,) = run.glob("logs/*/metrics.jsonl")
    return file


def everything_in(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_a_finished_run_is_read_whole(run):
    before = everything_in(run)
    recorded = read_run(run)
    assert recorded.game == "coinrun"
    assert recorded.warnings == []
    assert recorded.summary["total_timesteps"] == 20_000
    np.testing.assert_array_equal(recorded.metrics["episode_reward_mean"], REWARDS)
    assert recorded.core_hours[-1] == pytest.approx(20 * 2 / 3600)  # 20 seconds on two cores
    assert everything_in(run) == before


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere: there is no such run directory"):
        read_run(tmp_path / "nowhere")


def test_a_foreign_or_empty_folder_is_named(tmp_path):
    with pytest.raises(UserError, match=r"is not a run directory \(no config.yaml in it\)"):
        read_run(tmp_path)


def test_a_run_of_unknown_settings_is_named_in_one_line(run):
    (run / "config.yaml").write_text("env:\n  flavour: 3\nother: 4\n")
    with pytest.raises(UserError, match="is not a run of this version") as caught:
        read_run(run)
    assert "\n" not in str(caught.value)


def test_a_run_that_has_logged_nothing_is_named(run):
    metrics_of(run).write_text("")
    with pytest.raises(UserError, match="not one update is logged in it"):
        read_run(run)
    metrics_of(run).unlink()
    with pytest.raises(UserError, match="there is no such file"):
        read_run(run)


def test_a_broken_last_line_of_a_killed_run_is_skipped_with_a_warning(run):
    with metrics_of(run).open("a") as file:
        file.write('{"update": 21, "steps_glob')
    recorded = read_run(run)
    assert len(recorded.metrics) == 20
    assert recorded.warnings == ["not readable, and skipped: 1 line of its metrics"]


def test_rewards_that_are_no_numbers_are_ignored_with_a_warning(tmp_path):
    recorded = read_run(write_run(tmp_path / "run", {}, [1.0, math.nan, 3.0]))
    assert math.isnan(recorded.metrics["episode_reward_mean"][1])
    assert recorded.warnings == ["some of its rewards are not numbers; those updates count for nothing in the curves"]


def test_a_running_run_is_read_as_far_as_it_is(tmp_path):
    state = RunState("running", 20_000, 20)._asdict()
    run = write_run(tmp_path / "run", {}, REWARDS, state=state, summary=None)
    lock = acquire_lock(run)
    try:
        recorded = read_run(run)
    finally:
        os.close(lock)
    assert recorded.warnings == ["it is still running: the metrics are those of its first 20 updates"]


def test_a_killed_run_says_so(tmp_path):
    state = RunState("running", 20_000, 20)._asdict()
    recorded = read_run(write_run(tmp_path / "run", {}, REWARDS, state=state))
    assert recorded.failure == "after 20 updates: its process ended without reporting an error"
    assert recorded.warnings == []


def test_the_summary_of_an_unfinished_run_comes_from_its_metrics(tmp_path):
    run = write_run(tmp_path / "run", {}, REWARDS, fps=500.0, summary=None)
    summary = read_run(run).summary
    assert summary["total_timesteps"] == 20_000
    assert summary["total_episodes"] == 200  # ten in each update
    assert summary["duration_seconds"] == pytest.approx(40.0)
    assert summary["average_fps"] == pytest.approx(500.0)
    assert summary["final_fps"] == pytest.approx(500.0)
    assert summary["initial_reward"] == REWARDS[9]  # where the first 100 episodes are full
    assert summary["final_reward"] == REWARDS[-1]
    assert summary["best_reward"] == 6.0
    assert summary["timesteps_per_hour"] == pytest.approx(1_800_000)


def test_a_summary_that_is_older_than_the_metrics_is_not_believed(run):
    old = json.loads((run / "benchmark_metrics.json").read_text()) | {"total_updates": 7, "total_timesteps": 7_000}
    (run / "benchmark_metrics.json").write_text(json.dumps(old))
    assert read_run(run).summary["total_timesteps"] == 20_000


def test_a_half_written_file_is_skipped_with_a_warning(run):
    (run / "benchmark_metrics.json").write_text('{"total_upd')
    (run / "machine.json").write_text("[]")
    recorded = read_run(run)
    assert recorded.machine == {}
    assert recorded.summary["total_updates"] == 20
    assert recorded.warnings == [
        "its machine.json is not readable and was skipped",
        "its benchmark_metrics.json is not readable and was skipped",
    ]


def test_the_evaluation_of_the_furthest_checkpoint_counts(run):
    (run / "evaluation_a.json").write_text(json.dumps(evaluation_of(5.0, steps=10_000)))
    (run / "evaluation_b.json").write_text(json.dumps(evaluation_of(7.0, 8.5, steps=20_000)))
    (run / "evaluation_c.json").write_text('{"results": {"test": 3}}')
    recorded = read_run(run)
    assert recorded.evaluation is not None
    assert recorded.evaluation.results["test"]["reward_mean"] == 7.0
    assert recorded.evaluation.gap == pytest.approx(1.5)
    assert recorded.warnings == ["its evaluation_c.json is not an evaluation and was skipped"]


def test_a_log_of_the_other_format_has_its_time_from_its_updates(tmp_path):
    """DD-PPO's log has t_iter and no elapsed_seconds."""
    file = tmp_path / "cartpole.jsonl"
    file.write_text("".join(json.dumps({"steps_global": 10 * k, "t_iter": 2.0, "fps": 5}) + "\n" for k in (1, 2, 3)))
    metrics = read_metrics_file(file)
    np.testing.assert_array_equal(metrics["elapsed_seconds"], [2, 4, 6])
    np.testing.assert_array_equal(metrics["update"], [1, 2, 3])


@pytest.mark.parametrize(
    ("algorithm", "mode", "world_size", "num_workers", "num_threads", "cores"),
    [
        ("ppo", "sequential", 1, 1, 2, 2),
        ("ppo", "parallel", 4, 4, 2, 8),
        ("ppo", "parallel", 16, 16, 1, 8),  # more than the machine gave: they share
        ("ppo", "distributed", 16, 16, 1, 16),  # on several machines
        ("impala", "parallel", 1, 2, 3, 5),  # actors and the learner's threads
        ("impala", "sequential", 1, 1, 2, 2),
        ("a3c", "parallel", 1, 4, 1, 4),
    ],
)
def test_the_cores_of_a_run_that_an_earlier_version_made(algorithm, mode, world_size, num_workers, num_threads, cores):
    written = {"world_size": world_size, "num_workers": num_workers, "num_threads": num_threads}
    settings = load_settings(algorithm, mode)
    expected = Processes(world_size, num_workers, num_threads, cores)
    assert processes_without_plan(settings, {"cores_allowed": 8}, written) == expected


def test_the_cores_of_a_run_are_those_of_its_plan(tmp_path):
    path = write_run(tmp_path / "run", {"mode": "parallel"}, REWARDS, summary=None)
    settings = load_settings("ppo", "parallel", flags={"parallel.num_workers": 3, "hardware.num_threads": 2})
    plan = forecast(settings, Cores(16, tuple(Core(k, k) for k in range(16))))
    assert plan is not None
    write_plan(path, plan)
    run = read_run(path)
    assert run.cores == 6
    assert (run.summary["world_size"], run.summary["num_workers"], run.summary["num_threads"]) == (3, 3, 2)
    (path / "plan.json").write_text('{"ranks": []}')
    assert "its plan.json is not readable and was skipped" in read_run(path).warnings


def test_the_latest_run_comes_first(tmp_path):
    for k, name in enumerate(("a", "b", "c")):
        file = write_run(tmp_path / name, {}, REWARDS) / "config.yaml"
        os.utime(file, (1000 + (k * 7) % 3, 1000 + (k * 7) % 3))
    assert [path.name for path in runs_below(tmp_path)] == ["c", "b", "a"]


def test_an_unfinished_run_counts_the_cores_that_it_was_given(tmp_path):
    machine = {"cores_allowed": 8, "num_threads": 8}
    assert read_run(write_run(tmp_path / "run", {}, REWARDS, summary=None, machine=machine)).cores == 8


def test_a_summary_of_an_older_version_is_completed_from_the_metrics(run):
    old = json.loads((run / "benchmark_metrics.json").read_text())
    del old["num_workers"], old["peak_memory_gb"]
    (run / "benchmark_metrics.json").write_text(json.dumps(old | {"average_fps": "fast", "total_timesteps": None}))
    summary = read_run(run).summary
    assert (summary["num_workers"], summary["peak_memory_gb"]) == (1, 1.5)
    assert (summary["average_fps"], summary["total_timesteps"]) == (1000.0, 20_000)


def test_an_evaluation_in_another_environment_is_not_the_runs_score(run):
    (run / "evaluation.json").write_text(json.dumps(evaluation_of(5.0)))
    other = evaluation_of(9.0) | {"env": "procgen-maze-v0"}
    (run / "evaluation_maze.json").write_text(json.dumps(other))
    evaluation = read_run(run).evaluation
    assert evaluation is not None
    assert evaluation.results["test"]["reward_mean"] == 5.0


def test_levels_of_two_evaluations_of_one_checkpoint_come_together(run):
    (run / "evaluation_1.json").write_text(json.dumps(evaluation_of(5.0, 6.0)))
    late = evaluation_of(5.5)
    (run / "evaluation_2.json").write_text(json.dumps(late))
    os.utime(run / "evaluation_1.json", (1000, 1000))
    evaluation = read_run(run).evaluation
    assert evaluation is not None
    assert {levels: result["reward_mean"] for levels, result in evaluation.results.items()} == {
        "train": 6.0,
        "test": 5.5,
    }


def test_an_evaluation_of_an_early_checkpoint_is_warned_of(tmp_path):
    recorded = read_run(write_run(tmp_path / "run", {}, REWARDS, evaluation=evaluation_of(5.0, steps=4_000)))
    assert recorded.warnings == ["its evaluation is of a checkpoint at 4,000 steps"]


def test_a_task_is_the_game_and_what_its_environment_has_of_its_own(tmp_path):
    flags = {"env.name": "maze", "env.distribution_mode": "hard", "env.num_levels": "500", "env.seed": "3"}
    assert read_run(write_run(tmp_path / "a", flags, REWARDS)).task == "maze (distribution_mode=hard, num_levels=500)"
    assert read_run(write_run(tmp_path / "b", {"env.name": "CartPole-v1"}, REWARDS)).task == "CartPole-v1"


LINES = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(
        [b"[" * 5000, b'{"steps_global": NaN, "t_iter": 1}', b'{"steps_global": 1e999, "t_iter": 1}', b"null"]
    ),
    st.dictionaries(st.sampled_from(sorted(NAMES)), st.none() | st.booleans() | st.floats() | st.text(max_size=3)).map(
        lambda record: json.dumps({"steps_global": 1, "t_iter": 0.5, **record}).encode()
    ),
)


def test_broken_and_unusual_lines_of_a_long_log_cost_only_themselves(tmp_path):
    run = write_run(tmp_path / "long", {}, [float(k) for k in range(1000)])
    lines = metrics_of(run).read_bytes().splitlines()
    lines[300] = lines[300][:50]  # cut
    lines[700] = b"[1, 2]"
    lines[900] = json.dumps({**json.loads(lines[900]), "episode_reward_mean": None}).encode()
    metrics_of(run).write_bytes(b"\n".join(lines))
    metrics = read_metrics_file(metrics_of(run))
    rewards = [math.nan if k == 900 else float(k) for k in range(1000) if k not in (300, 700)]
    np.testing.assert_array_equal(metrics["episode_reward_mean"], rewards)
    assert metrics.num_broken == 2


@hypothesis_settings(max_examples=60)
@given(lines=st.lists(LINES, max_size=6))
def test_whatever_a_metrics_file_holds_it_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    """Columns of one length, without infinities."""
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(b"\n".join(lines))
    try:
        metrics = read_metrics_file(path)
    except UserError as error:
        assert str(error).isprintable()
        return
    for name in NAMES:
        assert len(metrics[name]) == len(metrics)
        assert not np.isinf(metrics[name]).any()
