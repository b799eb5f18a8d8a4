"""A run versus published results, our own runs' and OpenAI's PPO's: scores at the same number of steps, and curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rlcluster.reports import reference
from rlcluster.reports.curves import SCORE_STEPS, slices_of
from rlcluster.reports.published import PublishedMethod, PublishedRun, mean_score_curve, ours_for, published_methods
from rlcluster.runs.metrics import Column
from rlcluster.runs.reader import RecordedRun
from rlcluster.settings.games import procgen_game
from rlcluster.system.console import counted

DEFINITION = (
    f"Scores on training levels are mean rewards of the episodes that finished in the {SCORE_STEPS:,} steps before; on "
    "unseen levels, mean rewards in evaluation. Ours: the runs published with rlcluster, lowest to highest seed. "
    "OpenAI's PPO: mean of 3 runs, linearly interpolated between its published points. Easy levels, 200 for training."
)
OPENAI = "OpenAI's PPO"
LEVELS_TEXT = {"train": "training levels", "test": "unseen levels"}


class ReferenceScore(NamedTuple):
    """A score of a run, and published ones at the same step."""

    run: str
    levels: str  # "train" or "test"
    steps: int
    reward: float | None
    ours: Mapping[str, Sequence[float]]  # method -> a score for each seed
    openai_ppo: float | None
    note: str = ""  # why there is nothing to compare with

    @property
    def text(self) -> str:
        """`mine: training levels at 800,000 steps: 7.10; ours 7.00 to 7.60 (ppo_fast, 3 seeds); OpenAI's PPO 7.30.`"""
        if self.reward is None:
            return f"{self.run}: {self.note}."
        parts = [f"{self.run}: {LEVELS_TEXT[self.levels]} at {self.steps:,} steps: {self.reward:.2f}"]
        if self.ours:
            parts.append(f"ours {ours_text(self.ours)}")
        if self.openai_ppo is not None:
            parts.append(f"{OPENAI} {self.openai_ppo:.2f}")
        return "; ".join([*parts, self.note] if self.note else parts) + "."


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
    runs: Sequence[RecordedRun], names: Sequence[str], published: Sequence[PublishedMethod]
) -> list[ReferenceScore]:
    return [score for run, name in zip(runs, names, strict=True) for score in _scores_of(run, name, published)]


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


def _scores_of(run: RecordedRun, name: str, published: Sequence[PublishedMethod]) -> Iterator[ReferenceScore]:
    steps = int(run.summary["total_timesteps"])
    nothing = ReferenceScore(name, "train", steps, None, {}, None)
    if procgen_game(run.settings.env.name) is None or not reference.is_published_setting(run.settings.env):
        yield nothing._replace(note=f"no scores are published for {run.task}")
        return
    ours = ours_for(run.settings, run.game, published)
    if steps < SCORE_STEPS:
        yield nothing._replace(note=f"{steps:,} steps; scores are compared from {SCORE_STEPS:,} steps on")
    else:
        yield from _training_scores(run, name, ours)
    if run.evaluation is not None and "test" in run.evaluation.results:
        score = _unseen_score(run, name, ours)
        if score.ours or score.openai_ppo is not None:
            yield score


def _training_scores(
    run: RecordedRun, name: str, ours: Mapping[str, Sequence[PublishedRun]]
) -> Iterator[ReferenceScore]:
    """At the run's last step and, if our runs end before it, at our last step."""
    curve, last = slices_of(run.metrics), int(run.summary["total_timesteps"])
    ends = [one.steps for runs in ours.values() for one in runs]
    for step in sorted({last, min([last, max(ends, default=last)])}):
        reward, score = curve.score_at(step), reference.openai_ppo(run.settings.env, step, "train")
        at_step = {
            method: scores
            for method, runs in ours.items()
            if (scores := [value for one in runs if (value := one.score_at(step)) is not None])
        }
        note = "" if at_step or score is not None else f"OpenAI's scores cover {_millions()} steps"
        if reward is None:
            note = f"no training episode finished in the {SCORE_STEPS:,} steps before step {step:,}"
        yield ReferenceScore(name, "train", step, reward, at_step, score, note)


def _unseen_score(run: RecordedRun, name: str, ours: Mapping[str, Sequence[PublishedRun]]) -> ReferenceScore:
    """Ours are those evaluated after as many steps."""
    assert run.evaluation is not None
    steps = run.evaluation.steps_global
    at_step = {
        method: scores
        for method, runs in ours.items()
        if (scores := [value for one in runs if (value := one.unseen_at(steps)) is not None])
    }
    reward = float(run.evaluation.results["test"]["reward_mean"])
    return ReferenceScore(name, "test", steps, reward, at_step, reference.openai_ppo(run.settings.env, steps, "test"))


def ours_text(ours: Mapping[str, Sequence[float]]) -> str:
    """`7.00 to 7.60 (ppo_fast, 3 seeds)`, for each method; empty if there is none."""
    return ", ".join(f"{_span(scores)} ({method}, {counted(len(scores), 'seed')})" for method, scores in ours.items())


def _span(scores: Sequence[float]) -> str:
    return f"{min(scores):.2f} to {max(scores):.2f}" if len(scores) > 1 else f"{scores[0]:.2f}"


def _millions() -> str:
    return f"{reference.STEPS[0] / 1e6:g} to {reference.STEPS[-1] / 1e6:g} M"
