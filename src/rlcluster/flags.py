"""The command-line parsers of `rlcluster`: one per command, with a flag for every setting."""

from __future__ import annotations

import argparse
import difflib
import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import rlcluster
from rlcluster.settings.algorithms import ALGORITHMS
from rlcluster.settings.schema import (
    MODE_NAMES,
    SettingField,
    Settings,
    setting_fields,
)
from rlcluster.system.errors import EXIT_USAGE

# Flags whose name differs from the setting's, and aliases that users know from other scripts.
FLAG_NAMES = {
    "env.name": ("--env", "--env-id"),
    "training.n_steps": ("--n-steps", "--rollout-steps"),
    "training.n_epochs": ("--n-epochs", "--epochs"),
    "training.n_minibatches": ("--n-minibatches", "--minibatches"),
    "training.total_updates": ("--total-updates", "--total-iters"),
    "cluster.num_workers": ("--cluster-num-workers",),
    "cluster.distributed_backend": ("--distributed-backend", "--backend"),
}

# The settings that `--help` shows, in this order; `--help-all` shows all.
COMMON = (
    *("env.name", "env.num_envs", "training.duration", "training.total_timesteps", "parallel.num_workers"),
    *("hardware.num_threads", "env.seed", "policy.network", "training.learning_rate", "training.n_steps"),
    *("env.num_levels", "output.output_dir"),
)
DECIDED_BY_SCALE = ("parallel.num_workers",)  # set by --world-sizes

TRAIN_EXAMPLES = """examples:
  rlcluster train ppo --env coinrun --duration 30m
  rlcluster train ppo --config configs/ppo_procgen.yaml --env starpilot --mode parallel
  rlcluster train impala --mode parallel --num-workers 4 --total-timesteps 5e6
  rlcluster train --resume --output-dir runs/half_hour

`rlcluster train --help-all` shows every setting."""
SCALE_EXAMPLES = """examples:
  rlcluster scale ppo --world-sizes 1,2,4 --env coinrun --num-envs 8
  rlcluster scale a2c --world-sizes 1,2 --scaling weak --num-envs 16 --repeats 5
  rlcluster scale --config configs/ppo_parallel.yaml --output-dir runs/scale

`rlcluster scale --help-all` shows every setting."""


def make_parser() -> Parser:
    parser = Parser(prog="rlcluster", description=rlcluster.__doc__)
    parser.add_argument("--version", action="version", version=f"rlcluster {rlcluster.__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    _add_train(commands)
    _add_evaluate(commands)
    _add_compare(commands)
    _add_plot(commands)
    _add_suite(commands)
    _add_scale(commands)
    _add_check(commands)
    return parser


class Parser(argparse.ArgumentParser):
    """One-line errors with a suggestion; -1e-3 is a number. If `brief` is set, `--help` shows only those flags."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": _Formatter, **options})
        self._negative_number_matcher = re.compile(r"-\.?\d")
        self.brief: list[argparse.Action] = []

    def format_help(self) -> str:
        if not self.brief:
            return self.format_help_all()
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        formatter.start_section("common flags")
        formatter.add_arguments(self.brief)
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def format_help_all(self) -> str:
        return super().format_help()

    def refuse_unknown_flags(self, arguments: Sequence[str]) -> None:
        """Called before parsing: otherwise the value of a misspelt flag is taken for a positional argument."""
        parser = self._subparsers_by_name().get(next(iter(arguments), ""), self)
        for argument in arguments:
            name = argument.split("=", 1)[0]
            if name.startswith("--") and len(name) > 2 and name not in parser._option_string_actions:
                close = difflib.get_close_matches(name, list(parser._option_string_actions), n=1)
                guess = f"did you mean {close[0]}?" if close else f"see {'--help-all' if parser.brief else '--help'}"
                parser.error(f"unknown flag {name}; {guess}")

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}\n")

    def _subparsers_by_name(self) -> dict[str, Parser]:
        actions = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return dict(actions[0].choices) if actions else {}


class _Formatter(argparse.HelpFormatter):
    """Keeps the line breaks of multi-line texts; gives the flags more room."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        assert isinstance(parser, Parser)
        parser._print_message(parser.format_help_all(), sys.stdout)
        parser.exit()


def _add_train(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        help="train an agent",
        usage="rlcluster train [ALGORITHM] [--config FILE] [flags]",
        description="Train an agent. Every setting of the YAML file is also a flag, and flags override the file.",
        epilog=TRAIN_EXAMPLES,
    )
    first = _add_algorithm_and_file(parser)
    mode = parser.add_argument("--mode", choices=MODE_NAMES, help="default: the file's, else sequential")
    resume = parser.add_argument("--resume", action="store_true", help="continue the run in --output-dir")
    settings = _add_settings(parser)
    parser.brief = [*first, mode, *(settings[key] for key in COMMON), resume]


def _add_algorithm_and_file(parser: Parser) -> tuple[argparse.Action, argparse.Action]:
    parser.add_argument("--help-all", action=_HelpAll, nargs=0, help="show every setting and exit")
    return (
        parser.add_argument("algorithm", nargs="?", choices=tuple(ALGORITHMS), help="default: the file's, else ppo"),
        parser.add_argument("--config", metavar="FILE", help="YAML or JSON file with settings"),
    )


def _add_settings(parser: Parser) -> Mapping[str, argparse.Action]:
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
    """Adds a flag for one setting. Its value stays a string: the settings convert it by declared type."""
    names = flag_names(field)
    default = "null" if field.info.default is None else field.info.default
    others = [
        f"; {record.name}: {record.defaults[field.section][field.name]}"
        for record in ALGORITHMS.values()
        if field.name in record.defaults.get(field.section, {})
    ]
    text = f"{field.info.description} (default: {default}{''.join(others)})".replace("%", "%%")
    if field.info.annotation is bool:
        options = {"nargs": "?", "const": "true", "metavar": "true|false"}
    else:
        options = {"metavar": field.name.upper()}
    action: argparse.Action = group.add_argument(*names, dest=field.key, help=text, **options)
    return action


def flag_names(field: SettingField) -> tuple[str, ...]:
    return FLAG_NAMES.get(field.key, ("--" + field.name.replace("_", "-"),))


def _add_evaluate(commands: Any) -> None:
    parser = commands.add_parser("evaluate", help="play episodes with a trained agent")
    parser.add_argument(
        "--checkpoint", metavar="PATH", help="checkpoint or run directory (default: the latest in runs/)"
    )
    parser.add_argument("--env", metavar="NAME", help="environment to evaluate in (default: that of the training)")
    parser.add_argument("--num-episodes", type=_positive, default=100, help="episodes to play; all count (100)")
    parser.add_argument("--deterministic", action="store_true", help="take the greedy action instead of a sampled one")
    parser.add_argument(
        "--levels",
        choices=("test", "train", "both"),
        default="test",
        help="unseen levels, training levels, or both (test)",
    )
    parser.add_argument("--seed", type=_seed, default=0, help="random seed of levels and actions (0)")
    parser.add_argument("--render", action="store_true", help="show the first environment in the terminal")
    parser.add_argument("--video", metavar="FILE.mp4", help="write a video of the first environment")
    parser.add_argument("--json", metavar="FILE", help="write the results as JSON")
    parser.add_argument("--num-threads", type=_positive, help="default: all cores this process may use")


def _add_compare(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="compare runs",
        description="Compare runs: a table here, and comparison.png, comparison_report.txt, comparison.html and "
        "comparison.json. By default: the latest run, and the latest runs of its algorithm and game in other modes.",
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help="run directories; speed-ups are relative to the first")
    parser.add_argument("--sequential", metavar="DIR", help="a run, labelled Sequential in the table")
    parser.add_argument("--parallel", metavar="DIR", help="a run, labelled Parallel in the table")
    parser.add_argument(
        "--output", default=".", metavar="DIR|FILE.png", help="output directory, or file name of the plot (.)"
    )
    parser.add_argument("--reference", action="store_true", help="also show OpenAI's published PPO scores")
    parser.add_argument(
        "--threshold", type=_finite, metavar="REWARD", help="report when each run first reached this reward"
    )
    parser.add_argument(
        "--score-range",
        type=_score_range,
        action="append",
        default=[],
        metavar="GAME=MIN,MAX",
        help="scores normalised to 0 and 1, instead of the published ones",
    )


def _add_plot(commands: Any) -> None:
    parser = commands.add_parser("plot", help="plot the learning curves of a run")
    parser.add_argument("run", nargs="?", metavar="RUN", help="run directory")
    parser.add_argument("--log-file", metavar="FILE", help="a metrics.jsonl instead of a run")
    parser.add_argument("--output", metavar="FILE", help=".png, .pdf or .svg (default: RUN.png in this directory)")
    parser.add_argument("--reference", action="store_true", help="also show OpenAI's published PPO scores")


def _add_suite(commands: Any) -> None:
    parser = commands.add_parser(
        "suite",
        help="train, evaluate and compare all runs of a plan",
        description="Run every cell of a plan with equal budgets, then compare them. If interrupted, run it again to "
        "resume. docs/guide.md explains the file.",
    )
    parser.add_argument("file", metavar="FILE.yaml", help="the plan, such as configs/suite_quick.yaml")
    parser.add_argument("--output-dir", metavar="DIR", help="default: runs/ and the file's name")


def _add_scale(commands: Any) -> None:
    parser = commands.add_parser(
        "scale",
        help="measure how training speed scales with the number of processes",
        usage="rlcluster scale [ALGORITHM] [--world-sizes W,W,...] [flags]",
        description="Train in mode parallel with different numbers of processes and compare the speeds. Takes the "
        "settings of `train`; by default a run has 30 updates and a process one thread. A budget in the file is "
        "ignored. Results go to --output-dir (default: a dated name in runs/).",
        epilog=SCALE_EXAMPLES,
    )
    first = _add_algorithm_and_file(parser)
    own = (
        parser.add_argument(
            "--world-sizes",
            type=_world_sizes,
            default=(1, 2, 4),
            metavar="W,W,...",
            help="numbers of processes (1,2,4)",
        ),
        parser.add_argument(
            "--scaling",
            choices=("strong", "weak", "both"),
            default="strong",
            help="strong: num_envs in total; weak: num_envs per process (strong)",
        ),
        parser.add_argument("--repeats", type=_positive, default=3, help="runs per number of processes (3)"),
        parser.add_argument("--warmup-iters", type=_natural, default=5, help="initial updates to exclude (5)"),
    )
    settings = _add_settings(parser)
    parser.brief = [*first, *own, *(settings[key] for key in COMMON if key not in DECIDED_BY_SCALE)]


def _add_check(commands: Any) -> None:
    parser = commands.add_parser("check", help="test this installation and this machine")
    parser.add_argument("--output-dir", default=".", metavar="DIR", help="where runs will be written (.)")
    parser.add_argument("--num-threads", type=_positive, help="default: all cores this process may use")


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text} should be a number")
    return number


def _score_range(text: str) -> tuple[str, tuple[float, float]]:
    """`jumper=3,10`"""
    game, _, ends = text.partition("=")
    low, _, high = (part for part in ends.partition(","))
    if not game or _finite(low or "?") >= _finite(high or "?"):
        raise argparse.ArgumentTypeError(f"{text} should be GAME=MIN,MAX with MIN below MAX")
    return game, (float(low), float(high))


def _world_sizes(text: str) -> tuple[int, ...]:
    return tuple(_positive(part.strip()) for part in text.split(","))


def _positive(text: str) -> int:
    number = _natural(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} should be at least 1")
    return number


def _seed(text: str) -> int:
    number = _natural(text)
    if number >= 2**63:
        raise argparse.ArgumentTypeError(f"{text} should be below 2**63")
    return number


def _natural(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} should be a whole number") from None
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} should not be negative")
    return number
