"""A flag for every setting, for the commands that train."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from rlcluster.flags.parser import HelpAll, Parser
from rlcluster.flags.values import duration, path
from rlcluster.settings.algorithms import ALGORITHMS
from rlcluster.settings.schema import SettingField, Settings, setting_fields

# Flags whose name differs from the setting's, and aliases that users know from other scripts.
FLAG_NAMES = {
    "env.name": ("--env", "--env-id"),
    "env.kwargs": ("--env-kwargs",),
    "env.wrappers": ("--env-wrappers",),
    "training.n_steps": ("--n-steps", "--rollout-steps"),
    "training.n_epochs": ("--n-epochs", "--epochs"),
    "training.n_minibatches": ("--n-minibatches", "--minibatches"),
    "training.total_updates": ("--total-updates", "--total-iters"),
    "cluster.num_workers": ("--cluster-num-workers",),
    "output.loggers": ("--logger", "--loggers"),
    "output.callbacks": ("--callback", "--callbacks"),
    "cluster.distributed_backend": ("--distributed-backend", "--backend"),
}
# The settings that `--help` shows, in this order; `--help-all` shows all.
COMMON = (
    *("env.name", "env.num_envs", "training.duration", "training.total_timesteps", "parallel.num_workers"),
    *("hardware.num_threads", "env.seed", "policy.network", "training.learning_rate", "training.n_steps"),
    *("env.num_levels", "output.output_dir"),
)


def add_algorithm_and_file(parser: Parser) -> tuple[argparse.Action, argparse.Action]:
    parser.add_argument("--help-all", action=HelpAll, nargs=0, help="show every setting and exit")
    return (
        parser.add_argument("algorithm", nargs="?", choices=tuple(ALGORITHMS), help="default: the file's, else ppo"),
        parser.add_argument(
            "--config",
            type=path,
            metavar="FILE",
            action="append",
            help="YAML or JSON file with settings, or a preset by name; later ones override",
        ),
    )


def add_settings(parser: Parser) -> Mapping[str, argparse.Action]:
    """Adds a flag for every setting, grouped by section; returns the actions by setting key."""
    groups: dict[str, Any] = {}
    actions = {}
    for field in setting_fields():
        if field.section not in groups:
            meaning = Settings.model_fields[field.section].annotation.__doc__ or ""
            groups[field.section] = parser.add_argument_group(field.section, " ".join(meaning.split()))
        actions[field.key] = _add_flag(groups[field.section], field)
    return actions


def _add_flag(group: Any, field: SettingField) -> argparse.Action:
    """Adds a flag for one setting. Its value stays a string: the settings convert it by declared type. Only a path is
    expanded here too: a run to resume is read before its settings are known.
    """
    names = flag_names(field)
    default = "null" if field.info.default is None else field.info.default
    others = [
        f"; {record.name}: {record.defaults[field.section][field.name]}"
        for record in ALGORITHMS.values()
        if field.name in record.defaults.get(field.section, {})
    ]
    text = f"{field.info.description} (default: {default}{''.join(others)})".replace("%", "%%")
    options: dict[str, Any]
    if field.info.annotation is bool:
        options = {"nargs": "?", "const": "true", "metavar": "true|false"}
    else:
        options = {"metavar": field.name.upper(), "type": path if field.is_path else str}
    action: argparse.Action = group.add_argument(*names, dest=field.key, help=text, **options)
    return action


def flag_names(field: SettingField) -> tuple[str, ...]:
    return FLAG_NAMES.get(field.key, ("--" + field.name.replace("_", "-"),))


def add_max_wall(parser: Parser) -> None:
    parser.add_argument(
        "--max-wall", type=duration, metavar="TIME", help="save and exit with code 75 after this time: 90s, 30m, 2h"
    )
