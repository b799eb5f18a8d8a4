"""The `rlcluster` command: parse (`flags`), call, print. Heavy imports wait until a command needs them."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from rlcluster.flags import flag_names, make_parser
from rlcluster.plan import threads_alone
from rlcluster.settings.loading import load_settings
from rlcluster.settings.resume import resumed_settings
from rlcluster.settings.schema import (
    Settings,
    setting_fields,
)
from rlcluster.system.console import say
from rlcluster.system.errors import EXIT_RUN_FAILED, UserError
from rlcluster.system.launcher import launched


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    parser = make_parser()
    try:
        parser.refuse_unknown_flags(sys.argv[1:] if arguments is None else arguments)
        options = parser.parse_args(arguments)
        exit_code = COMMANDS[options.command](options)
    except UserError as error:
        say(f"rlcluster: error: {_rank_prefix()}{error}", stream=sys.stderr)
        exit_code = error.exit_code
    except KeyboardInterrupt:
        exit_code = 130
    except Exception:
        if not _is_in_process_group():
            raise
        say(f"rlcluster: {_rank_prefix()}\n{traceback.format_exc()}", stream=sys.stderr)
        exit_code = EXIT_RUN_FAILED
    if _is_in_process_group():  # gloo's threads may abort a normal exit
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    return exit_code


def _is_in_process_group() -> bool:
    """True for a rank that a launcher has started, once it has joined the others."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_initialized()


def _rank_prefix() -> str:
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    return f"rank {rank}: " if rank is not None and world_size is not None else ""


def _train(options: argparse.Namespace) -> int:
    settings = _settings(options)
    from rlcluster.training.progress import training_summary
    from rlcluster.training.train import train

    result = train(settings, resume=options.resume)
    if result.summary:
        say(training_summary(result.summary, str(result.run)))
        if result.signal_number is not None:
            say(f"stopped by a signal; continue with: rlcluster train --resume --output-dir {result.run}")
    placement = launched()
    if result.signal_number is None or (placement is not None and placement.max_restarts > 0):
        return 0  # a launcher would take a non-zero code for a failure and restart the ranks
    return 128 + result.signal_number


def _given_flags(options: argparse.Namespace) -> dict[str, str]:
    """The settings given as flags, by key."""
    return {field.key: value for field in setting_fields() if (value := getattr(options, field.key)) is not None}


def _settings(options: argparse.Namespace) -> Settings:
    from rlcluster.runs.config import settings_to_resume

    given = options.algorithm, options.mode, options.config, _given_flags(options)
    return resumed_settings(*given, settings_to_resume) if options.resume else load_settings(*given)


def _evaluate(options: argparse.Namespace) -> int:
    from rlcluster.system import cores

    cores.limit_threads(threads_alone(options.num_threads, cores.observe()))
    from rlcluster.evaluation.evaluate import evaluate_command

    return evaluate_command(options)


def _check(options: argparse.Namespace) -> int:
    from rlcluster.system import cores

    cores.limit_threads(threads_alone(options.num_threads, cores.observe()))
    from rlcluster.experiments.check import check_command

    return check_command(Path(options.output_dir))


def _scale(options: argparse.Namespace) -> int:
    from rlcluster.system import cores

    cores.limit_threads(1)  # this process only waits; the runs have their own threads
    from rlcluster.experiments.scaling import ScaleRequest, scale_command
    from rlcluster.runs.files import RUNS_FOLDER

    flags = _given_flags(options)
    output_dir = flags.pop("output.output_dir", str(RUNS_FOLDER / time.strftime("scale_%Y%m%d-%H%M%S")))
    request = ScaleRequest(
        algorithm=options.algorithm,
        config=options.config,
        flags=flags,
        flag_names={field.key: flag_names(field)[0] for field in setting_fields()},
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


COMMANDS = {
    "train": _train,
    "evaluate": _evaluate,
    "compare": _compare,
    "plot": _plot,
    "suite": _suite,
    "scale": _scale,
    "check": _check,
}
