"""Benchmark statistics: by hand on small cases, and against rliable on random ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rliable import library, metrics

from rlcluster.reports import statistics
from rlcluster.reports.statistics import (
    AGGREGATES,
    Estimate,
    estimate,
    first_reach,
    has_interval,
    iqm,
    mean,
    mean_until,
    median,
    normalise,
    optimality_gap,
    performance_profile,
    permutation_p_value,
    probability_of_improvement,
    resample,
    verdict,
)

TWO_GAMES = [np.array([0.0, 1.0, 2.0, 5.0]), np.array([0.2, 0.4])]


def scores(*games: list[float]) -> dict[str, np.ndarray]:
    return {f"game{k}": np.array(values) for k, values in enumerate(games)}


def test_a_score_is_normalised_by_the_games_range():
    assert normalise(7.5, 5, 10) == 0.5
    assert normalise(-1.5, -1.5, 32.4) == 0.0
    assert normalise(12, 5, 10) == pytest.approx(1.4)  # not clipped


def test_the_aggregates_by_hand():
    # a quarter of six scores, rounded down, is one at each end
    assert iqm(TWO_GAMES) == pytest.approx((0.2 + 0.4 + 1.0 + 2.0) / 4)
    assert mean(TWO_GAMES) == pytest.approx((2.0 + 0.3) / 2)  # every game has the same weight, however many its runs
    assert median(TWO_GAMES) == pytest.approx((2.0 + 0.3) / 2)
    assert median([*TWO_GAMES, np.array([9.0])]) == pytest.approx(2.0)
    # the clipped scores are 0, .2, .4 and three ones
    assert optimality_gap(TWO_GAMES) == pytest.approx(1 - 3.6 / 6)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 10**6))
def test_the_aggregates_match_rliable(num_runs, num_games, seed):
    matrix = np.random.default_rng(seed).normal(0.5, 0.5, (num_runs, num_games))
    games = list(matrix.T)
    assert iqm(games) == pytest.approx(metrics.aggregate_iqm(matrix))
    assert mean(games) == pytest.approx(metrics.aggregate_mean(matrix))
    assert median(games) == pytest.approx(metrics.aggregate_median(matrix))
    assert optimality_gap(games) == pytest.approx(metrics.aggregate_optimality_gap(matrix))


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.integers(0, 10**6))
def test_the_probability_of_improvement_matches_rliable(num_first, num_second, num_games, seed):
    draws = np.random.default_rng(seed)
    first = draws.integers(0, 4, (num_first, num_games)).astype(float)  # with ties
    second = draws.integers(0, 4, (num_second, num_games)).astype(float)
    ours = probability_of_improvement(scores(*first.T.tolist()), scores(*second.T.tolist()), resamples=10)
    assert ours.value == pytest.approx(metrics.probability_of_improvement(first, second))


def test_the_performance_profile_matches_rliable():
    matrix = np.random.default_rng(3).random((5, 4))
    thresholds = np.linspace(0, 1, 21)
    values, low, high = performance_profile(scores(*matrix.T.tolist()), thresholds)
    expected, _ = library.create_performance_profile({"a": matrix}, thresholds, reps=10)
    np.testing.assert_allclose(values, expected["a"])
    assert (low <= values).all()
    assert (values <= high).all()


def test_the_bootstrap_intervals_match_rliable_within_their_noise():
    matrix = np.random.default_rng(5).random((8, 3))
    games = scores(*matrix.T.tolist())
    _, intervals = library.get_interval_estimates(
        {"a": matrix},
        lambda x: np.array([metrics.aggregate_iqm(x), metrics.aggregate_mean(x)]),
        reps=4000,
    )
    for k, name in enumerate(("iqm", "mean")):
        ours = estimate(games, AGGREGATES[name])
        assert (ours.low, ours.high) == pytest.approx(tuple(intervals["a"][:, k]), abs=0.015)


def test_the_bootstrap_resamples_within_each_game():
    # One run in each game: every resample is the same, so the interval has no width, though the games differ.
    resampled = resample(scores([0.0], [1.0]), np.random.default_rng(0), 50)
    assert mean(resampled).tolist() == [0.5] * 50


def test_the_interval_of_two_runs_by_hand():
    # Resamples of (0, 1): 00, 01, 10, 11 with means 0, .5, .5, 1: a quarter each at the ends.
    assert estimate(scores([0.0, 1.0]), mean, minimum=2) == Estimate(0.5, 0.0, 1.0)


@pytest.mark.parametrize("runs", [([1.0],), ([0.1, 0.9, 0.4, 0.2],), ([0.1, 0.9, 0.3, 0.4], [0.5])])
def test_a_few_runs_have_no_interval(runs):
    # one run; four of the five; five, but one game has a single run
    assert estimate(scores(*runs), mean)[1:] == (None, None)
    assert not has_interval(scores(*runs))


def test_five_runs_have_an_interval():
    interval = estimate(scores([0.1, 0.9, 0.4], [0.2, 0.3]), mean)
    assert interval.low < interval.value < interval.high


def test_resampling_many_scores_in_blocks_gives_the_same_result(monkeypatch):
    runs = scores([0.0, 1.0, 3.0, 4.0, 9.0])
    whole = estimate(runs, mean, resamples=101)
    monkeypatch.setattr(statistics, "MAX_DRAWS", 13)  # 50 blocks of two resamples and one of one
    assert estimate(runs, mean, resamples=101) == whole
    monkeypatch.setattr(statistics, "MAX_DRAWS", 1)
    assert estimate(runs, mean, resamples=101) == whole


def test_the_same_seed_gives_the_same_interval():
    games = scores(np.random.default_rng(0).random(20).tolist())
    assert estimate(games, iqm, seed=4) == estimate(games, iqm, seed=4)
    assert estimate(games, mean, seed=4) != estimate(games, mean, seed=5)


def test_the_interval_covers_the_true_mean_at_about_its_nominal_rate():
    draws = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        interval = estimate(scores(draws.normal(0, 1, 30).tolist()), mean, resamples=400)
        hits += interval.low <= 0 <= interval.high
    assert 0.88 <= hits / 200 <= 0.99


def literal_p_value(first: list[float], second: list[float]) -> float:
    """All permutations, enumerated."""
    runs = first + second
    observed, extreme, splits = None, 0, list(itertools.combinations(range(len(runs)), len(first)))
    for split in splits:
        ours, others = [runs[k] for k in split], [runs[k] for k in range(len(runs)) if k not in split]
        pairs = [1.0 if x > y else 0.5 if x == y else 0.0 for x in ours for y in others]
        distance = abs(sum(pairs) / len(pairs) - 0.5)
        observed = distance if observed is None else observed  # the first split is the observed one
        extreme += distance >= observed - 1e-12
    return extreme / len(splits)


@given(
    st.lists(st.integers(0, 5).map(float), min_size=1, max_size=4),
    st.lists(st.integers(0, 5).map(float), min_size=1, max_size=4),
)
def test_the_p_value_equals_the_literal_enumeration(first, second):
    assert permutation_p_value(scores(first), scores(second)) == pytest.approx(literal_p_value(first, second))


def test_the_clearest_result_of_four_runs_each_has_a_p_value_of_two_in_seventy():
    assert permutation_p_value(scores([5, 6, 7, 8]), scores([1, 2, 3, 4])) == pytest.approx(2 / 70)


def test_more_games_lower_the_smallest_possible_p_value():
    first, second = scores([3, 4], [3, 4]), scores([1, 2], [1, 2])
    assert permutation_p_value(first, second) == pytest.approx(2 / 36)


def test_the_p_value_of_many_runs_is_sampled_close_to_the_exact_one():
    draws = np.random.default_rng(0)
    first, second = draws.normal(0.5, 1, 12), draws.normal(0, 1, 12)
    from scipy.stats import mannwhitneyu

    expected = mannwhitneyu(first, second, method="exact").pvalue
    assert permutation_p_value({"a": first}, {"a": second}) == pytest.approx(expected, abs=0.02)


def test_one_run_in_each_of_six_games_names_no_winner_by_four_to_two():
    first = scores(*[[1.0]] * 4, *[[0.0]] * 2)
    second = scores(*[[0.0]] * 4, *[[0.9]] * 2)
    assert permutation_p_value(first, second) > 0.5
    assert verdict({"a": first, "b": second}).winner is None


def test_a_winner_is_named_if_the_interval_supports_it():
    best, other = [0.8, 0.82, 0.84, 0.86, 0.9], [0.1, 0.12, 0.14, 0.2, 0.3]
    result = verdict({"a": scores(other), "b": scores(best)})
    assert result.winner == "b"
    assert result.text == "b is best in the score: each of its runs beats each run of a, the closest."


def test_a_winner_that_loses_some_pairs_has_a_probability():
    result = verdict({"a": scores([0.1, 0.12, 0.14, 0.2, 0.3, 0.81]), "b": scores([0.8, 0.82, 0.84, 0.86, 0.9, 0.95])})
    # 35 of 36 pairs
    assert result.text.startswith(
        "b is best in the score: one of its runs beats one of a, the closest, with probability 0.97, 95 % interval ["
    )
    assert result.text.endswith(", 1.00].")
    assert "(" not in result.text  # parentheses are for the lowest and the highest run


def test_three_runs_each_are_not_enough_however_clear_they_look():
    result = verdict({"a": scores([0.9, 0.9, 0.9]), "b": scores([0.1, 0.1, 0.1])})
    assert result.winner is None
    assert result.text == (
        "Not enough runs to tell: a has the highest IQM of the score (0.900), but an interval takes at least 5 runs of "
        "a method, and a and b have 3."
    )


def test_every_method_with_too_few_runs_is_named_with_their_number():
    methods = {name: scores([0.5] * count) for name, count in {"a": 5, "b": 3, "c": 3, "d": 2}.items()}
    assert verdict(methods).text.endswith("at least 5 runs of a method, and b and c have 3, d has 2.")
    many = {str(k): scores([0.5] * (1 + k % 2)) for k in range(7)}
    assert verdict(many).text.endswith("at least 5 runs of a method, and 7 methods have 1 or 2.")


def test_many_overlapping_runs_are_not_enough_either():
    result = verdict({"a": scores([0.1, 0.5, 0.9, 0.3, 0.6]), "b": scores([0.2, 0.5, 0.8, 0.4, 0.5])})
    assert result.winner is None
    assert result.text.startswith("Not enough runs to tell")


def test_a_winner_must_beat_every_other_method():
    methods = {
        "a": scores([0.9, 0.8, 0.85, 0.95, 0.7]),
        "b": scores([0.1] * 5),
        "c": scores([0.88, 0.79, 0.9, 0.92, 0.71]),
    }
    assert verdict(methods).winner is None


def test_of_a_single_method_the_sentence_gives_its_own_result():
    assert verdict({"a": scores([0.5, 0.5, 0.5, 0.5, 0.5])}, "the reward") == (
        *(None, "a has an IQM of 0.500, 95 % interval [0.500, 0.500], in the reward over 5 runs."),
    )
    assert verdict({"a": scores([0.5])}).text == (
        "a has an IQM of 0.500 in the score over 1 run; no interval is shown: an interval takes at least 5 runs of a "
        "method, and a has 1."
    )


def test_the_mean_of_a_curve_by_hand():
    at, values = np.array([1.0, 2.0, 4.0]), np.array([2.0, 4.0, 0.0])
    # constant 2 until 1, then 2..4 (mean 3), then 4..2 over one unit (mean 3) until the horizon 3
    assert mean_until(at, values, 3.0) == pytest.approx((2 + 3 + 3) / 3)
    assert mean_until(at, values, 4.0) == pytest.approx((2 + 3 + 4) / 4)
    assert mean_until(at, values, 5.0) is None  # the curve ends earlier
    assert mean_until(at, np.array([np.nan, 4.0, 0.0]), 2.0) == pytest.approx(4.0)
    assert mean_until(at, np.full(3, np.nan), 2.0) is None


def test_a_threshold_is_reached_at_the_first_point_at_or_above_it():
    at, values = np.array([10.0, 20.0, 30.0, 40.0]), np.array([np.nan, 4.9, 5.0, 3.0])
    assert first_reach(at, values, 5.0) == 30.0
    assert first_reach(at, values, 6.0) is None
