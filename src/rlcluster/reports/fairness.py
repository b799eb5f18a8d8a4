"""Why a comparison of runs may be unfair, as warnings; and the settings in which the runs differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rlcluster.reports.words import joined
from rlcluster.runs.machines import machine_text
from rlcluster.runs.reader import RecordedRun
from rlcluster.settings.loading import flatten
from rlcluster.settings.schema import BUDGETS
from rlcluster.system.console import counted

LOAD_TOLERANCE = 0.1  # share of the machine's cores: a smaller difference in background load is ignored
BUDGET_TOLERANCE = 0.05  # a timed run ends with the update that crosses its limit
LISTED_NAMES = 4  # methods or runs that a warning names
NOT_COMPARED = "output."  # where a run is stored does not matter


class Difference(NamedTuple):
    """A setting and its value in each run; None if it is null or the algorithm does not have it."""

    key: str
    values: Sequence[Any]


def setting_differences(runs: Sequence[RecordedRun]) -> list[Difference]:
    """The settings that differ between the runs, in the order of the schema."""
    flat = [compared_settings(run) for run in runs]
    keys = dict.fromkeys(key for settings in flat for key in settings if not key.startswith(NOT_COMPARED))
    rows = [Difference(key, [settings.get(key) for settings in flat]) for key in keys]
    return [row for row in rows if any(value != row.values[0] for value in row.values)]


def compared_settings(run: RecordedRun) -> dict[str, Any]:
    """By "section.name", with the network that the run has used where its settings leave the choice to it."""
    return {**flatten(run.settings.to_dict()), "policy.network": _network(run)}


def _network(run: RecordedRun) -> str | None:
    return run.settings.policy.network or run.summary.get("network")


class Name(NamedTuple):
    """Of a run, and of its method where the method has others."""

    run: str
    method: str | None = None


def warnings_for(
    runs: Sequence[RecordedRun], names: Sequence[str], methods: Mapping[str, Sequence[int]] | None = None
) -> list[str]:
    """Everything a reader must know before trusting the metrics; the runs' own warnings first. Of `methods`, which have
    the positions of their runs, one whose runs are all alike is named instead of them.
    """
    own = [f"{name}: {warning}" for run, name in zip(runs, names, strict=True) for warning in run.warnings]
    repeated = {k: method for method, positions in (methods or {}).items() if len(positions) > 1 for k in positions}
    subjects = [Name(name, repeated.get(k)) for k, name in enumerate(names)]
    checks = (_machines, _cores, _versions, _load, _games, _networks, _budgets, _evaluations)
    return own + [warning for check in checks if (warning := check(runs, subjects)) is not None]


def _machines(runs: Sequence[RecordedRun], names: Sequence[Name]) -> str | None:
    def describe(run: RecordedRun) -> str:
        return ", then ".join(dict.fromkeys(map(machine_text, run.machines))) or "unknown machine"

    listed = _listed(runs, names, describe)
    return listed and f"The runs used different machines, so their speeds are not comparable: {listed}."


def _cores(runs: Sequence[RecordedRun], names: Sequence[Name]) -> str | None:
    listed = _listed(runs, names, lambda run: counted(run.cores, "core"))
    return listed and (
        "The runs' speeds were measured on different numbers of cores, so steps/s, speed-up and minutes compare "
        f"methods and cores together: {listed}."
    )


def _versions(runs: Sequence[RecordedRun], names: Sequence[Name]) -> str | None:
    def describe(run: RecordedRun) -> str:
        return ", then ".join(dict.fromkeys(map(_version_text, run.machines)))

    listed = _listed(
        [run for run in runs if run.machine], [n for r, n in zip(runs, names, strict=True) if r.machine], describe
    )
    return listed and f"The runs used different software versions: {listed}."


def _version_text(machine: Mapping[str, Any]) -> str:
    versions = machine.get("versions") or {}
    commit = str(machine.get("git_commit") or "no commit")
    changed = ", modified" if commit.endswith("-dirty") else ""
    return f"rlcluster {versions.get('rlcluster')} ({commit[:10]}{changed}), torch {versions.get('torch')}"


def _load(runs: Sequence[RecordedRun], names: Sequence[Name]) -> str | None:
    """Other processes and steal time took different shares of the cores."""
    known = [
        (name.run, float(load))
        for run, name in zip(runs, names, strict=True)
        if (load := run.summary.get("background_load")) is not None
    ]
    if not known:
        return None
    shares = [share for _, share in known]
    if max(shares) - min(shares) <= LOAD_TOLERANCE:
        return None
    listed = "; ".join(f"{name} {share:.0%}" for name, share in known)
    return f"The runs had different background load (share of cores lost to other processes or steal time): {listed}."


def _games(runs: Sequence[RecordedRun], names: Sequence[Name]) -> str | None:
    listed = _listed(runs, names, lambda run: run.task)
    return listed and f"The runs use different games, so their raw rewards are not comparable: {listed}."


def _networks(runs: Sequence[RecordedRun], names: Sequence[Name]) -> str | None:
    listed = _listed(runs, names, lambda run: str(_network(run)))
    return listed and f"The runs use different networks: {listed}."


def _budgets(runs: Sequence[RecordedRun], names: Sequence[Name]) -> str | None:
    """Different budgets, unless they amount to the same core-hours."""

    def describe(run: RecordedRun) -> str:
        training = run.settings.training
        given = [f"{budget}={value:g}" for budget in BUDGETS if (value := getattr(training, budget)) is not None]
        return ", ".join(given)

    core_seconds = [(run.settings.training.duration or 0.0) * run.cores for run in runs]
    if min(core_seconds) > (1 - BUDGET_TOLERANCE) * max(core_seconds):
        return None
    listed = _listed(runs, names, describe)
    return listed and f"The runs had different budgets, so their final rewards are not comparable: {listed}."


def _evaluations(runs: Sequence[RecordedRun], names: Sequence[Name]) -> str | None:
    def describe(run: RecordedRun) -> str:
        assert run.evaluation is not None
        kind = "greedy actions" if run.evaluation.deterministic else "sampled actions"
        episodes = sorted({int(result["episodes"]) for result in run.evaluation.results.values()})
        counts = counted(episodes[0], "episode") if len(episodes) == 1 else f"{joined(map(str, episodes))} episodes"
        return f"{kind}, {counts}"

    evaluated = [(run, name) for run, name in zip(runs, names, strict=True) if run.evaluation is not None]
    listed = _listed([run for run, _ in evaluated], [name for _, name in evaluated], describe)
    return listed and f"The runs were evaluated differently: {listed}."


def _listed(runs: Sequence[RecordedRun], names: Sequence[Name], describe: Callable[[RecordedRun], str]) -> str | None:
    """`a, b: this; c: that`, or None if all runs have the same description."""
    groups: dict[str, list[Name]] = {}
    for run, name in zip(runs, names, strict=True):
        groups.setdefault(describe(run), []).append(name)
    if len(groups) < 2:
        return None
    sizes = Counter(name.method for name in names)
    return "; ".join(f"{_names(members, sizes)}: {description}" for description, members in groups.items())


def _names(members: Sequence[Name], sizes: Mapping[str | None, int]) -> str:
    """A few names; of many, the first and their number. `sizes` has the number of runs of each method."""
    inside = Counter(name.method for name in members)
    texts = [
        name.run if name.method is None or inside[name.method] < sizes[name.method] else name.method for name in members
    ]
    shown = list(dict.fromkeys(texts))
    if len(shown) <= LISTED_NAMES:
        return ", ".join(shown)
    return f"{', '.join(shown[: LISTED_NAMES - 1])} and {len(shown) - LISTED_NAMES + 1} more"
