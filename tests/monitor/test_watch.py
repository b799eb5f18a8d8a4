"""`rlcluster watch`: reads run directories as they grow, and changes nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rlcluster.cli import main
from rlcluster.monitor.watch import WatchedRun, drawn
from rlcluster.runs.metrics import MetricsTail
from rlcluster.runs.status import RunState

from conftest import record_of, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Half of its 10,000 steps are done."""
    state = RunState("running", 3000, 3)._asdict()
    return write_run(tmp_path / "half", {"training.total_timesteps": "10000"}, [2.0, 3.0, 4.0, 5.0, 6.0], state=state)


def log_of(run: Path) -> Path:
    (log,) = run.glob("logs/*/metrics.jsonl")
    return log


def test_a_run_is_followed_as_it_grows(run):
    watched = WatchedRun(run, "half")
    first = watched.poll()
    assert (first.progress, first.record["update"], first.saved.steps_global) == (0.5, 5, 3000)
    assert first.remaining_seconds == pytest.approx(5.0)  # 1,000 steps in a second
    with log_of(run).open("a") as log:
        log.write(json.dumps(record_of(6, 7.0, 1000.0)) + "\n")
        log.write('{"update": 7, "steps')  # not complete yet
    second = watched.poll()
    assert (second.progress, second.record["update"]) == (0.6, 6)
    assert second.rewards == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


def test_a_log_that_a_resumed_run_rewrites_is_read_again(run):
    tail = MetricsTail(lambda: log_of(run))
    assert (len(tail.read()[0]), tail.read()) == (5, ([], False))
    lines = log_of(run).read_text().splitlines(keepends=True)
    other = run / "other"
    other.write_text("".join(lines[:3]))
    other.replace(log_of(run))
    records, has_restarted = tail.read()
    assert ([record["update"] for record in records], has_restarted) == ([1, 2, 3], True)


def test_a_run_that_has_not_logged_for_long_is_called_silent(run):
    assert WatchedRun(run, "half").poll().status == "running"
    long_ago = log_of(run).stat().st_mtime - 90
    os.utime(log_of(run), (long_ago, long_ago))
    assert WatchedRun(run, "half").poll().status.startswith("silent for 0:01:3")


def test_watch_prints_a_run_that_has_ended_and_exits(tmp_path, capsys):
    state = RunState("failed", 3000, 3, "out of memory")._asdict()
    run = write_run(tmp_path / "lost", {"training.total_timesteps": "10000"}, [2.0, 3.0], state=state)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert main(["watch", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "lost   failed: out of memory" in shown
    assert "20%" in shown
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_watch_once_shows_several_runs_as_a_table(run, tmp_path, capsys):
    other = write_run(tmp_path / "whole", {"training.total_timesteps": "2000"}, [2.0, 3.0])
    assert main(["watch", "--once", str(run), str(other)]) == 0
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.startswith("run")
    assert (first.split()[:3], second.split()[:3]) == (["half", "running", "50%"], ["whole", "finished", "100%"])


def test_of_several_paths_those_that_are_no_runs_are_skipped_and_suites_are_looked_into(run, tmp_path, capsys):
    for cell in ("ppo_seed2", "ppo_seed1"):
        write_run(tmp_path / "quick" / "runs" / cell, {}, [2.0])
    (tmp_path / "comparison").mkdir()
    (tmp_path / "notes.txt").touch()
    paths = sorted(path for path in tmp_path.iterdir())  # as a shell lists them
    assert main(["watch", "--once", *map(str, paths)]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["half", "quick/ppo_seed1", "quick/ppo_seed2"]
    assert err == (
        f"warning: skipped, neither runs nor suites with runs: {tmp_path / 'comparison'}, {tmp_path / 'notes.txt'}\n"
    )


def test_one_path_that_is_no_run_is_an_error_as_are_several_of_them(tmp_path, capsys):
    (tmp_path / "comparison").mkdir()
    assert main(["watch", "--once", str(tmp_path / "comparison")]) != 0
    assert "comparison" in capsys.readouterr().err
    assert main(["watch", "--once", str(tmp_path / "comparison"), str(tmp_path / "other")]) != 0
    assert f"watch: neither runs nor suites with runs: {tmp_path / 'comparison'}, {tmp_path / 'other'};" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("state", "progress", "remaining"), [("finished", 1.0, 0.0), ("failed", 0.2, None), ("preempted", 0.2, None)]
)
def test_a_run_that_has_ended_has_no_time_to_go(tmp_path, state, progress, remaining):
    ended = RunState(state, 2000, 2, "its reward reached 8" if state == "finished" else "SIGTERM")._asdict()
    run = write_run(tmp_path / "ended", {"training.total_timesteps": "10000"}, [2.0, 3.0], state=ended)
    snapshot = WatchedRun(run, "ended").poll()
    assert (snapshot.progress, snapshot.remaining_seconds) == (progress, remaining)


def test_runs_that_a_low_terminal_cannot_show_are_counted(run):
    snapshots = [WatchedRun(run, f"run{k}").poll() for k in range(10)]
    lines = drawn(snapshots, 80, 5)
    assert [line.split()[0] for line in lines] == ["run", "run0", "run1", "run2", "and"]
    assert lines[-1] == "and 7 more; a higher terminal shows them"
    assert len(drawn(snapshots, 80, 11)) == 11


def test_watch_without_runs_takes_the_latest(run, tmp_path, monkeypatch, capsys):
    write_run(tmp_path / "runs" / "newest", {}, [2.0])
    monkeypatch.chdir(tmp_path)
    assert main(["watch", "--once"]) == 0
    assert "newest   finished" in capsys.readouterr().out


def test_watch_without_any_run_says_what_to_give(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["watch"]) != 0
    assert "watch: no run below runs/; give a run directory" in capsys.readouterr().err
