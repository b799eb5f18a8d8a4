"""What was compared, in words: the titles of figures and pages, and the two sentences that a comparison begins with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlcluster.reports.comparison import Comparison
from rlcluster.reports.words import joined
from rlcluster.runs.reader import RecordedRun
from rlcluster.settings.schema import BUDGETS, TrainingSettings
from rlcluster.system.console import counted

LISTED, LISTED_METHODS = 3, 5  # more games or runs, and more methods, are counted, not listed
STATES = {
    "failed": ("failed", "failed"),
    "preempted": ("was stopped", "were stopped"),
    "running": ("is still running", "are still running"),
}
SEPARATOR = " · "


def setup_text(runs: Sequence[RecordedRun]) -> str:
    """`coinrun · 30 minutes · seeds 1 to 3 · 2 cores`: the subtitle of everything that is drawn."""
    return SEPARATOR.join([games_text(runs), budget_text(runs), seeds_text(runs), cores_text(runs)])


def headline(comparison: Comparison) -> list[str]:
    """Two sentences: what was compared, and what came of it."""
    scoring = comparison.scoring
    return [_trained(comparison), scoring.verdict.text if scoring is not None else comparison.why_unscored]


def _trained(comparison: Comparison) -> str:
    """Only finished runs count; the others are named."""
    counts = {
        method: count
        for method, positions in comparison.methods.items()
        if (count := sum(comparison.runs[k].is_finished for k in positions))
    }
    runs = [run for run in comparison.runs if run.is_finished] or comparison.runs
    budget = budget_text(runs)
    limit = "under different budgets" if budget.startswith("different") else f"of {budget}"
    where = f"{limit} on {games_text(runs)}, on {cores_text(runs)} ({seeds_text(runs)})"
    if not counts:
        begun = f"No run of {_methods_text(list(comparison.methods))} {where} has finished"
        return "; ".join([begun, *_rest(comparison)]) + "."
    were = "were each" if len(counts) > 1 else "was"
    low, high = min(counts.values()), max(counts.values())
    number = counted(low, "run") if low == high else f"{low} to {high} runs"
    trained = f"{_methods_text(list(counts))} {were} trained in {number} {where}"
    return "; ".join([trained, *_rest(comparison)]) + "."


def _methods_text(methods: Sequence[str]) -> str:
    return joined(methods) if len(methods) <= LISTED_METHODS else f"{len(methods)} methods"


def _rest(comparison: Comparison) -> Iterator[str]:
    """`ppo_3 failed`: the runs that have not finished, and cells of a suite that never became a run."""
    states = {name: run.state.state for name, run in zip(comparison.names, comparison.runs, strict=True) if run.state}
    states |= dict.fromkeys(comparison.failures, "failed")
    for state, (one, several) in STATES.items():
        names = [name for name, own in states.items() if own == state]
        if names:
            who = joined(names) if len(names) <= LISTED else f"{len(names)} runs"
            yield f"{who} {one if len(names) == 1 else several}"


def games_text(runs: Sequence[RecordedRun]) -> str:
    tasks = sorted({run.task for run in runs})
    return joined(tasks) if len(tasks) <= LISTED else f"{len(tasks)} games"


def budget_text(runs: Sequence[RecordedRun]) -> str:
    texts = {_budget(run) for run in runs}
    return texts.pop() if len(texts) == 1 else "different budgets"


def seeds_text(runs: Sequence[RecordedRun]) -> str:
    seeds = sorted({run.settings.env.seed for run in runs})
    if len(seeds) <= 2:
        return f"seed{'s' if len(seeds) > 1 else ''} {joined(map(str, seeds))}"
    is_row = seeds == list(range(seeds[0], seeds[-1] + 1))
    return f"seeds {seeds[0]} to {seeds[-1]}" if is_row else f"{len(seeds)} seeds"


def cores_text(runs: Sequence[RecordedRun]) -> str:
    cores = sorted({run.cores for run in runs})
    return counted(cores[0], "core") if len(cores) == 1 else f"{cores[0]} to {cores[-1]} cores"


def duration_text(seconds: float) -> str:
    """`90 seconds`, `30 minutes`, `2.5 hours`"""
    if seconds < 120:
        return f"{seconds:.3g} seconds"
    return f"{seconds / 60:.3g} minutes" if seconds < 2 * 3600 else f"{seconds / 3600:.3g} hours"


def steps_text(steps: float) -> str:
    """`512 steps`, `40.5 k steps`, `25 M steps`"""
    if steps < 10_000:
        return f"{steps:.0f} steps"
    return f"{steps / 1e3:.3g} k steps" if steps < 1e6 else f"{steps / 1e6:.3g} M steps"


def _budget(run: RecordedRun) -> str:
    target = run.settings.training.target_reward
    limit = limit_text(run.settings.training)
    return limit if target is None else f"at most {limit} to a reward of {target:g}"


def limit_text(training: TrainingSettings) -> str:
    """`30 minutes`, `25 M steps`, `20 updates`"""
    given = [budget for budget in BUDGETS if getattr(training, budget) is not None]
    if given == ["duration"]:
        assert training.duration is not None
        return duration_text(training.duration)
    if given == ["total_timesteps"]:
        assert training.total_timesteps is not None
        return steps_text(training.total_timesteps)
    if given == ["total_updates"]:
        assert training.total_updates is not None
        return counted(training.total_updates, "update")
    return "several limits"
