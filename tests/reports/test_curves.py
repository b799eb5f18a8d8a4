"""Curves from metrics: every episode counts once, and the band is the interval of the mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcluster.reports.curves import MAX_POINTS, Slices, fps_curve, mean_curve, phase_seconds, reward_curve, slices_of
from rlcluster.runs.fields import NAMES
from rlcluster.runs.metrics import Metrics


def metrics_from(**columns: list[float]) -> Metrics:
    length = len(next(iter(columns.values())))
    base = {name: np.full(length, np.nan) for name in NAMES}
    base["update"] = np.arange(1.0, length + 1)
    base["steps_global"] = 100 * base["update"]
    base["elapsed_seconds"] = 2 * base["update"]
    return Metrics(base | {name: np.array(values, float) for name, values in columns.items()}, 0)


@given(st.lists(st.lists(st.integers(-5, 10), max_size=6), min_size=1, max_size=400))
def test_a_point_is_the_mean_of_all_episodes_of_its_slice(episodes):
    metrics = metrics_from(
        episode_count=[len(one) for one in episodes],
        episode_reward_mean=[np.mean(one) if one else np.nan for one in episodes],
        episode_reward_std=[np.std(one) if one else np.nan for one in episodes],
    )
    curve = reward_curve(metrics)
    updates = (curve.steps / 100).astype(int)  # the last update of each slice
    for begin, end, value, low, high in zip(
        [0, *updates[:-1]], updates, curve.values, curve.low, curve.high, strict=True
    ):
        played = [reward for one in episodes[begin:end] for reward in one]
        if not played:
            assert np.isnan(value)
            continue
        assert value == pytest.approx(np.mean(played))
        if len(played) >= 20:
            margin = 1.96 * np.std(played, ddof=1) / np.sqrt(len(played))
            assert (low, high) == pytest.approx((value - margin, value + margin), abs=1e-6)
        else:
            assert np.isnan(low)
    assert curve.per_point * len(curve.values) == pytest.approx(sum(map(len, episodes)))


def test_a_long_run_has_a_limited_number_of_points():
    metrics = metrics_from(
        episode_count=[9.0] * 20_000, episode_reward_mean=[1.0] * 20_000, episode_reward_std=[0.0] * 20_000
    )
    curve = reward_curve(metrics)
    assert len(curve.values) == MAX_POINTS
    assert curve.steps[-1] == 2_000_000  # the last point is the end of the run
    assert curve.seconds[-1] == 40_000


def test_speed_is_total_steps_over_total_seconds_not_a_mean_of_speeds():
    # 100 steps in 1 s, then 300 steps in 9 s: one point of 40 steps/s, not (100 + 33) / 2
    metrics = metrics_from(fps=[100.0, 300 / 9] * 200, t_iter=[1.0, 9.0] * 200)
    assert fps_curve(metrics).values == pytest.approx([40.0] * 100)


def test_the_mean_of_a_column_skips_updates_without_a_value():
    metrics = metrics_from(entropy=[1.0, np.nan, 3.0, np.nan] * 200)
    curve = mean_curve(metrics, "entropy")
    assert curve.values == pytest.approx([2.0] * 100)


def test_the_phases_of_an_update_add_up_to_it():
    metrics = metrics_from(t_iter=[10.0, 20.0], t_rollout=[2.0, 4.0], t_learn=[6.0, 12.0], t_sync=[1.0, 2.0])
    assert phase_seconds(metrics) == pytest.approx({"rollout": 3.0, "learn": 9.0, "sync": 1.5, "idle": 1.5})


def test_a_learner_that_waits_for_its_actors_is_idle():
    metrics = metrics_from(t_iter=[10.0], t_rollout=[2.0], t_learn=[7.0], t_sync=[0.0], learner_idle=[0.2])
    assert phase_seconds(metrics) == pytest.approx({"rollout": 0.0, "learn": 7.0, "sync": 0.0, "idle": 3.0})


# Scores during training


def test_a_score_is_the_mean_over_the_episodes_of_the_last_100_000_steps():
    slices = Slices(*map(np.array, ([1e5, 2e5, 3e5], [1.0, 2.0, 3.0], [10.0, 20.0, 40.0], [1.0, 2.0, 3.0])))
    assert slices.score_at(3e5) == 3.0
    assert slices.score_at(2.5e5) == pytest.approx((10 * 2 + 20 * 3) / 30)  # half of the second and half of the third
    assert slices.score_at(5e4) == 1.0  # of a run that has made no more steps
    unknown = slices._replace(rewards=np.array([np.nan, 2.0, np.nan]))
    assert unknown.score_at(2.5e5) == 2.0
    assert unknown.score_at(1e5) is None


def test_slices_keep_every_episode_and_its_weight():
    metrics = metrics_from(episode_count=[1, 3, 0, 2], episode_reward_mean=[4.0, 8.0, np.nan, 5.0])
    halves = slices_of(metrics, 2)
    assert halves.steps.tolist() == [200, 400]
    assert halves.seconds.tolist() == [4, 8]
    assert halves.episodes.tolist() == [4, 2]
    assert halves.rewards.tolist() == [7.0, 5.0]
    each = slices_of(metrics)
    assert each.episodes.tolist() == [1, 3, 0, 2]
    assert np.isnan(each.rewards[2])
