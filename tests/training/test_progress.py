"""Console output of a run."""

import io
import time

import pytest

from rlcluster.runs.status import RunState, write_state
from rlcluster.system.console import clock_text
from rlcluster.system.errors import UserError
from rlcluster.training.progress import (
    LiveReporter,
    PlainReporter,
    make_reporter,
    training_summary,
    update_line,
)

RECORD = {
    "update": 12,
    "elapsed_seconds": 32.0,
    "steps_global": 49_152,
    "fps": 1523.4,
    "episode_reward_recent": 6.4249,
    "episode_reward_recent_std": 1.2345,
}
NO_EPISODE = {"episode_reward_recent": None, "episode_reward_recent_std": None}

# The block that users know from the first scripts.
SUMMARY = {
    "duration_seconds": 3600.0,
    "total_timesteps": 5_471_232,
    "total_updates": 1342,
    "total_episodes": 5123,
    "average_fps": 1519.8,
    "final_fps": 1518.2,
    "initial_reward": 2.45,
    "final_reward": 7.23,
    "best_reward": 8.91,
    "peak_memory_gb": 2.344,
}
SUMMARY_TEXT = """\
======================================================================
TRAINING SUMMARY
======================================================================
Duration: 1.00 hours
Total Timesteps: 5,471,232
Total Updates: 1,342
Average FPS: 1,520
Final FPS: 1,518

Performance:
  Initial Reward: 2.45 (first 100 episodes)
  Final Reward: 7.23 (last 100 episodes)
  Best Reward: 8.91 (best 100 in a row)

Resource Usage:
  Peak Memory: 2.34 GB

Results saved to: ./benchmarks/sequential_1h
======================================================================"""


class HandClock:
    """Replaces time.perf_counter; moves only on demand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = HandClock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# Text


def test_an_update_is_one_line():
    assert update_line(RECORD) == "Update 12 | Step 49,152 | FPS: 1523 | Reward: 6.42 ± 1.23"


def test_before_the_first_episode_there_is_no_reward():
    assert update_line({**RECORD, **NO_EPISODE}) == "Update 12 | Step 49,152 | FPS: 1523 | Reward: -"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0:00:00"),
        (0.4, "0:00:00"),
        (59.4, "0:00:59"),
        (59.6, "0:01:00"),
        (61, "0:01:01"),
        (3599.9, "1:00:00"),
        (3661, "1:01:01"),
        (100 * 3600, "100:00:00"),
    ],
)
def test_a_time_is_shown_in_hours_minutes_and_seconds(seconds, text):
    assert clock_text(seconds) == text


def test_the_summary_has_the_shape_that_users_know():
    assert training_summary(SUMMARY, "./benchmarks/sequential_1h") == SUMMARY_TEXT


@pytest.mark.parametrize(("episodes", "said"), [(100, "100 episodes"), (7, "7 episodes"), (1, "1 episode")])
def test_a_summary_says_over_how_many_episodes_its_rewards_are(episodes, said):
    lines = training_summary({**SUMMARY, "total_episodes": episodes}, "runs/a").splitlines()
    assert lines[10:13] == [
        f"  Initial Reward: 2.45 (first {said})",
        f"  Final Reward: 7.23 (last {said})",
        f"  Best Reward: 8.91 (best {episodes} in a row)",
    ]


def test_a_summary_without_episodes_has_dashes():
    nothing = {
        "total_episodes": 0,
        "initial_reward": None,
        "final_reward": None,
        "best_reward": None,
        "final_fps": None,
    }
    lines = training_summary({**SUMMARY, **nothing}, "runs/a").splitlines()
    assert "Final FPS: -" in lines
    assert lines[10:13] == ["  Initial Reward: -", "  Final Reward: -", "  Best Reward: -"]


@pytest.mark.parametrize(("seconds", "text"), [(12.34, "12.3 seconds"), (359.9, "359.9 seconds"), (360, "0.10 hours")])
def test_a_short_run_is_shown_in_seconds(seconds, text):
    lines = training_summary({**SUMMARY, "duration_seconds": seconds}, "runs/a").splitlines()
    assert lines[3] == f"Duration: {text}"


# Reporters


def test_a_plain_reporter_prints_the_first_and_the_last_update_and_one_every_ten_seconds(clock):
    stream = io.StringIO()
    with PlainReporter(stream) as reporter:
        for seconds, update in [(0, 1), (4, 2), (9.9, 3), (10, 4), (15, 5), (16, 6)]:
            clock.now = 1000.0 + seconds
            reporter.update({**RECORD, "update": update, "elapsed_seconds": seconds}, progress=update / 8)
    assert stream.getvalue().splitlines() == [
        " 12% | Update 1 | Step 49,152 | FPS: 1523 | Reward: 6.42 ± 1.23 | ETA: -",
        " 50% | Update 4 | Step 49,152 | FPS: 1523 | Reward: 6.42 ± 1.23 | ETA: 0:00:13",  # 10 s / 3 * 4
        " 75% | Update 6 | Step 49,152 | FPS: 1523 | Reward: 6.42 ± 1.23 | ETA: 0:00:06",  # 16 s / 5 * 2
    ]


def test_a_plain_reporter_prints_the_last_update_once(clock):
    stream = io.StringIO()
    with PlainReporter(stream) as reporter:
        reporter.update(RECORD, progress=1.0)
    assert stream.getvalue() == "100% | Update 12 | Step 49,152 | FPS: 1523 | Reward: 6.42 ± 1.23 | ETA: 0:00:00\n"


def test_a_plain_reporter_prints_the_last_update_before_an_error(clock):
    stream = io.StringIO()
    with pytest.raises(ZeroDivisionError), PlainReporter(stream) as reporter:
        reporter.update(RECORD, progress=0.1)
        reporter.update({**RECORD, **NO_EPISODE, "update": 13}, progress=0.2)
        raise ZeroDivisionError
    assert stream.getvalue().splitlines()[-1].startswith(" 20% | Update 13 | Step 49,152 | FPS: 1523 | Reward: - |")


def test_a_run_without_updates_prints_nothing():
    stream = io.StringIO()
    with PlainReporter(stream):
        pass
    assert stream.getvalue() == ""


def test_a_terminal_gets_the_live_view_and_everything_else_plain_lines(tmp_path):
    assert isinstance(make_reporter("PPO", tmp_path, Terminal()), LiveReporter)
    assert isinstance(make_reporter("PPO", tmp_path, io.StringIO()), PlainReporter)


@pytest.fixture
def screen(monkeypatch):
    """Of 80 x 24."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setattr("rich._console", None)  # an earlier console may have another width


def test_a_live_reporter_shows_the_state_of_the_run(capsys, screen, tmp_path):
    with LiveReporter("PPO_Sequential on coinrun", tmp_path) as reporter:
        reporter.update({**RECORD, "elapsed_seconds": 16.0}, progress=0.5)
        reporter.update({**RECORD, "update": 13}, progress=1.0)
    shown = capsys.readouterr().out
    assert "100%  elapsed 0:00:32  ETA 0:00:00" in shown
    assert "PPO_Sequential on coinrun" in shown
    assert "reward 6.42 ± 1.23" in shown


@pytest.mark.parametrize(
    ("is_finished", "status", "done"),
    [(True, "finished", "100%  elapsed 0:00:32  ETA 0:00:00"), (False, "preempted", "50%  elapsed 0:00:32  ETA -")],
)
def test_the_last_frame_shows_the_final_status_and_checkpoint(capsys, screen, tmp_path, is_finished, status, done):
    with LiveReporter("PPO_Sequential on coinrun", tmp_path) as reporter:
        reporter.update(RECORD, progress=0.5)  # a callback may end a run before its budget is spent
        write_state(tmp_path, RunState("running", 49_152, 12))  # by its last checkpoint
        reporter.conclude(is_finished)
    shown = capsys.readouterr().out
    assert f"PPO_Sequential on coinrun   {status}" in shown
    assert done in shown
    assert "checkpoint step 49,152, 0:00:00 ago" in shown


def test_the_last_frame_of_a_failed_run_says_why(capsys, screen, tmp_path):
    with pytest.raises(UserError), LiveReporter("PPO_Sequential on coinrun", tmp_path) as reporter:
        reporter.update(RECORD, progress=0.5)
        raise UserError("the disk is full")
    shown = capsys.readouterr().out
    assert "PPO_Sequential on coinrun   failed: the disk is full" in shown
    assert "ETA -" in shown
