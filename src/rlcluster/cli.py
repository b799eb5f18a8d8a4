"""The `rlcluster` command: parse, call, print. Heavy imports wait until a command needs them."""

from __future__ import annotations

import argparse
import difflib
import math
import os
import re
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import rlcluster
from rlcluster.settings.algorithms import ALGORITHMS
from rlcluster.settings.loading import load_settings
from rlcluster.settings.resume import resumed_settings
from rlcluster.settings.schema import (
    MODE_NAMES,
    SettingField,
    Settings,
    setting_fields,
)
from rlcluster.system.console import say, training_summary
from rlcluster.system.errors import EXIT_RUN_FAILED, EXIT_USAGE, UserError
from rlcluster.system.launcher import launched

# Flags whose name is not simply that of the setting, and further names that users know from other scripts.
FLAG_NAMES = {
    "env.name": ("--env", "--env-id"),
    "training.n_steps": ("--n-steps", "--rollout-steps"),
    "training.n_epochs": ("--n-epochs", "--epochs"),
    "training.n_minibatches": ("--n-minibatches", "--minibatches"),
    "training.total_updates": ("--total-updates", "--total-iters"),
    "cluster.num_workers": ("--cluster-num-workers",),
    "cluster.distributed_backend": ("--distributed-backend", "--backend"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    parser = _parser()
    try:
        parser.refuse_unknown_flags(sys.argv[1:] if arguments is None else arguments)
        options = parser.parse_args(arguments)
        exit_code: int = options.command(options)
    except UserError as error:
        say(f"rlcluster: error: {_rank_prefix()}{error}", stream=sys.stderr)
        exit_code = error.exit_code
    except KeyboardInterrupt:
        exit_code = 130
    except Exception:
        if not _is_in_a_group():
            raise
        say(f"rlcluster: {_rank_prefix()}\n{traceback.format_exc()}", stream=sys.stderr)
        exit_code = EXIT_RUN_FAILED
    if _is_in_a_group():  # gloo's threads may abort a normal exit
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    return exit_code


def _is_in_a_group() -> bool:
    """True for a rank that a launcher has started, once it has met the others."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_initialized()


def _rank_prefix() -> str:
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    return f"rank {rank}: " if rank is not None and world_size is not None else ""


def _train(options: argparse.Namespace) -> int:
    settings = _settings(options)
    from rlcluster.training.train import train

    result = train(settings, resume=options.resume)
    if result.summary:
        say(training_summary(result.summary, str(result.run)))
        if result.signal_number is not None:
            say(f"stopped by a signal; continue with: rlcluster train --resume --output-dir {result.run}")
    place = launched()
    if result.signal_number is None or (place is not None and place.max_restarts > 0):
        return 0  # a launcher would take another code for a failure and start the ranks again
    return 128 + result.signal_number


def _given_flags(options: argparse.Namespace) -> dict[str, str]:
    """The settings that were given as flags, under their keys."""
    return {field.key: value for field in setting_fields() if (value := getattr(options, field.key)) is not None}


def _settings(options: argparse.Namespace) -> Settings:
    from rlcluster.runs.config import settings_to_resume

    given = options.algorithm, options.mode, options.config, _given_flags(options)
    return resumed_settings(*given, settings_to_resume) if options.resume else load_settings(*given)


def _evaluate(options: argparse.Namespace) -> int:
    from rlcluster.system import cores

    cores.limit_threads(options.num_threads or cores.allowed())
    from rlcluster.evaluation.evaluate import evaluate_command

    return evaluate_command(options)


def _check(options: argparse.Namespace) -> int:
    from rlcluster.system import cores

    cores.limit_threads(options.num_threads or cores.allowed())
    from rlcluster.experiments.check import check_command

    return check_command(Path(options.output_dir))


def _scale(options: argparse.Namespace) -> int:
    from rlcluster.system import cores

    cores.limit_threads(1)  # this process waits; the runs have threads of their own
    from rlcluster.experiments.scaling import ScaleRequest, scale_command

    flags = _given_flags(options)
    output_dir = flags.pop("output.output_dir", time.strftime("runs/scale_%Y%m%d-%H%M%S"))
    request = ScaleRequest(
        algorithm=options.algorithm,
        config=options.config,
        flags=flags,
        flag_names={field.key: _flag_names(field)[0] for field in setting_fields()},
        world_sizes=options.world_sizes,
        scalings=("strong", "weak") if options.scaling == "both" else (options.scaling,),
        repeats=options.repeats,
        warmup_iters=options.warmup_iters,
        output_dir=Path(output_dir),
    )
    return scale_command(request)


def _compare(options: argparse.Namespace) -> int:
    from rlcluster.reports.compare import compare_command
    from rlcluster.reports.comparison import Options
    from rlcluster.reports.reference import ranges

    paths, titles = [Path(run) for run in options.runs], None
    if options.sequential is not None or options.parallel is not None:
        if options.sequential is None or options.parallel is None or paths:
            raise UserError("compare: give --sequential DIR and --parallel DIR, or the runs alone: RUN RUN ...")
        paths, titles = [Path(options.sequential), Path(options.parallel)], ["Sequential", "Parallel"]
    chosen = Options(ranges(options.score_range), options.threshold, options.reference)
    return compare_command(paths, titles, Path(options.output), chosen)


def _plot(options: argparse.Namespace) -> int:
    from rlcluster.reports.compare import plot_command

    run, log_file, output = (
        Path(text) if text is not None else None for text in (options.run, options.log_file, options.output)
    )
    return plot_command(run, log_file, output, options.reference)


def _suite(options: argparse.Namespace) -> int:
    from rlcluster.experiments.suite import suite_command

    return suite_command(Path(options.file), Path(options.output_dir) if options.output_dir else None)


class _Parser(argparse.ArgumentParser):
    """Errors in one line, with a guess at what was meant; -1e-3 is a number."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def refuse_unknown_flags(self, arguments: Sequence[str]) -> None:
        """Before anything else is parsed: else the value of a misspelt flag is taken for a positional argument."""
        parser = self._subparsers_by_name().get(next(iter(arguments), ""), self)
        for argument in arguments:
            name = argument.split("=", 1)[0]
            if name.startswith("--") and len(name) > 2 and name not in parser._option_string_actions:
                close = difflib.get_close_matches(name, list(parser._option_string_actions), n=1)
                guess = f"did you mean {close[0]}?" if close else "see --help"
                parser.error(f"unknown flag {name}; {guess}")

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}\n")

    def _subparsers_by_name(self) -> dict[str, argparse.ArgumentParser]:
        actions = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return dict(actions[0].choices) if actions else {}


def _parser() -> _Parser:
    parser = _Parser(prog="rlcluster", description=rlcluster.__doc__, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"rlcluster {rlcluster.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_train(commands)
    _add_evaluate(commands)
    _add_compare(commands)
    _add_plot(commands)
    _add_suite(commands)
    _add_scale(commands)
    _add_check(commands)
    return parser


def _add_train(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        help="train an agent",
        description="Train an agent. Every setting of the YAML file is a flag too, and a flag wins over the file.",
        allow_abbrev=False,
    )
    parser.set_defaults(command=_train)
    parser.add_argument("--mode", choices=MODE_NAMES, help="default: the file's, or sequential")
    parser.add_argument("--resume", action="store_true", help="continue the run in --output-dir")
    _add_settings(parser)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """The algorithm, the file and a flag for every setting, in their groups."""
    parser.add_argument("algorithm", nargs="?", choices=tuple(ALGORITHMS), help="default: the file's, or ppo")
    parser.add_argument("--config", metavar="FILE", help="YAML or JSON file with settings")
    groups: dict[str, Any] = {}
    for field in setting_fields():
        if field.section not in groups:
            section = Settings.model_fields[field.section].annotation
            title = f"{field.section}: {(section.__doc__ or '').splitlines()[0]}"
            groups[field.section] = parser.add_argument_group(title)
        _add_flag(groups[field.section], field)


def _add_flag(group: Any, field: SettingField) -> None:
    """A flag for one setting. Its value stays text: the settings convert it by declared type."""
    names = _flag_names(field)
    default = "null" if field.info.default is None else field.info.default
    others = [
        f"; {record.name}: {record.defaults[field.section][field.name]}"
        for record in ALGORITHMS.values()
        if field.name in record.defaults.get(field.section, {})
    ]
    text = f"{field.info.description} (default: {default}{''.join(others)})".replace("%", "%%")
    if field.info.annotation is bool:
        group.add_argument(*names, dest=field.key, nargs="?", const="true", metavar="true|false", help=text)
    else:
        group.add_argument(*names, dest=field.key, metavar=field.name.upper(), help=text)


def _flag_names(field: SettingField) -> tuple[str, ...]:
    return FLAG_NAMES.get(field.key, ("--" + field.name.replace("_", "-"),))


def _add_evaluate(commands: Any) -> None:
    parser = commands.add_parser("evaluate", help="play episodes with a trained agent", allow_abbrev=False)
    parser.set_defaults(command=_evaluate)
    parser.add_argument(
        "--checkpoint", metavar="PATH", help="checkpoint or run directory (default: the latest in runs/)"
    )
    parser.add_argument("--env", metavar="NAME", help="another environment than the one of the training")
    parser.add_argument("--num-episodes", type=_positive, default=100, help="episodes, all of which count (100)")
    parser.add_argument("--deterministic", action="store_true", help="the likeliest action instead of a sampled one")
    parser.add_argument(
        "--levels", choices=("test", "train", "both"), default="test", help="unseen levels or training levels"
    )
    parser.add_argument("--seed", type=_seed, default=0, help="seed of the levels and of the actions (0)")
    parser.add_argument("--render", action="store_true", help="show the first environment in the terminal")
    parser.add_argument("--video", metavar="FILE.mp4", help="write a video of the first environment")
    parser.add_argument("--json", metavar="FILE", help="write the results as JSON")
    parser.add_argument("--num-threads", type=_positive, help="default: all cores this process may use")


def _add_compare(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="put runs beside each other",
        description="Compare runs: a table here, and comparison.png, comparison_report.txt, comparison.html and "
        "comparison.json. Without runs: the latest run and the latest ones of its algorithm and game in other modes.",
        allow_abbrev=False,
    )
    parser.set_defaults(command=_compare)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="run directories; speed-ups are against the first")
    parser.add_argument("--sequential", metavar="DIR", help="a run, called Sequential in the table")
    parser.add_argument("--parallel", metavar="DIR", help="a run, called Parallel in the table")
    parser.add_argument(
        "--output", default=".", metavar="DIR|FILE.png", help="folder, or name of the picture (the current directory)"
    )
    parser.add_argument("--reference", action="store_true", help="also show OpenAI's published PPO scores")
    parser.add_argument("--threshold", type=_finite, metavar="REWARD", help="when did each run first reach this?")
    parser.add_argument(
        "--score-range",
        type=_score_range,
        action="append",
        default=[],
        metavar="GAME=MIN,MAX",
        help="scores that count as 0 and 1, instead of the published ones",
    )


def _add_plot(commands: Any) -> None:
    parser = commands.add_parser("plot", help="draw the learning curves of a run", allow_abbrev=False)
    parser.set_defaults(command=_plot)
    parser.add_argument("run", nargs="?", metavar="RUN", help="run directory")
    parser.add_argument("--log-file", metavar="FILE", help="a metrics.jsonl instead of a run")
    parser.add_argument("--output", metavar="FILE", help=".png, .pdf or .svg (default: RUN.png in this directory)")
    parser.add_argument("--reference", action="store_true", help="also show OpenAI's published PPO scores")


def _add_suite(commands: Any) -> None:
    parser = commands.add_parser(
        "suite",
        help="train and evaluate a whole plan, and report",
        description="Run every cell of a plan under an equal budget, then compare them. Started again, it goes on "
        "where it was. docs/guide.md explains the file.",
        allow_abbrev=False,
    )
    parser.set_defaults(command=_suite)
    parser.add_argument("file", metavar="FILE.yaml", help="the plan, such as configs/suite_quick.yaml")
    parser.add_argument("--output-dir", metavar="DIR", help="default: runs/ and the name of the file")


def _add_scale(commands: Any) -> None:
    parser = commands.add_parser(
        "scale",
        help="measure how the speed grows with the workers",
        description="Train in mode parallel with several numbers of workers and compare the speeds. Takes the settings "
        "of `train`; a run has 30 updates and a worker one thread, unless a flag says otherwise. The budget of a file "
        "does not count. The results are in --output-dir (default: runs/ and a name made from the date).",
        allow_abbrev=False,
    )
    parser.set_defaults(command=_scale)
    parser.add_argument(
        "--world-sizes", type=_world_sizes, default=(1, 2, 4), metavar="W,W,...", help="numbers of workers (1,2,4)"
    )
    parser.add_argument(
        "--scaling",
        choices=("strong", "weak", "both"),
        default="strong",
        help="strong: num_envs in total; weak: num_envs for each worker (strong)",
    )
    parser.add_argument("--repeats", type=_positive, default=3, help="runs with each number of workers (3)")
    parser.add_argument("--warmup-iters", type=_natural, default=5, help="first updates that do not count (5)")
    _add_settings(parser)


def _add_check(commands: Any) -> None:
    parser = commands.add_parser("check", help="test this installation and this machine", allow_abbrev=False)
    parser.set_defaults(command=_check)
    parser.add_argument("--output-dir", default=".", metavar="DIR", help="where runs shall be written (here)")
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
