"""Figures: comparison.png with four panels, and the learning curves of one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlcluster.reports import reference
from rlcluster.reports.comparison import Comparison
from rlcluster.reports.curves import Curve, fps_curve, mean_curve, reward_curve
from rlcluster.reports.drawing import four_panels, label, save, style
from rlcluster.reports.reference import Range
from rlcluster.reports.statistics import normalise
from rlcluster.runs.metrics import Metrics
from rlcluster.settings.schema import EnvSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS_PER_CURVE = 8
LEGEND_ENTRIES = 12
MINUTES, THOUSANDS = "wall-clock (minutes)", "environment steps (thousands)"


def draw_comparison(comparison: Comparison, path: Path) -> None:
    """Reward, fps, policy loss and environment steps over wall-clock time. Runs of one method share a line style."""
    figure, axes = four_panels()
    methods = list(comparison.methods)
    are_normalised = len({run.task for run in comparison.runs}) > 1 and None not in comparison.ranges
    for k, (run, rewards) in enumerate(zip(comparison.runs, comparison.curves, strict=True)):
        method = comparison.method_of(k)
        is_first = comparison.methods[method][0] == k
        name = comparison.names[k] if len(methods) == len(comparison.runs) else method
        line_style = {**style(methods.index(method)), "label": _legend_text(name) if is_first else None}
        shown = _normalised(rewards, comparison.ranges[k]) if are_normalised else rewards
        _draw(axes[0, 0], shown, shown.seconds / 60, line_style)
        _draw(axes[0, 1], fps := fps_curve(run.metrics), fps.seconds / 60, line_style)
        _draw(axes[1, 0], loss := mean_curve(run.metrics, "policy_loss"), loss.seconds / 60, line_style)
        minutes, steps = run.metrics["elapsed_seconds"] / 60, run.metrics["steps_global"] / 1000
        axes[1, 1].plot(minutes, steps, **{**line_style, "marker": None})
    per_point = np.mean([curve.per_point for curve in comparison.curves])
    kind = "reward, normalised by each game's range" if are_normalised else "reward"
    label(axes[0, 0], f"Episode reward (about {per_point:.0f} episodes per point, 95 % band)", MINUTES, kind)
    label(axes[0, 1], "Training speed (FPS)", MINUTES, "environment steps per second")
    axes[0, 1].set_ylim(bottom=0)
    label(axes[1, 0], "Policy loss", MINUTES, "policy loss")
    label(axes[1, 1], "Training progress", MINUTES, THOUSANDS)
    axes[1, 1].legend(frameon=False, fontsize="small", ncols=1 + len(methods) // LEGEND_ENTRIES)
    save(figure, path)


def draw_run(metrics: Metrics, title: str, path: Path, env: EnvSettings | None = None) -> None:
    """Reward, fps, losses and entropy of one run over steps; adds OpenAI's PPO if published for `env`."""
    figure, axes = four_panels(_legend_text(title))
    rewards = reward_curve(metrics)
    _draw(axes[0, 0], rewards, rewards.steps / 1000, {**style(0), "label": "this run, 95 % band"})
    if env is not None:
        _draw_reference(axes[0, 0], env, float(metrics["steps_global"][-1]))
    axes[0, 0].legend(frameon=False, fontsize="small")
    label(axes[0, 0], f"Episode reward (about {rewards.per_point:.0f} episodes per point)", THOUSANDS, "reward")
    _draw(axes[0, 1], fps := fps_curve(metrics), fps.steps / 1000, style(0))
    label(axes[0, 1], f"Speed ({_averaged(fps)})", THOUSANDS, "environment steps per second")
    axes[0, 1].set_ylim(bottom=0)
    for k, name in enumerate(("policy_loss", "value_loss")):
        loss = mean_curve(metrics, name)
        _draw(axes[1, 0], loss, loss.steps / 1000, {**style(k), "label": name.replace("_", " ")})
    axes[1, 0].legend(frameon=False, fontsize="small")
    label(axes[1, 0], f"Losses ({_averaged(loss)})", THOUSANDS, "loss")
    _draw(axes[1, 1], entropy := mean_curve(metrics, "entropy"), entropy.steps / 1000, style(0))
    label(axes[1, 1], f"Policy entropy ({_averaged(entropy)})", THOUSANDS, "nats")
    axes[1, 1].set_ylim(bottom=0)
    save(figure, path)


def _draw(axis: Axes, curve: Curve, positions: Any, line_style: dict[str, Any]) -> None:
    every = max(1, len(positions) // MARKERS_PER_CURVE)
    shown = ~np.isnan(curve.values)
    axis.plot(positions[shown], curve.values[shown], markersize=4, markevery=every, linewidth=1.4, **line_style)
    if not np.isnan(curve.low).all():
        axis.fill_between(positions, curve.low, curve.high, color=line_style["color"], alpha=0.15, linewidth=0)


def _normalised(curve: Curve, scores: Range | None) -> Curve:
    if scores is None:
        return curve
    values, low, high = (normalise(part, *scores) for part in (curve.values, curve.low, curve.high))
    return curve._replace(values=values, low=low, high=high)


def _legend_text(name: str) -> str:
    """Escaped for matplotlib: $ would start a formula, and legends ignore labels that start with _."""
    text = name.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _draw_reference(axis: Axes, env: EnvSettings, last_step: float) -> None:
    """OpenAI's PPO: its published points and the lines between them, up to the run's last step."""
    last_step = min(last_step, reference.STEPS[-1])
    steps = [step for step in reference.STEPS if step < last_step] + [last_step]
    scores = [score for step in steps if (score := reference.openai_ppo(env, step, "train")) is not None]
    if len(scores) == len(steps):
        axis.plot(np.array(steps) / 1000, scores, color="#555555", linestyle=":", marker="*", label="OpenAI's PPO")


def _averaged(curve: Curve) -> str:
    updates = round(curve.per_point)
    return "each update" if updates <= 1 else f"mean of {updates} updates"
