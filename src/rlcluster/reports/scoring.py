"""The scores of methods: from the evaluation on unseen levels if every method has one, else from the last 100 training
episodes; and the statistics over them. Whatever the runs cannot support is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rlcluster.reports import statistics
from rlcluster.reports.reference import Range
from rlcluster.reports.statistics import Estimate, Interval, Verdict
from rlcluster.runs.metrics import Column
from rlcluster.runs.reader import RecordedRun
from rlcluster.settings.games import procgen_game
from rlcluster.system.console import counted

AGGREGATE_TITLES = {"iqm": "IQM", "mean": "mean", "median": "median", "optimality_gap": "optimality gap"}


class Scoring(NamedTuple):
    """The scores of all methods and the statistics over them."""

    source: str  # how a score was obtained, and from how many episodes
    is_normalised: bool
    scores: Mapping[str, statistics.Scores]  # method -> game -> [runs]
    aggregates: Mapping[str, Mapping[str, Estimate]]  # method -> aggregate -> its estimate
    improvement: Mapping[tuple[str, str], Interval]  # (method, other) -> P(method > other)
    why_uncertain: str  # why a method has no interval, or two no probability; empty if all have
    verdict: Verdict
    left_out: Sequence[str] = ()  # runs without a score

    @property
    def definition(self) -> str:
        """What a score is, and what its intervals are where there are some."""
        kind = "normalised by each game's range" if self.is_normalised else "not normalised"
        estimates = [estimate for own in self.aggregates.values() for estimate in own.values()]
        has_intervals = any(estimate.low is not None for estimate in estimates)
        intervals = " In brackets: 95 % intervals, stratified bootstrap over runs." if has_intervals else ""
        return f"Score: {self.source}; {kind}.{intervals}"


def have_unseen_levels(runs: Sequence[RecordedRun]) -> bool:
    """False if a game has no levels, or is trained on all it has: an evaluation is of new episodes then."""
    return all(procgen_game(run.settings.env.name) and run.settings.env.num_levels for run in runs)


def evaluation_title(runs: Sequence[RecordedRun]) -> str:
    """Of a column or line with the rewards of the evaluation that scores are taken from."""
    return "unseen levels" if have_unseen_levels(runs) else "evaluation"


def score(
    runs: Sequence[RecordedRun],
    names: Sequence[str],
    methods: Mapping[str, Sequence[int]],
    ranges: Sequence[Range | None],
) -> tuple[Scoring | None, str]:
    """The scoring, or why there is none."""
    raw = _raw_scores(runs, methods)
    values = raw.values
    scored = [k for k, value in enumerate(values) if value is not None]
    left_out = [names[k] for k, value in enumerate(values) if value is None]
    if not scored:
        return None, "No scores: no run has finished with at least one episode."
    known = {k: ranges[k] for k in scored}
    is_normalised = None not in known.values()
    if not is_normalised and len({runs[k].task for k in scored}) > 1:
        games = sorted({runs[k].game for k, one in known.items() if one is None})
        remedy = "give --score-range GAME=MIN,MAX (in a suite: score_ranges)"
        return None, f"No score range is published for {', '.join(games)}, so games cannot be averaged; {remedy}."
    scores: dict[str, dict[str, Column]] = {}
    for method, positions in methods.items():
        by_task: dict[str, list[float]] = {}
        for k in [k for k in positions if k in known]:
            one, value = known[k], values[k]
            assert value is not None
            score = statistics.normalise(value, *one) if one is not None and is_normalised else value
            by_task.setdefault(runs[k].task, []).append(score)
        if by_task:
            scores[method] = {task: np.array(by_task[task]) for task in sorted(by_task)}
    has_repeated = _has_repeated_seeds(runs, methods, scored)
    return _scoring(raw, is_normalised, scores, left_out, has_repeated), ""


def _has_repeated_seeds(
    runs: Sequence[RecordedRun], methods: Mapping[str, Sequence[int]], scored: Sequence[int]
) -> bool:
    """True if a method has two runs with the same task and seed: they are not independent."""
    keys = [
        (method, runs[k].task, runs[k].settings.env.seed)
        for method, positions in methods.items()
        for k in positions
        if k in scored
    ]
    return len(set(keys)) < len(keys)


def _scoring(
    raw: RawScores,
    is_normalised: bool,
    scores: Mapping[str, statistics.Scores],
    left_out: Sequence[str],
    has_repeated_seeds: bool,
) -> Scoring:
    chosen = _aggregates(scores, is_normalised)
    aggregates = {
        method: {name: statistics.estimate(by_task, statistics.AGGREGATES[name]) for name in chosen}
        for method, by_task in scores.items()
    }
    certain = [method for method in scores if statistics.has_interval(scores[method])]
    improvement = {
        (method, other): statistics.probability_of_improvement(scores[method], scores[other])
        for method in certain
        for other in certain
        if method != other and set(scores[method]) & set(scores[other])
    }
    few = [method for method in scores if method not in certain]
    why_uncertain = f"No interval is shown: {statistics.too_few(scores, few)}." if few else ""
    tasks = [set(by_task) for by_task in scores.values()]
    if any(one != tasks[0] for one in tasks):
        verdict = Verdict(None, "The methods were run on different games, so no winner is named.")
    elif has_repeated_seeds and len(scores) > 1:
        verdict = Verdict(None, "Not enough runs to tell: some runs share a seed, so they are not independent.")
    else:
        verdict = statistics.verdict(scores, f"the {'normalised ' if is_normalised else ''}{raw.what}")
    source = f"{raw.what}{raw.details}"
    return Scoring(source, is_normalised, scores, aggregates, improvement, why_uncertain, verdict, left_out)


def _aggregates(scores: Mapping[str, statistics.Scores], is_normalised: bool) -> list[str]:
    """With one game, its mean and median would repeat the IQM, with two the median the mean; without ranges there is no
    optimum.
    """
    dropped = set() if is_normalised else {"optimality_gap"}
    num_games = len({game for own in scores.values() for game in own})
    dropped |= {1: {"mean", "median"}, 2: {"median"}}.get(num_games, set())
    return [name for name in statistics.AGGREGATES if name not in dropped]


class RawScores(NamedTuple):
    """The score of each finished run; what it is, in words, and more about it."""

    values: Sequence[float | None]
    what: str
    details: str


def _raw_scores(runs: Sequence[RecordedRun], methods: Mapping[str, Sequence[int]]) -> RawScores:
    """From unseen levels if every method with finished runs has such an evaluation, else from training."""
    results = [
        run.evaluation.results["test"]
        if run.is_finished and run.evaluation is not None and "test" in run.evaluation.results
        else None
        for run in runs
    ]
    finished = [[k for k in positions if runs[k].is_finished] for positions in methods.values()]
    if any(results) and all(any(results[k] for k in positions) for positions in finished if positions):
        episodes = sorted({int(result["episodes"]) for result in results if result is not None})
        counts = counted(episodes[0], "episode") if len(episodes) == 1 else f"{episodes[0]} to {episodes[-1]} episodes"
        where = "on unseen levels" if have_unseen_levels(runs) else "in evaluation"
        values = [None if result is None else float(result["reward_mean"]) for result in results]
        return RawScores(values, f"mean reward {where}", f", {counts} per run")
    rewards = [run.summary.get("final_reward") if run.is_finished else None for run in runs]
    why = " (not every method has an evaluation on unseen levels)"
    return RawScores(rewards, "mean reward of the last 100 training episodes", why)
