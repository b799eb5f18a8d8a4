"""Procgen's published ranges and scores: checked against the publications, and applied only where they hold."""

from __future__ import annotations

import pytest

from rlcluster.reports.reference import GAMES, STEPS, openai_ppo, ranges, score_range
from rlcluster.settings.games import PROCGEN_GAMES
from rlcluster.settings.schema import EnvSettings


def test_every_game_has_ranges_and_scores():
    assert tuple(GAMES) == PROCGEN_GAMES
    for facts in GAMES.values():
        assert facts.easy.low < facts.easy.high
        assert facts.hard.low < facts.hard.high
        assert len(facts.train) == len(facts.test) == len(STEPS)


def test_the_mean_normalised_scores_are_the_published_ones():
    # train-procgen's mean over the 16 games, easy, at 0.5, 1, 2, 5, 10 and 25 million steps
    for levels, expected in (
        ("train", (0.071, 0.138, 0.202, 0.327, 0.451, 0.598)),
        ("test", (0.054, 0.101, 0.141, 0.208, 0.266, 0.354)),
    ):
        for k, value in enumerate(expected):
            normalised = [
                (getattr(one, levels)[k] - one.easy.low) / (one.easy.high - one.easy.low) for one in GAMES.values()
            ]
            assert sum(normalised) / len(normalised) == pytest.approx(value, abs=6e-4)


def test_ranges_are_those_of_the_distribution_mode():
    assert score_range(EnvSettings(name="procgen-bigfish-v0")) == (1, 40)
    assert score_range(EnvSettings(name="bigfish", distribution_mode="hard")) == (0, 40)
    assert score_range(EnvSettings(name="maze", distribution_mode="memory")) is None
    assert score_range(EnvSettings(name="CartPole-v1")) is None


def test_between_the_published_points_the_score_is_interpolated():
    coinrun = EnvSettings(name="coinrun")
    assert openai_ppo(coinrun, 1e6, "train") == 7.59
    assert openai_ppo(coinrun, 1.5e6, "train") == pytest.approx((7.59 + 8.49) / 2)
    assert openai_ppo(coinrun, 1.2e6, "test") == pytest.approx(7.12 + 0.2 * (7.74 - 7.12))


def test_there_is_no_score_outside_the_published_points_or_for_other_settings():
    assert openai_ppo(EnvSettings(name="coinrun"), 0.49e6, "train") is None
    assert openai_ppo(EnvSettings(name="coinrun"), 26e6, "train") is None
    assert openai_ppo(EnvSettings(name="coinrun"), 25_001_984, "train") == 9.54  # the last update crosses the budget
    assert openai_ppo(EnvSettings(name="coinrun", use_backgrounds=False), 1e6, "train") is None
    assert openai_ppo(EnvSettings(name="coinrun", num_levels=500), 1e6, "train") is None
    assert openai_ppo(EnvSettings(name="coinrun", distribution_mode="hard"), 1e6, "train") is None
    assert openai_ppo(EnvSettings(name="CartPole-v1"), 1e6, "train") is None


def test_a_user_defined_range_is_found_under_any_spelling_of_the_game():
    assert ranges([("procgen:procgen-jumper-v0", (3.0, 10.0))]) == {"jumper": (3.0, 10.0)}
