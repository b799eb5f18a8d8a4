"""Methods or runs versus published results, our own runs' and OpenAI's PPO's: scores at the same number of steps, and
curves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlcluster.reports import reference
from rlcluster.reports.curves import SCORE_STEPS, slices_of
from rlcluster.reports.published import (
    REACHED,
    PublishedMethod,
    PublishedRun,
    mean_score_curve,
    ours_for,
    published_methods,
)
from rlcluster.reports.spreads import Spread, spread_of, spread_text
from rlcluster.runs.evaluations import Evaluation
from rlcluster.runs.metrics import Column
from rlcluster.runs.reader import RecordedRun
from rlcluster.settings.games import procgen_game
from rlcluster.settings.schema import EnvSettings
from rlcluster.system.console import counted

DEFINITION = (
    f"Scores on training levels are mean rewards of the episodes that finished in the {SCORE_STEPS:,} steps before; on "
    "unseen levels, mean rewards in evaluation. Ours: the runs published with rlcluster, lowest to highest seed. "
    "OpenAI's PPO: mean of 3 runs, linearly interpolated between its published points. Easy levels, 200 for training."
)
OPENAI = "OpenAI's PPO"
LEVELS_TEXT = {"train": "training levels", "test": "unseen levels"}


class ReferenceScore(NamedTuple):
    """A score of a method or a run, and published ones at the same step."""

    name: str
    num_runs: int
    levels: str  # "train" or "test"
    steps: int
    reward: Spread | None
    ours: Mapping[str, Sequence[float]]  # method -> a score for each seed
    openai_ppo: float | None
    note: str = ""  # why there is nothing to compare with

    @property
    def text(self) -> str:
        """`mine: training levels at 800,000 steps: 7.10; ours 7.00 to 7.60 (ppo_fast, 3 seeds); OpenAI's PPO 7.30.`"""
        name = f"{self.name} ({counted(self.num_runs, 'run')})" if self.num_runs > 1 else self.name
        if self.reward is None:
            return f"{name}: {self.note}."
        parts = [f"{name}: {LEVELS_TEXT[self.levels]} at {self.steps:,} steps: {spread_text(self.reward, '.2f')}"]
        if self.ours:
            parts.append(f"ours {ours_text(self.ours)}")
        if self.openai_ppo is not None:
            parts.append(f"{OPENAI} {self.openai_ppo:.2f}")
        return "; ".join([*parts, self.note] if self.note else parts) + "."

    @property
    def data(self) -> dict[str, Any]:
        """With plain numbers."""
        reward = self.reward or Spread(math.nan)
        bounds = {"low": reward.low, "high": reward.high, "is_interval": reward.is_interval}
        return {**self._asdict(), "reward": self.reward and reward.value, **bounds, "text": self.text}


class PublishedCurve(NamedTuple):
    """The score on training levels over steps [K]."""

    name: str
    steps: Column
    values: Column

    def until(self, last_step: float) -> PublishedCurve:
        """Up to a step, linearly interpolated there."""
        inside = self.steps < last_step
        last = min(last_step, float(self.steps[-1]))
        values = np.append(self.values[inside], np.interp(last, self.steps, self.values))
        return self._replace(steps=np.append(self.steps[inside], last), values=values)


def reference_scores(
    groups: Mapping[str, Sequence[RecordedRun]], published: Sequence[PublishedMethod]
) -> list[ReferenceScore]:
    """Of groups of runs of one task and with one method's settings."""
    return [score for name, runs in groups.items() for score in _scores_of(name, runs, published)]


def published_curves(runs: Sequence[RecordedRun]) -> dict[str, list[PublishedCurve]]:
    """By game, the curves on training levels that its runs are compared with: our methods', then OpenAI's PPO's."""
    methods = published_methods()
    found: dict[str, dict[str, list[PublishedRun]]] = {}
    for run in runs:
        if run.game in reference.GAMES and reference.is_published_setting(run.settings.env):
            found.setdefault(run.game, {}).update(ours_for(run.settings, run.game, methods))
    return {game: [*map(_our_curve, ours, ours.values()), _openai_curve(game)] for game, ours in found.items()}


def curves_until(curves: Sequence[PublishedCurve], last_step: float) -> list[PublishedCurve]:
    """Those that begin before `last_step`, up to it."""
    return [curve.until(last_step) for curve in curves if curve.steps[0] <= last_step]


def _our_curve(method: str, runs: Sequence[PublishedRun]) -> PublishedCurve:
    curve = mean_score_curve(runs)
    return PublishedCurve(f"ours: {method}, {counted(curve.num_seeds, 'seed')}", curve.steps, curve.mean)


def _openai_curve(game: str) -> PublishedCurve:
    return PublishedCurve(OPENAI, np.array(reference.STEPS), np.array(reference.GAMES[game].train))


def _scores_of(
    name: str, runs: Sequence[RecordedRun], published: Sequence[PublishedMethod]
) -> Iterator[ReferenceScore]:
    """On training levels at the last step that all runs have."""
    run, steps = runs[0], min(int(run.summary["total_timesteps"]) for run in runs)
    nothing = ReferenceScore(name, len(runs), "train", steps, None, {}, None)
    if procgen_game(run.settings.env.name) is None or not reference.is_published_setting(run.settings.env):
        yield nothing._replace(note=f"no scores are published for {run.task}")
        return
    ours = ours_for(run.settings, run.game, published)
    if steps < SCORE_STEPS:
        yield nothing._replace(note=f"{steps:,} steps; scores are compared from {SCORE_STEPS:,} steps on")
    else:
        yield from _training_scores(nothing, runs, ours)
    evaluations = [run.evaluation for run in runs if run.evaluation is not None and "test" in run.evaluation.results]
    if evaluations:
        score = _unseen_score(nothing, run.settings.env, evaluations, ours)
        if score.ours or score.openai_ppo is not None:
            yield score


def _training_scores(
    nothing: ReferenceScore, runs: Sequence[RecordedRun], ours: Mapping[str, Sequence[PublishedRun]]
) -> Iterator[ReferenceScore]:
    """At the last step and, if our runs end before it, at our last step."""
    curves, last = [slices_of(run.metrics) for run in runs], nothing.steps
    ends = [one.steps for published in ours.values() for one in published]
    for step in sorted({last, min([last, max(ends, default=last)])}):
        rewards = [value for curve in curves if (value := curve.score_at(step)) is not None]
        score = reference.openai_ppo(runs[0].settings.env, step, "train")
        at_step = {
            method: scores
            for method, published in ours.items()
            if (scores := [value for one in published if (value := one.score_at(step)) is not None])
        }
        note = "" if at_step or score is not None else f"OpenAI's scores cover {_millions()} steps"
        if not rewards:
            note = f"no training episode finished in the {SCORE_STEPS:,} steps before step {step:,}"
        spread, number = spread_of(rewards), len(rewards) or len(runs)
        yield ReferenceScore(nothing.name, number, "train", step, spread, at_step, score, note)


def _unseen_score(
    nothing: ReferenceScore,
    env: EnvSettings,
    evaluations: Sequence[Evaluation],
    ours: Mapping[str, Sequence[PublishedRun]],
) -> ReferenceScore:
    """Ours are those evaluated after as many steps."""
    steps, last = (end(one.steps_global for one in evaluations) for end in (min, max))
    at_step = {
        method: scores
        for method, runs in ours.items()
        if (scores := [value for one in runs if (value := one.unseen_at(steps)) is not None])
    }
    rewards = spread_of([float(one.results["test"]["reward_mean"]) for one in evaluations])
    openai = reference.openai_ppo(env, steps, "test")
    note = "" if steps >= REACHED * last else f"some runs were evaluated later, up to {last:,} steps"
    return ReferenceScore(nothing.name, len(evaluations), "test", steps, rewards, at_step, openai, note)


def ours_text(ours: Mapping[str, Sequence[float]]) -> str:
    """`7.00 to 7.60 (ppo_fast, 3 seeds)`, for each method; empty if there is none."""
    return ", ".join(f"{_span(scores)} ({method}, {counted(len(scores), 'seed')})" for method, scores in ours.items())


def _span(scores: Sequence[float]) -> str:
    return f"{min(scores):.2f} to {max(scores):.2f}" if len(scores) > 1 else f"{scores[0]:.2f}"


def _millions() -> str:
    return f"{reference.STEPS[0] / 1e6:g} to {reference.STEPS[-1] / 1e6:g} M"
