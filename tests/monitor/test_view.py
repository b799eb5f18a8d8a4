"""The live view: everything in 80 x 24, fields that drop by importance, one line of 40 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rlcluster.monitor.history import REWARDS, History, RemainingTime, Snapshot
from rlcluster.monitor.table import table
from rlcluster.monitor.view import PLAIN, Field, fitted, short, sparkline, view
from rlcluster.runs.status import Saved

RECORD: dict[str, Any] = {
    **{"update": 12, "steps_global": 49_152, "fps": 1523.4, "elapsed_seconds": 32.0, "world_size": 2},
    **{"t_iter": 2.0, "t_rollout": 0.7, "t_learn": 1.1, "t_sync": 0.12},
    **{"entropy": 2.31, "approx_kl": 0.0102, "explained_variance": 0.62, "action_information": 0.31},
    **{"episode_reward_recent": 6.4249, "episode_reward_recent_std": 1.2345, "episode_length_mean": 160.0},
    **{"memory_gb": 1.2, "peak_memory_gb": 1.4, "rank_fps_min": 700.0, "rank_fps_max": 810.0, "rank_slowest": 1},
}
SNAPSHOT = Snapshot(
    "PPO_Parallel on coinrun", "running", 0.25, RECORD, [1.0, 2.0, 3.0, 4.0, 5.0], 96.0, Saved(40_960, 130.0)
)


def test_80_by_24_shows_everything():
    assert view(SNAPSHOT, 80, 24) == [
        "PPO_Parallel on coinrun   running",
        "███████████" + "░" * 34 + "  25%  elapsed 0:00:32  ETA 0:01:36",
        "reward 6.42 ± 1.23   ▁▃▅▆█   episode length 160",
        "steps 49,152   steps/s 1,523 now, 1,536 mean   update 12",
        "entropy 2.31   KL 0.0102   explained variance 0.62   action information 0.31",
        "rollout 35%   learn 55%   sync 6%   idle 4%",
        "slowest: rank 1, 700 steps/s   fastest: 810 steps/s",
        "memory 1.20 GB, peak 1.40   checkpoint step 40,960, 0:02:10 ago",
    ]


@pytest.mark.parametrize("height", [1, 2, 5, 10, 24])
def test_a_view_never_exceeds_its_terminal(height):
    for width in range(20, 121):
        lines = view(SNAPSHOT, width, height)
        assert 1 <= len(lines) <= height
        assert max(map(len, lines)) <= width


@pytest.mark.parametrize(("width", "height"), [(60, 24), (60, 22), (49, 22), (49, 14), (40, 18), (30, 24)])
def test_a_narrow_terminal_of_enough_height_shows_everything(width, height):
    shown = " ".join(" ".join(view(SNAPSHOT, width, height)).split())
    for text in (
        *("PPO_Parallel on coinrun", "running", "25%", "elapsed 0:00:32", "ETA 0:01:36"),
        *("reward 6.42 ± 1.23", "▁▃▅▆█", "episode length 160"),
        *("steps 49,152", "steps/s 1,523 now, 1,536 mean", "update 12"),
        *("entropy 2.31", "KL 0.0102", "explained variance 0.62", "action information 0.31"),
        *("rollout 35%", "learn 55%", "sync 6%", "idle 4%", "slowest: rank 1, 700 steps/s", "fastest: 810 steps/s"),
        *("memory 1.20 GB, peak 1.40", "checkpoint step 40,960, 0:02:10 ago"),
    ):
        assert text in shown


def test_lines_that_are_left_go_to_the_most_important_fields():
    assert view(SNAPSHOT, 40, 10) == [
        "PPO_Parallel on coinrun   running",
        "█████" + "░" * 17 + "  25%  ETA 0:01:36",
        "reward 6.42 ± 1.23   episode length 160",
        "steps 49,152",
        "steps/s 1,523 now, 1,536 mean",
        "entropy 2.31   KL 0.0102",
        "rollout 35%   learn 55%   sync 6%",
        "slowest: rank 1, 700 steps/s",
        "fastest: 810 steps/s",
        "checkpoint step 40,960, 0:02:10 ago",
    ]


def test_a_long_reason_is_broken_between_its_words():
    failed = SNAPSHOT._replace(status="failed: rank 3: the environment did not answer for 60 seconds")
    assert view(failed, 40, 24)[:3] == [
        "PPO_Parallel on coinrun",
        "failed: rank 3: the environment did not",
        "answer for 60 seconds",
    ]


def test_one_line_of_40_columns_keeps_progress_reward_and_eta():
    assert view(SNAPSHOT, 40, 1) == [" 25% 1523/s reward 6.42 ETA 0:01:36"]
    assert view(SNAPSHOT, 45, 1) == [" 25% 49.2k 1523/s reward 6.42 ETA 0:01:36"]
    assert view(SNAPSHOT, 20, 1) == [" 25% reward 6.42"]


def test_a_low_terminal_keeps_the_bar_the_reward_and_the_speed():
    bar, reward, speed = view(SNAPSHOT, 80, 3)
    assert "ETA 0:01:36" in bar
    assert reward.startswith("reward")
    assert speed.startswith("steps")
    assert view(SNAPSHOT, 40, 3)[-1] == "steps/s 1,523 now, 1,536 mean"


def test_the_least_important_field_goes_first():
    fields = [Field(2, "cc"), Field(0, "aa"), Field(1, "bb")]
    assert fitted(fields, 8, " ") == "cc aa bb"
    assert fitted(fields, 7, " ") == "aa bb"
    assert fitted(fields, 4, " ") == "aa"
    assert fitted(fields, 1, " ") == "a"


def test_ranks_of_equal_speed_are_not_shown():
    equal = SNAPSHOT._replace(record={**RECORD, "rank_fps_max": 701.0})
    assert not any("slowest" in line for line in view(equal, 80, 24))


def test_a_learner_that_waits_for_actors_is_idle():
    impala = SNAPSHOT._replace(record={**RECORD, "learner_idle": 0.35})
    assert "rollout 0%   learn 55%   sync 6%   idle 39%" in view(impala, 80, 24)


def test_before_the_first_update_the_view_says_so():
    waiting = History("PPO").snapshot("starting")
    assert view(waiting, 80, 24)[-1] == "waiting for the first update"
    assert view(waiting, 40, 1) == ["  0% - -/s reward - ETA - starting"]


def test_a_sparkline_shows_the_means_of_equal_slices():
    assert sparkline([0.0, 0.0, 7.0, 7.0], 2) == "▁█"
    assert sparkline([3.0], 10) == "▁"
    assert sparkline([], 10) == ""
    assert sparkline([0.0, 3.0, 6.0], 3, PLAIN) == "_=#"


def test_large_numbers_are_short():
    assert [short(number) for number in (None, 950, 9999, 49_152, 1_250_000, 25e9)] == [
        *("-", "950", "9999", "49.2k", "1.25M", "25G")
    ]


def test_the_remaining_time_follows_the_progress_of_the_last_updates():
    remaining = RemainingTime()
    assert remaining.seconds(10.0, 0.25) is None  # one update gives no speed
    assert remaining.seconds(20.0, 0.5) == 20.0  # 25 % in 10 seconds, 50 % to go
    assert remaining.seconds(50.0, 0.75) == 20.0  # 50 % in 40 seconds, 25 % to go
    assert remaining.seconds(60.0, 1.0) == 0.0


def test_without_progress_there_is_no_estimate():
    remaining = RemainingTime()
    remaining.seconds(10.0, 0.5)
    assert remaining.seconds(20.0, 0.5) is None


def test_a_long_history_keeps_its_whole_course():
    history = History("PPO")
    for k in range(10 * REWARDS):
        history.add({**RECORD, "episode_reward_recent": float(k)}, 0.0)
    rewards = history.snapshot().rewards
    assert len(rewards) < REWARDS
    assert rewards[0] < 20
    assert rewards[-1] > 10 * REWARDS - 40


def test_an_update_without_an_episode_keeps_the_last_known_length():
    history = History("PPO")
    history.add(RECORD, 0.1)
    history.add({**RECORD, "episode_length_mean": None}, 0.2)
    assert history.snapshot().record["episode_length_mean"] == 160.0


def test_several_runs_are_a_table_whose_columns_drop_by_importance():
    runs = [SNAPSHOT, SNAPSHOT._replace(title="other", status="failed: out of memory", record=None)]
    heading, first, second = table(runs, 120)
    assert heading.split() == ["run", "status", "done", "steps", "steps/s", "reward", "entropy", "ETA"]
    assert first.split()[-6:] == ["25%", "49.2k", "1,523", "6.42", "2.31", "0:01:36"]
    assert second.split() == ["other", "failed", "25%", *"----", "0:01:36"]
    narrow = table(runs, 40)
    assert narrow[0].split() == ["run", "done", "reward", "ETA"]
    assert max(map(len, narrow)) <= 40


def seeds(name: str, statuses: Sequence[str]) -> list[Snapshot]:
    return [SNAPSHOT._replace(title=f"{name}_seed{k}", status=status) for k, status in enumerate(statuses, 1)]


def test_the_reason_of_one_failed_run_takes_no_column_from_the_others():
    failed = "failed: out of memory (rank 1)"
    heading, first, _, last = table(seeds("a3c_parallel_coinrun", ["running", "running", failed]), 80)
    assert heading.split() == ["run", "status", "done", "steps", "steps/s", "reward", "ETA"]
    assert first.split()[:2] == ["a3c_parallel_coinrun_seed1", "running"]
    assert last.split()[:2] == ["a3c_parallel_coinrun_seed3", "failed"]
    of_a_suite = table(seeds("five_methods/ppo_parallel_coinrun", ["running", "silent for 0:01:30"]), 80)
    assert of_a_suite[0].split() == ["run", "status", "done", "steps", "steps/s", "reward", "ETA"]
    assert of_a_suite[2].split()[:2] == ["five_methods/pp…el_coinrun_seed2", "silent"]


def test_long_names_lose_their_middle_so_that_the_seeds_stay():
    runs = seeds("ppo_parallel_coinrun", 3 * ["running"])
    assert [line.split()[0] for line in table(runs, 40)] == [
        *("run", "ppo_para…un_seed1", "ppo_para…un_seed2", "ppo_para…un_seed3")
    ]
    assert table(runs, 40, PLAIN)[1].startswith("ppo_para~un_seed1  ")
    assert {len(line) for line in table(runs, 40)} == {40}


def test_no_number_is_minus_zero():
    lines = view(SNAPSHOT._replace(record={**RECORD, "explained_variance": -0.001}), 80, 24)
    assert any("explained variance 0.00 " in line for line in lines)
