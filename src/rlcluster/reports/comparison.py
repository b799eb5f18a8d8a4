"""A comparison of runs: the data behind its table, report, figure and page.

Runs that differ only in seed and game belong to one *method*. Scores come from the evaluation on unseen levels if every
method has one, else from the last 100 training episodes; the comparison says which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlcluster.reports import reference, statistics
from rlcluster.reports.curves import Curve, reward_curve
from rlcluster.reports.fairness import Difference, setting_differences, warnings_for
from rlcluster.reports.reference import Range
from rlcluster.reports.statistics import Interval, Verdict
from rlcluster.runs.metrics import Column
from rlcluster.runs.reader import RecordedRun
from rlcluster.runs.summary import WINDOW
from rlcluster.settings.games import procgen_game
from rlcluster.settings.loading import flatten
from rlcluster.system.errors import UserError

AXES = ("steps", "seconds", "core_hours")
NOT_THE_METHOD = ("env.seed", "env.name", "output.")


class Scoring(NamedTuple):
    """The scores of all methods and the statistics over them."""

    source: str  # how a score was obtained, and from how many episodes
    is_normalised: bool
    scores: Mapping[str, statistics.Scores]  # method -> game -> [runs]
    aggregates: Mapping[str, Mapping[str, Interval]]  # method -> aggregate -> its estimate
    improvement: Mapping[tuple[str, str], Interval]  # (method, other) -> P(method > other)
    verdict: Verdict
    left_out: Sequence[str] = ()  # runs without a score


class Reached(NamedTuple):
    """When a run's mean reward over 100 episodes first reached the threshold; None if it never did."""

    threshold: float
    steps: float | None
    seconds: float | None
    core_hours: float | None


class Comparison(NamedTuple):
    """Everything the table, report, figure and page show."""

    runs: Sequence[RecordedRun]
    names: Sequence[str]  # of the runs, unique
    methods: Mapping[str, Sequence[int]]  # name -> positions of its runs
    curves: Sequence[Curve]  # reward curve of each run
    warnings: Sequence[str]
    differences: Sequence[Difference]
    scoring: Scoring | None
    why_unscored: str
    efficiency: Sequence[Mapping[str, float | None]]  # of each run: mean reward until the shortest run of its task ends
    reached: Sequence[Reached | None]  # of each run
    references: Sequence[str]  # sentences that compare with OpenAI's PPO
    ranges: Sequence[Range | None]  # score range of each run's task

    def method_of(self, position: int) -> str:
        return next(name for name, positions in self.methods.items() if position in positions)


class Options(NamedTuple):
    """The user's choices."""

    ranges: Mapping[str, Range] = {}  # game -> a range that overrides the published one
    threshold: float | None = None
    with_reference: bool = False


def compare(
    runs: Sequence[RecordedRun], names: Sequence[str] | None = None, options: Options | None = None
) -> Comparison:
    options = options or Options()
    names = names or run_names([run.path for run in runs])
    differences = setting_differences(runs)
    methods = group_methods(runs)
    curves = [reward_curve(run.metrics) for run in runs]
    ranges = [options.ranges.get(run.game) or reference.score_range(run.settings.env) for run in runs]
    scoring, why_unscored = _score(runs, names, methods, ranges)
    return Comparison(
        runs=runs,
        names=names,
        methods=methods,
        curves=curves,
        warnings=warnings_for(runs, names),
        differences=differences,
        scoring=scoring,
        why_unscored=why_unscored,
        efficiency=_efficiency(runs),
        reached=_reached(runs, options.threshold),
        references=_references(runs, names) if options.with_reference else [],
        ranges=ranges,
    )


def run_names(paths: Sequence[Path]) -> list[str]:
    """The folders' names, with as many parents as make them unique. A run given twice is refused."""
    resolved = [path.resolve() for path in paths]
    for k, path in enumerate(resolved):
        if path in resolved[:k]:
            raise UserError(f"{paths[k]}: the same run is given twice; give each run once")
    for depth in range(1, max(len(path.parts) for path in resolved) + 1):
        names = ["/".join(path.parts[-depth:]) for path in resolved]
        if len(set(names)) == len(names):
            break
    return names


def group_methods(runs: Sequence[RecordedRun]) -> dict[str, list[int]]:
    """Method name -> positions of its runs. The name is e.g. PPO_Parallel, followed by the settings that differ where
    several methods would share it.
    """
    keys = [_method_key(run) for run in runs]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for k, key in enumerate(keys):
        groups.setdefault(tuple(map(str, key.values())), []).append(k)
    names: dict[str, list[int]] = {}
    for positions in groups.values():
        first = positions[0]
        alike = [
            group[0] for group in groups.values() if runs[group[0]].settings.log_name == runs[first].settings.log_name
        ]
        differing = [name for name in keys[first] if any(keys[k].get(name) != keys[first][name] for k in alike)]
        suffix = ", ".join(f"{name.split('.')[-1]}={keys[first][name]}" for name in differing)
        names[runs[first].settings.log_name + (f" ({suffix})" if suffix else "")] = positions
    return names


def _method_key(run: RecordedRun) -> dict[str, Any]:
    flat = flatten(run.settings.to_dict())
    return {key: value for key, value in flat.items() if not key.startswith(NOT_THE_METHOD)}


def _score(
    runs: Sequence[RecordedRun],
    names: Sequence[str],
    methods: Mapping[str, Sequence[int]],
    ranges: Sequence[Range | None],
) -> tuple[Scoring | None, str]:
    """The scoring, or why there is none."""
    values, source = _raw_scores(runs, methods)
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
    return _scoring(source, is_normalised, scores, left_out, has_repeated), ""


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
    source: str,
    is_normalised: bool,
    scores: Mapping[str, statistics.Scores],
    left_out: Sequence[str],
    has_repeated_seeds: bool,
) -> Scoring:
    chosen = [name for name in statistics.AGGREGATES if is_normalised or name != "optimality_gap"]
    aggregates = {
        method: {name: statistics.estimate(by_task, statistics.AGGREGATES[name]) for name in chosen}
        for method, by_task in scores.items()
    }
    improvement = {
        (method, other): statistics.probability_of_improvement(scores[method], scores[other])
        for method in scores
        for other in scores
        if method != other and set(scores[method]) & set(scores[other])
    }
    tasks = [set(by_task) for by_task in scores.values()]
    if any(one != tasks[0] for one in tasks):
        verdict = Verdict(None, "The methods were run on different games, so no winner is named.")
    elif has_repeated_seeds and len(scores) > 1:
        verdict = Verdict(None, "Not enough runs to tell: some runs share a seed, so they are not independent.")
    else:
        verdict = statistics.verdict(scores)
    return Scoring(source, is_normalised, scores, aggregates, improvement, verdict, left_out)


def _raw_scores(runs: Sequence[RecordedRun], methods: Mapping[str, Sequence[int]]) -> tuple[list[float | None], str]:
    """The score of each finished run, and its source: unseen levels if every method with finished runs has such an
    evaluation, else training.
    """
    results = [
        run.evaluation.results["test"]
        if run.is_finished and run.evaluation is not None and "test" in run.evaluation.results
        else None
        for run in runs
    ]
    finished = [[k for k in positions if runs[k].is_finished] for positions in methods.values()]
    if any(results) and all(any(results[k] for k in positions) for positions in finished if positions):
        episodes = sorted({int(result["episodes"]) for result in results if result is not None})
        counts = f"{episodes[0]}" if len(episodes) == 1 else f"{episodes[0]} to {episodes[-1]}"
        have_unseen = all(procgen_game(run.settings.env.name) and run.settings.env.num_levels for run in runs)
        where = "on unseen levels" if have_unseen else "in evaluation"
        values = [None if result is None else float(result["reward_mean"]) for result in results]
        return values, f"mean reward {where}, {counts} episodes per run"
    source = "mean reward of the last 100 training episodes (not every method has an evaluation on unseen levels)"
    return [run.summary.get("final_reward") if run.is_finished else None for run in runs], source


def _efficiency(runs: Sequence[RecordedRun]) -> list[dict[str, float | None]]:
    """The mean reward of each run until the shortest run of its task ends, along each axis."""
    curves = [_rewards(run) for run in runs]
    rows = []
    for run, own in zip(runs, curves, strict=True):
        peers = [curve for other, curve in zip(runs, curves, strict=True) if other.task == run.task]
        horizons = {
            axis: min((float(peer[axis][-1]) for peer in peers if len(peer[axis])), default=0.0) for axis in AXES
        }
        rows.append({axis: statistics.mean_until(own[axis], own["rewards"], horizons[axis]) for axis in AXES})
    return rows


def _rewards(run: RecordedRun) -> dict[str, Column]:
    """Rewards of the updates with finished episodes, and their positions along each axis."""
    metrics = run.metrics
    known = ~np.isnan(metrics["episode_reward_mean"])
    axes = metrics["steps_global"], metrics["elapsed_seconds"], run.core_hours, metrics["episode_reward_mean"]
    return {name: column[known] for name, column in zip((*AXES, "rewards"), axes, strict=True)}


def _reached(runs: Sequence[RecordedRun], threshold: float | None) -> list[Reached | None]:
    """The default threshold is the highest mean reward that every run of the task has reached."""
    full = [_full_means(run) for run in runs]
    best = [float(np.nanmax(values)) if not np.isnan(values).all() else None for values in full]
    rows: list[Reached | None] = []
    for run, values in zip(runs, full, strict=True):
        peers = [value for other, value in zip(runs, best, strict=True) if other.task == run.task]
        known = [value for value in peers if value is not None]
        level = threshold if threshold is not None else min(known) if len(known) == len(peers) else None
        if level is None:
            rows.append(None)
            continue
        axes = run.metrics["steps_global"], run.metrics["elapsed_seconds"], run.core_hours
        rows.append(Reached(level, *(statistics.first_reach(axis, values, level) for axis in axes)))
    return rows


def _full_means(run: RecordedRun) -> Column:
    """Mean reward over the last 100 episodes at each update; NaN before the first 100."""
    is_full = np.cumsum(run.metrics["episode_count"]) >= WINDOW
    return np.where(is_full, run.metrics["episode_reward_recent"], np.nan)


def _references(runs: Sequence[RecordedRun], names: Sequence[str]) -> list[str]:
    sentences = []
    for run, name in zip(runs, names, strict=True):
        if procgen_game(run.settings.env.name) is None or not reference.is_published_setting(run.settings.env):
            sentences.append(f"{name}: OpenAI has published no scores for {run.task}.")
            continue
        steps, reward = run.summary["total_timesteps"], run.summary["final_reward"]
        sentences.append(_reference(run, name, steps, reward, "train", "last 100 training episodes"))
        if run.evaluation is not None and "test" in run.evaluation.results:
            result = run.evaluation.results["test"]
            episodes = f"{result['episodes']} evaluation episodes"
            steps, reward = run.evaluation.steps_global, result["reward_mean"]
            sentences.append(_reference(run, name, steps, reward, "test", episodes))
    return [sentence for sentence in sentences if sentence]


def _reference(run: RecordedRun, name: str, steps: int, reward: float | None, levels: str, episodes: str) -> str:
    """`at 1.20 M steps this run scores 96% of OpenAI's PPO`"""
    score = reference.openai_ppo(run.settings.env, steps, levels)
    if reward is None or (score is None and levels == "test"):
        return ""
    if score is None:
        first, last = reference.STEPS[0] / 1e6, reference.STEPS[-1] / 1e6
        return f"{name}: {steps / 1e6:.2f} M steps; OpenAI's scores cover {first:g} to {last:g} M steps."
    where = "training levels" if levels == "train" else "unseen levels"
    scores = f"{where}, {episodes}: {reward:.2f} versus {score:.2f}"
    if score <= 0:
        return f"{name}: at {steps / 1e6:.2f} M steps compared with OpenAI's PPO, {scores}."
    return f"{name}: at {steps / 1e6:.2f} M steps this run scores {reward / score:.0%} of OpenAI's PPO ({scores})."
