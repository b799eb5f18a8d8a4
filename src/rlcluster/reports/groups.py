"""Rows of tables: a method with all its runs, or a single run. Numbers are means over the runs of a group."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rlcluster.reports.comparison import Comparison
from rlcluster.reports.spreads import MISSING, Spread, spread_of
from rlcluster.reports.statistics import MIN_EPISODES
from rlcluster.runs.reader import RecordedRun
from rlcluster.system.console import counted

SHORT_MINUTES = 10  # of runs that are all below, minutes have two decimals


class Group(NamedTuple):
    """A row or column of a table. `positions` are those of its runs in the comparison. Of a method with finished runs,
    they are its finished runs: others would blur its means.
    """

    title: str
    method: str
    positions: Sequence[int]
    runs: Sequence[RecordedRun]
    num_unfinished: int = 0  # further runs
    is_one_of_several: bool = False  # a run of a method that has others

    @property
    def count_text(self) -> str:
        """`3`, or `2 of 3` where some have not finished."""
        total = len(self.runs) + self.num_unfinished
        return f"{len(self.runs)} of {total}" if self.num_unfinished else str(total)

    def values(self, value_of: Callable[[RecordedRun], float | None]) -> list[float]:
        return [value for run in self.runs if (value := value_of(run)) is not None]

    @property
    def is_of_one_task(self) -> bool:
        return len({run.task for run in self.runs}) == 1

    def rewards(self, value_of: Callable[[RecordedRun], float | None]) -> list[float]:
        """Raw rewards: none of several games, which have no common unit."""
        return self.values(value_of) if self.is_of_one_task else []


def groups_of(comparison: Comparison, per_run: bool = False, titles: Sequence[str] | None = None) -> list[Group]:
    """The methods, or the single runs; `titles` replace the names of single runs."""
    if per_run or titles is not None:
        names = titles or comparison.names
        return [_group_of_run(comparison, names[k], k) for k in range(len(comparison.runs))]
    groups = []
    for title, (method, positions) in zip(comparison.method_titles, comparison.methods.items(), strict=True):
        shown = comparison.finished(method)
        runs = [comparison.runs[k] for k in shown]
        groups.append(Group(title, method, shown, runs, len(positions) - len(shown)))
    return groups


def _group_of_run(comparison: Comparison, name: str, k: int) -> Group:
    method = comparison.method_of(k)
    is_one_of_several = len(comparison.methods[method]) > 1
    return Group(name, method, [k], [comparison.runs[k]], is_one_of_several=is_one_of_several)


def groups_by_task(comparison: Comparison, per_run: bool = False) -> list[Group]:
    """The methods, or the single runs; of several games each by itself, since raw rewards of different games have no
    mean.
    """
    if per_run or len(comparison.tasks) == 1:
        return groups_of(comparison, per_run)
    parts = [group for task in comparison.tasks for group in groups_of_task(comparison, task)]
    methods = list(comparison.methods)
    return [_named_by_task(comparison, group) for group in sorted(parts, key=lambda group: methods.index(group.method))]


def groups_of_task(comparison: Comparison, task: str) -> list[Group]:
    """The methods with their runs of one task."""
    parts = []
    for group in groups_of(comparison):
        shown = [k for k in group.positions if comparison.runs[k].task == task]
        number = sum(comparison.runs[k].task == task for k in comparison.methods[group.method])
        if shown:
            runs = [comparison.runs[k] for k in shown]
            parts.append(Group(group.title, group.method, shown, runs, number - len(shown)))
    return parts


def _named_by_task(comparison: Comparison, group: Group) -> Group:
    """A method with one task keeps its title."""
    tasks = {comparison.runs[k].task for k in comparison.finished(group.method)}
    return group if len(tasks) == 1 else group._replace(title=f"{group.title}, {group.runs[0].task}")


def summary_value(name: str) -> Callable[[RecordedRun], float | None]:
    return lambda run: run.summary.get(name)


def evaluated(levels: str) -> Callable[[RecordedRun], float | None]:
    """The mean reward of a run on "train" or "test" levels."""

    def value(run: RecordedRun) -> float | None:
        if run.evaluation is None or levels not in run.evaluation.results:
            return None
        return float(run.evaluation.results[levels]["reward_mean"])

    return value


def gap(run: RecordedRun) -> float | None:
    return run.evaluation.gap if run.evaluation is not None else None


def cores_spread(group: Group) -> Spread | None:
    """The cores of its runs, which mostly have the same."""
    cores = [run.cores for run in group.runs]
    return Spread(cores[0]) if len(set(cores)) == 1 else spread_of(cores)


def have_different_cores(groups: Sequence[Group]) -> bool:
    return len({run.cores for group in groups for run in group.runs}) > 1


def minutes(run: RecordedRun) -> float:
    return float(run.summary["duration_seconds"]) / 60


def minutes_form(groups: Sequence[Group]) -> str:
    """Digits that tell short runs apart."""
    return ".1f" if max(minutes(run) for group in groups for run in group.runs) >= SHORT_MINUTES else ".2f"


def episodes_text(group: Group, levels: str) -> str:
    """`300 episodes each`, `50 to 300 episodes each`; empty without an evaluation."""
    counts = sorted(
        {
            int(run.evaluation.results[levels]["episodes"])
            for run in group.runs
            if run.evaluation is not None and levels in run.evaluation.results
        }
    )
    if not counts:
        return ""
    span = counted(counts[0], "episode") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} episodes"
    return f"{span}{' each' if len(group.runs) > 1 else ''}"


def evaluated_text(run: RecordedRun, levels: str) -> str:
    """`6.13 [5.57, 6.67], 300 episodes`: with the 95 % interval of the mean over enough episodes;
    `6.13, 1 episode (no interval below 20)` of fewer.
    """
    if run.evaluation is None or levels not in run.evaluation.results:
        return MISSING
    result = run.evaluation.results[levels]
    low, high = result.get("reward_interval_95") or (None, None)
    is_certain = low is not None and result["episodes"] >= MIN_EPISODES
    interval = f" [{low:.2f}, {high:.2f}]" if is_certain else ""
    why = f" (no interval below {MIN_EPISODES})" if result["episodes"] < MIN_EPISODES else ""
    actions = ", greedy actions" if run.evaluation.deterministic else ""
    return f"{result['reward_mean']:.2f}{interval}, {counted(result['episodes'], 'episode')}{why}{actions}"


def speedup(group: Group, first: Group) -> float | None:
    """Average steps/s divided by that of the first group: the geometric mean of the ratios on their common games. None
    within a method, and of or versus one of several seeds: they differ by chance.
    """
    own, base = _speeds(group), _speeds(first)
    ratios = [own[task] / base[task] for task in own if task in base]
    if group.method == first.method or group.is_one_of_several or first.is_one_of_several or not ratios:
        return None
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _speeds(group: Group) -> dict[str, float]:
    """The mean over runs of the average steps/s, by task."""
    speeds: dict[str, list[float]] = {}
    for run in group.runs:
        if run.summary["average_fps"]:
            speeds.setdefault(run.task, []).append(run.summary["average_fps"])
    return {task: sum(values) / len(values) for task, values in speeds.items()}
