"""Episode statistics: every finished episode counts."""

from __future__ import annotations

import pytest
import torch

from rlcluster.runs.episodes import Episode, EpisodeHistory


def rows(*rewards: float) -> list[Episode]:
    return [Episode(t, 0, float(reward), 10 * (t + 1)) for t, reward in enumerate(rewards)]


def test_mean_deviation_and_length_by_hand() -> None:
    summary = EpisodeHistory().add(rows(1, 3))
    assert summary == (2, 2.0, 1.0, 15.0)


def test_an_update_without_episodes_has_no_mean() -> None:
    assert EpisodeHistory().add([]) == (0, None, None, None)


def test_initial_recent_and_best_are_means_over_a_hundred_episodes() -> None:
    history = EpisodeHistory()
    history.add(rows(*[1.0] * 100))
    history.add(rows(*[5.0] * 100))
    history.add(rows(*[2.0] * 50))
    assert history.initial_reward == 1.0
    assert history.best_reward == 5.0
    assert history.total == 250
    assert history.recent_reward() == pytest.approx(3.5)
    assert history.recent_std() == pytest.approx(1.5)


def test_the_order_of_the_rows_does_not_matter() -> None:
    episodes = [Episode(0, 1, 7.0, 1), Episode(0, 0, 5.0, 1), Episode(1, 0, 9.0, 1)]
    one, other = EpisodeHistory(), EpisodeHistory()
    one.add(episodes)
    other.add([episodes[2], episodes[0], episodes[1]])
    assert one.state()["rewards"] == other.state()["rewards"] == [5.0, 7.0, 9.0]


def test_a_restored_history_continues_exactly() -> None:
    one, other = EpisodeHistory(), EpisodeHistory()
    one.add(rows(*range(130)))
    other.restore(one.state())
    one.add(rows(1, 2))
    other.add(rows(1, 2))
    assert (one.initial_reward, one.best_reward, one.recent_reward()) == (
        other.initial_reward,
        other.best_reward,
        other.recent_reward(),
    )


def test_rewards_that_an_earlier_version_kept_as_a_tensor_are_restored() -> None:
    history = EpisodeHistory()
    kept = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)
    history.restore({"rewards": kept, "total": 3, "initial_reward": 3.0, "best_reward": 3.0})
    assert history.state()["rewards"] == [1.0, 2.0, 6.0]
    assert history.recent_reward() == 3.0
