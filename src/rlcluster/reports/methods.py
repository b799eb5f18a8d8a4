"""Methods: runs that differ only in seed and game belong to one, under a name that fits a legend and a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rlcluster.reports.fairness import compared_settings
from rlcluster.runs.reader import RecordedRun

NOT_THE_METHOD = ("env.seed", "env.name", "output.")
MAX_SETTINGS, MAX_LENGTH = 2, 48  # of a name that says what differs; else a letter stands for it, and a key explains it


class Methods(NamedTuple):
    """The methods of a comparison."""

    positions: Mapping[str, Sequence[int]]  # name -> positions of its runs
    key: Mapping[str, str] = {}  # name -> the settings that it stands for, where a letter does


def group_methods(runs: Sequence[RecordedRun]) -> Methods:
    """A name is e.g. PPO_Parallel; where several methods would share it, PPO_Parallel (gamma=0.9), or PPO_Parallel A if
    that does not suffice.
    """
    settings = [_method_settings(run) for run in runs]
    groups: dict[tuple[str, ...], list[int]] = {}
    for k, own in enumerate(settings):
        groups.setdefault(tuple(f"{name}={value}" for name, value in own.items()), []).append(k)
    names: dict[int, str] = {}  # by the position of the method's first run
    key: dict[str, str] = {}
    for log_name in dict.fromkeys(run.settings.log_name for run in runs):
        alike = [group[0] for group in groups.values() if runs[group[0]].settings.log_name == log_name]
        texts = _differing([settings[k] for k in alike])
        own_names = _names(log_name, texts)
        names |= dict(zip(alike, own_names, strict=True))
        if own_names[0] == f"{log_name} A":
            key |= {name: ", ".join(text) for name, text in zip(own_names, texts, strict=True)}
    return Methods({names[group[0]]: group for group in groups.values()}, key)


def named_methods(methods: Sequence[str]) -> Methods:
    """Of runs whose plan names them; `methods` of each run."""
    return Methods({name: [k for k, other in enumerate(methods) if other == name] for name in dict.fromkeys(methods)})


def _names(log_name: str, texts: Sequence[Sequence[str]]) -> list[str]:
    """Distinct names of methods with one log name, from the settings in which they differ."""
    if len(texts) == 1:
        return [log_name]
    full = [f"{log_name} ({', '.join(text)})" for text in texts]
    if len(texts[0]) <= MAX_SETTINGS and max(map(len, full)) <= MAX_LENGTH:
        return full
    return [f"{log_name} {_letters(k)}" for k in range(len(texts))]


def _letters(k: int) -> str:
    """A to Z, then AA."""
    last = chr(ord("A") + k % 26)
    return last if k < 26 else _letters(k // 26 - 1) + last


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """`gamma=0.9`, ... of each: the settings that are not the same in all."""
    names = [name for name in settings[0] if any(own.get(name) != settings[0][name] for own in settings)]
    return [[f"{name.split('.')[-1]}={_text(own.get(name))}" for name in names] for own in settings]


def _text(value: object) -> str:
    """As in a configuration file."""
    return "null" if value is None else str(value)


def _method_settings(run: RecordedRun) -> dict[str, Any]:
    return {name: value for name, value in compared_settings(run).items() if not name.startswith(NOT_THE_METHOD)}
