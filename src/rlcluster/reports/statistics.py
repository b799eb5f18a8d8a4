"""Benchmark statistics, as pure functions: aggregates over runs and games, bootstrap intervals, and the best method.

`Scores` holds, for each game g, the scores [n_g] of independent runs (seeds) of one method, normalised by the game's
range. After Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (NeurIPS 2021):

    IQM                         the mean of the middle half of all scores (25 % trimmed at each end)
    mean, median                over games, of each game's mean over runs
    optimality gap              1 - mean(min(x, 1)) over all scores
    performance profile         F(tau) = share of all scores above tau
    probability of improvement  P(X > Y) = mean over games of U_g / (n_g m_g), ties count half (Mann and Whitney)

Intervals are percentiles of a stratified bootstrap: runs are resampled within each game. Below MIN_RUNS there is none:
a bootstrap of a few runs is far too narrow. Every aggregate works on the last axis, so the same function serves the
scores [n] and their resamples [R, n].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlcluster.reports.words import joined
from rlcluster.system.console import counted

NORMAL_QUANTILE = 1.96  # 97.5 % of the standard normal distribution

Array = NDArray[np.float64]
Value = TypeVar("Value", float, Array)
Scores = Mapping[str, Array]  # game -> [n_g]
Aggregate = Callable[[Sequence[Array]], Array]  # arrays [..., n_g], one for each game -> [...]

RESAMPLES = 10_000
CONFIDENCE = 0.95
MAX_DRAWS = 4_000_000  # scores drawn at a time: 64 MB with their indices
TRIMMED = 0.25  # of each end, for the IQM
MIN_RUNS = 5  # of a method, and two of each game, for an interval or a probability
MIN_EPISODES = 20  # for the interval of a mean over episodes
LISTED = 5  # more methods are counted, not listed
MAX_PERMUTATIONS = 20_000  # per game: beyond this number, they are sampled


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


class Estimate(NamedTuple):
    """An estimate with its 95 % interval, or without one: then there are too few samples."""

    value: float
    low: float | None = None
    high: float | None = None


def normalise(score: Value, low: float, high: float) -> Value:
    """0 at the low end of a game's range, 1 at the high end; not clipped."""
    return (score - low) / (high - low)


def iqm(scores: Sequence[Array]) -> Array:
    ordered = np.sort(np.concatenate(scores, -1), -1)
    cut = int(TRIMMED * ordered.shape[-1])
    middle: Array = ordered[..., cut : ordered.shape[-1] - cut].mean(-1)
    return middle


def mean(scores: Sequence[Array]) -> Array:
    return _game_means(scores).mean(-1)  # type: ignore[no-any-return]


def median(scores: Sequence[Array]) -> Array:
    return np.median(_game_means(scores), -1)  # type: ignore[no-any-return]


def optimality_gap(scores: Sequence[Array]) -> Array:
    return 1 - np.minimum(np.concatenate(scores, -1), 1).mean(-1)  # type: ignore[no-any-return]


AGGREGATES: dict[str, Aggregate] = {"iqm": iqm, "mean": mean, "median": median, "optimality_gap": optimality_gap}


def has_interval(scores: Scores, minimum: int = MIN_RUNS) -> bool:
    """False if there are too few samples, or if a game has only one run: the spread between its runs is unknown."""
    sizes = [len(values) for values in scores.values()]
    return sum(sizes) >= minimum and min(sizes) > 1


def estimate(
    scores: Scores, aggregate: Aggregate, seed: int = 0, resamples: int = RESAMPLES, minimum: int = MIN_RUNS
) -> Estimate:
    """The aggregate of the scores with its bootstrap interval, which is deterministic for a given seed. There is none
    below `minimum` samples.
    """
    values, generator = list(scores.values()), np.random.default_rng(seed)
    if not has_interval(scores, minimum):
        return Estimate(float(aggregate(values)))
    block = max(1, MAX_DRAWS // sum(map(len, values)))
    sizes = [min(block, resamples - start) for start in range(0, resamples, block)]
    draws = np.concatenate([aggregate(resample(scores, generator, size)) for size in sizes])
    return Estimate(float(aggregate(values)), *_percentiles(draws))


def resample(scores: Scores, generator: np.random.Generator, resamples: int) -> list[Array]:
    """[R, n_g] for each game: runs drawn with replacement, within the game."""
    return [values[generator.integers(0, len(values), (resamples, len(values)))] for values in scores.values()]


def performance_profile(
    scores: Scores, thresholds: Array, seed: int = 0, resamples: int = 2_000
) -> tuple[Array, Array, Array]:
    """Share of the scores above each threshold [K], and the bounds of its interval [K]."""
    flat = np.concatenate(list(scores.values()))
    drawn = np.concatenate(resample(scores, np.random.default_rng(seed), resamples), -1)
    shares = np.array([(drawn > threshold).mean(-1) for threshold in thresholds])  # [K, R]
    low, high = np.percentile(shares, _ends(), axis=1)
    return np.array([(flat > threshold).mean() for threshold in thresholds]), low, high


def probability_of_improvement(better: Scores, other: Scores, seed: int = 0, resamples: int = 2_000) -> Interval:
    """P(a run of `better` outscores a run of `other`), over the games both have."""
    games = [game for game in better if game in other]
    generator = np.random.default_rng(seed)
    first = resample({game: better[game] for game in games}, generator, resamples)
    second = resample({game: other[game] for game in games}, generator, resamples)
    value = np.mean([_superiority(better[game], other[game]) for game in games])
    draws = np.mean([_superiority(x, y) for x, y in zip(first, second, strict=True)], 0)
    return Interval(float(value), *_percentiles(draws))


def permutation_p_value(first: Scores, second: Scores, seed: int = 0) -> float:
    """Two-sided p-value of a permutation test within games; the statistic is the probability of improvement. Exact,
    except for games with so many runs that the permutations are sampled.
    """
    games = [game for game in first if game in second]
    generator = np.random.default_rng(seed)
    distribution = {0.0: 1.0}  # of the sum over games
    for game in games:
        distribution = _convolved(distribution, _permutation_distribution(first[game], second[game], generator))
    observed = sum(float(_superiority(first[game], second[game])) for game in games)
    centre = len(games) / 2
    distance = abs(observed - centre) - 1e-9
    return min(1.0, sum(share for value, share in distribution.items() if abs(value - centre) >= distance))


class Verdict(NamedTuple):
    """The best method. `winner` is None unless it is significantly better than every other method."""

    winner: str | None
    text: str


def verdict(methods: Mapping[str, Scores], what: str = "the score", seed: int = 0) -> Verdict:
    """Compares the method with the highest IQM with every other; `what` was scored, in words. Both must have enough
    runs, the interval of its probability of improvement must lie above 0.5, and the permutation test's p-value must be
    at most 5 %.
    """
    if len(methods) < 2:
        return Verdict(None, _alone_text(methods, what))
    ranked = sorted(methods, key=lambda name: float(iqm(list(methods[name].values()))), reverse=True)
    best, improvements = ranked[0], {}
    few = [name for name in methods if not has_interval(methods[name])]
    if few:
        return Verdict(None, f"Not enough runs to tell: {_leads(methods, best, what)}, but {too_few(methods, few)}.")
    for name in ranked[1:]:
        improvements[name] = improvement = probability_of_improvement(methods[best], methods[name], seed)
        p_value = permutation_p_value(methods[best], methods[name], seed)
        if p_value > 1 - CONFIDENCE or improvement.low <= 0.5:
            return Verdict(None, _undecided_text(_leads(methods, best, what), (best, name), improvement, p_value))
    closest = min(improvements, key=lambda name: improvements[name].low)
    return Verdict(best, f"{best} is best in {what}: {_margin(improvements[closest], closest)}.")


def _margin(improvement: Interval, closest: str) -> str:
    """The bootstrap of fully separated scores has no width: no probability is claimed from it."""
    if improvement.low == improvement.high:
        return f"each of its runs beats each run of {closest}, the closest"
    return f"one of its runs beats one of {closest}, the closest, with probability {_text(improvement)}"


def _alone_text(methods: Mapping[str, Scores], what: str) -> str:
    """Of one method: `PPO_Parallel has an IQM of 0.546, 95 % interval [0.502, 0.583], in the score over 10 runs.`"""
    ((name, scores),) = methods.items()
    own, runs = estimate(scores, iqm), counted(sum(map(len, scores.values())), "run")
    has_bounds = own.low is not None and own.high is not None
    interval = f", 95 % interval [{own.low:.3f}, {own.high:.3f}]," if has_bounds else ""
    why = "" if has_bounds else f"; no interval is shown: {too_few(methods, [name])}"
    return f"{name} has an IQM of {own.value:.3f}{interval} in {what} over {runs}{why}."


def too_few(methods: Mapping[str, Scores], few: Sequence[str]) -> str:
    """`an interval takes at least 5 runs of a method, and PPO_Parallel and A2C_Parallel have 3, A3C_Parallel has 2`"""
    by_count: dict[int, list[str]] = {}
    for name in few:
        by_count.setdefault(sum(map(len, methods[name].values())), []).append(name)
    games = " (two of each game)" if max(map(len, methods.values())) > 1 else ""
    have = ", ".join(
        f"{joined(names)} {'has' if len(names) == 1 else 'have'} {count}"
        for count, names in sorted(by_count.items(), reverse=True)
    )
    if len(few) > LISTED:
        have = f"{len(few)} methods have {' or '.join(map(str, sorted(by_count)))}"
    return f"an interval takes at least {MIN_RUNS} runs of a method{games}, and {have}"


def _leads(methods: Mapping[str, Scores], best: str, what: str) -> str:
    return f"{best} has the highest IQM of {what} ({float(iqm(list(methods[best].values()))):.3f})"


def _undecided_text(leads: str, pair: tuple[str, str], improvement: Interval, p_value: float) -> str:
    best, other = pair
    return (
        f"Not enough runs to tell: {leads}; one of its runs beats one of {other} with probability "
        f"{_text(improvement)}, but equal methods would differ at least as much as {best} and {other} in "
        f"{p_value:.0%} of cases (limit: 5 %)."
    )


def mean_until(positions: Array, values: Array, horizon: float) -> float | None:
    """The mean of a curve from 0 to `horizon`: its efficiency along `positions` (steps, seconds or core-hours). Linear
    between the points, constant before the first; None if the curve ends before `horizon`.
    """
    known = ~np.isnan(values)
    positions, values = positions[known], values[known]
    if not len(values) or positions[-1] < horizon or horizon <= 0:
        return None
    inside = positions < horizon
    at = np.concatenate([[0.0], positions[inside], [horizon]])
    heights = np.interp(at, positions, values)
    return float(((heights[1:] + heights[:-1]) / 2 * np.diff(at)).sum() / horizon)


def first_reach(positions: Array, values: Array, threshold: float) -> float | None:
    """The first position at which a curve reaches `threshold`; None if it never does."""
    reached = np.flatnonzero(values >= threshold)  # false for NaN
    return float(positions[reached[0]]) if len(reached) else None


def _game_means(scores: Sequence[Array]) -> Array:
    return np.stack([values.mean(-1) for values in scores], -1)


def _superiority(first: Array, second: Array) -> Array:
    """U / (n m) of [..., n] and [..., m]: the share of pairs in which the first is higher, ties count half."""
    difference = first[..., :, None] - second[..., None, :]
    return ((difference > 0) + 0.5 * (difference == 0)).mean((-2, -1))  # type: ignore[no-any-return]


def _permutation_distribution(first: Array, second: Array, generator: np.random.Generator) -> dict[float, float]:
    """The permutation distribution of U / (n m) in one game: value -> probability."""
    runs, size = np.concatenate([first, second]), len(first)
    if math.comb(len(runs), size) <= MAX_PERMUTATIONS:
        splits = np.array(list(itertools.combinations(range(len(runs)), size)))
    else:
        splits = generator.permuted(np.tile(np.arange(len(runs)), (MAX_PERMUTATIONS, 1)), axis=1)[:, :size]
    is_first = np.zeros((len(splits), len(runs)), bool)
    is_first[np.arange(len(splits))[:, None], splits] = True
    repeated = np.broadcast_to(runs, is_first.shape)
    values = _superiority(repeated[is_first].reshape(len(splits), -1), repeated[~is_first].reshape(len(splits), -1))
    found, counts = np.unique(np.round(values, 12), return_counts=True)
    return dict(zip(found.tolist(), (counts / len(splits)).tolist(), strict=True))


def _convolved(first: Mapping[float, float], second: Mapping[float, float]) -> dict[float, float]:
    """The distribution of the sum of two independent values."""
    total: dict[float, float] = {}
    for value, share in first.items():
        for other, weight in second.items():
            key = round(value + other, 9)
            total[key] = total.get(key, 0.0) + share * weight
    return total


def _percentiles(draws: Array) -> tuple[float, float]:
    low, high = np.percentile(draws, _ends())
    return float(low), float(high)


def _ends() -> tuple[float, float]:
    return 50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)


def _text(interval: Interval) -> str:
    return f"{interval.value:.2f}, 95 % interval [{interval.low:.2f}, {interval.high:.2f}]"
