"""Commands of the documents in shortened form, their shapes, and those that cannot run in a test."""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pages import ROOT, Command

from rlcluster.flags import before_separator, flag_names, make_parser
from rlcluster.settings.games import procgen_game
from rlcluster.settings.loading import load_settings
from rlcluster.settings.presets import find_file
from rlcluster.settings.schema import Settings, setting_fields

# What stands for a value of the reader's own, as a whole word.
PLACEHOLDERS = {
    **{"S": "1", "K": "native", "O": "adam", "LR": "2e-4", "N": "4", "T": "16"},
    **{"RUN": "runs/RUN", "PATH": "runs/RUN", "RUN/evaluation.json": "runs/RUN/evaluation.json", "NAME": "starpilot"},
    **{"DIR": "runs/DIR", "FILE.png": "comparison.png", "FILE": "configs/suite_quick.yaml"},
}
LOG = "runs/RUN/logs/PPO_Sequential/metrics.jsonl"
PARSER = cache(make_parser)  # it has a thousand flags
TRAINING = ("train", "profile", "scale", "tune", "plan")  # the commands that take all settings
# A value that is large, and the one in its place.
SMALLER = {
    **{"--num-workers": "2", "--num-envs-per-worker": "3", "--world-sizes": "1,2", "--num-threads": "1"},
    **{"--num-episodes": "2", "--repeats": "1", "--warmup-iters": "1", "--updates": "2"},
    **{"--profile": "1", "--eval-interval": "64"},
}
BUDGET = (
    *("training.duration", "training.total_timesteps", "training.total_updates"),
    *("env.num_envs", "training.n_steps", "training.n_minibatches", "training.batch_size"),
)
QUICK_GAME = "starpilot"  # untrained agents die early, so evaluations are short
# How much of it a command does.
FEWER = {
    "train": {"--total-updates": "2"},
    "scale": {"--total-updates": "2", "--repeats": "1", "--warmup-iters": "1"},
    "profile": {"--updates": "2"},
}
HELP = {"--help", "--help-all"}
SMALL_CELL = {  # of a suite
    **{"env": {"num_envs": 4}, "policy": {"network": "nature"}, "training": {"n_steps": 16, "n_minibatches": 2}},
}
UPDATES = 6  # of the run that is at hand for commands that need one
# Settings whose values do not change what a command does, only with which game, file or number, how long or where.
NEUTRAL = {
    *(*BUDGET, "env.name", "env.seed", "output.output_dir", "hardware.num_threads", "hardware.kernels"),
    *("training.learning_rate", "training.optimizer", "training.entropy_coefficient", "training.n_epochs"),
    *("parallel.num_workers", "config", "algorithm", "mode"),
    *("world_sizes", "repeats", "warmup_iters", "updates", "minutes", "seconds"),  # have defaults
}

# Commands that are not run here, and why. Our flags in them are checked all the same.
NOT_RUN = {
    r"(pip|uv) .*|python[\d.]* -m venv .*": "installs packages, as tests/test_wheel.py and scripts/smoke.py do",
    r"source .*|mkdir .*": "prepares the reader's shell or home folder",
    r"make .*": "its recipe is run, as the commands that the dry run prints",
    r"ruff .*|mypy|python -m pytest .*": "checks the code: `make test` is what runs this test",
    r"python scripts/docs\.py": "tests/test_docs.py builds the site",
    r"python benchmarks/\w+\.py.*": "measures for many minutes; tests/test_benchmarks.py has short runs",
    r"python scripts/results\.py": "tests/test_publish.py draws the published results",
    r"torchrun .*": "needs two machines; tests/training/test_distributed.py runs torchrun on one",
    r"srun .*": "needs an allocation of Slurm; tests/cluster/test_slurm.py has one",
    r"rlcluster (tune|plan)( .*)?": "measures this machine for minutes; tests/experiments/ runs both",
    r"rlcluster profile .*--flame.*": "needs py-spy; tests/profiling/ has it where it is installed",
    r"rlcluster (status|cancel|logs)( .*)?": "needs a submitted job; tests/cluster/ has some",
}


def why_not_run(command: Command) -> str | None:
    text = " ".join(command.words)
    return next((reason for pattern, reason in NOT_RUN.items() if re.fullmatch(pattern, text)), None)


def filled(command: Command) -> list[str]:
    """The arguments of `rlcluster`, with values for placeholders. Runs to compare are different ones."""
    words = list(command.words[command.words.index("rlcluster") + 1 :])
    if words[0] == "plot":
        words = [LOG if word == "FILE" else word for word in words]
    numbers = iter("12")
    if words[0] == "compare":
        words = [f"runs/RUN{next(numbers)}" if word in ("RUN", "DIR") else word for word in words]
    return [PLACEHOLDERS.get(word, word) for word in words]


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """By the real parser; the command that is submitted, too. Exits if something is wrong."""
    parser = PARSER()
    own = [word for word in before_separator(arguments) if word not in HELP]  # which prints, and exits
    parser.refuse_unknown_flags(own)
    options = parser.parse_args(own)
    if own[0] == "submit" and "--" in arguments:
        options.inner = parsed(arguments[arguments.index("--") + 1 :])
    return options


def given_settings(options: argparse.Namespace) -> dict[str, str]:
    return {field.key: value for field in setting_fields() if (value := getattr(options, field.key, None)) is not None}


def settings_of(options: argparse.Namespace) -> Settings:
    """Raises a UserError if a setting has a wrong value."""
    return load_settings(options.algorithm, getattr(options, "mode", None), options.config, given_settings(options))


@cache
def shape(command: Command) -> tuple[Any, ...]:
    """Commands of the same shape do the same, with another game, budget or folder."""
    if command.words[0] != "rlcluster" or HELP & {*command.words}:
        return command.words
    options = parsed(filled(command))
    given = {name for name, value in vars(options).items() if value not in (None, False, [], ())}
    cell: tuple[Any, ...] = ()
    if options.command in TRAINING and not getattr(options, "resume", False):
        settings = settings_of(options)
        own_code = frozenset(value for value in given_settings(options).values() if ":" in value)
        cell = settings.algorithm, settings.mode, own_code
        given -= NEUTRAL
    inner = getattr(options, "inner", None)
    return options.command, cell, inner.command if inner else None, frozenset(given)


def shortened(arguments: list[str], folder: Path) -> list[str]:
    """The same command with a small budget."""
    words = _smaller(arguments)
    match arguments[0]:
        case "train" if "--resume" in arguments:
            mode = ["--mode", "parallel"] if "--num-workers" in arguments else []  # the run at hand is sequential
            words += [*mode, "--total-updates", str(UPDATES + 2)]
        case "train" | "scale" | "profile" if not HELP & {*arguments}:
            words += _small_settings(arguments)
        case "suite":
            words[1] = str(small_suite(find_file(arguments[1]), folder))
        case "submit":
            words[1:1] = ["--dry-run", "--scheduler", "pbs"]  # Slurm would be asked for its limits
        case "evaluate" if "--num-episodes" not in arguments:
            words += ["--num-episodes", "2"]
    return words


def _smaller(arguments: Sequence[str]) -> list[str]:
    """Without budgets; large values replaced."""
    dropped = set(_flags_of(*BUDGET)) if arguments[0] in TRAINING else set()
    kept: list[str] = []
    for word in arguments:
        if kept and kept[-1] in dropped:
            kept.pop()
        else:
            kept.append(SMALLER[kept[-1]] if kept and kept[-1] in SMALLER else word)
    return kept


def _flags_of(*keys: str) -> Iterator[str]:
    return (name for field in setting_fields() if field.key in keys for name in flag_names(field))


def _small_settings(arguments: Sequence[str]) -> list[str]:
    options = parsed(arguments)
    settings = settings_of(options)
    small = {"--n-steps": "16"}
    if "--num-envs-per-worker" not in arguments:
        small["--num-envs"] = "4"
    if settings.algorithm == "ppo":
        small["--n-minibatches"] = "2"
    if (settings.algorithm, settings.mode) == ("impala", "distributed"):
        small |= {"--workers-per-rank": "1", "--num-threads": "1"}  # no measurement on each rank
    if procgen_game(settings.env.name):
        small["--env"] = QUICK_GAME
        small |= {} if "--network" in arguments else {"--network": "nature"}
    small |= FEWER.get(arguments[0], {})
    return [part for pair in small.items() for part in pair]


def small_suite(file: Path, folder: Path) -> Path:
    """One cell of it, with a small budget; of a suite of recipes, its first."""
    plan = yaml.safe_load(file.read_text())
    plan |= {"modes": ["sequential"], "games": ["coinrun"], "seeds": [1], "budget": {"total_timesteps": 128}}
    plan |= {"evaluation": {"num_episodes": 2}, "settings": SMALL_CELL, "algorithm_settings": {}}
    if "recipes" in plan:
        name, recipe = next(iter(plan["recipes"].items()))
        config = str(ROOT / "configs" / recipe["config"])
        plan["recipes"] = {name: {**recipe, "config": config, "settings": SMALL_CELL}}
    else:
        plan["algorithms"] = ["ppo"]
    target = folder / file.name
    target.write_text(yaml.safe_dump(plan))
    return target


def provide(arguments: Sequence[str], run: Path) -> list[str]:
    """Copies `run` to wherever the command expects a run, if none is there, and makes room for what it writes; fills in
    `runs/*`.
    """
    written = _values_of(arguments, "--output-dir", "--output")
    for word in written:
        shutil.rmtree(word, ignore_errors=True)
    for word in arguments:
        folder = re.match(r"runs/[\w-]+", word)
        if folder and (word not in written or "--resume" in arguments) and not Path(folder[0]).exists():
            shutil.copytree(run, folder[0])
    return [
        found
        for word in arguments
        for found in ([str(p) for p in sorted(Path().glob(word))] if "*" in word else [word])
    ]


def _values_of(arguments: Sequence[str], *flags: str) -> list[str]:
    return [value for flag, value in itertools.pairwise(arguments) if flag in flags]
