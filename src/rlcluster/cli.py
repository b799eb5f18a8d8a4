"""The `rlcluster` command: parse (`flags`), call, print. Heavy imports wait until a command needs them."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rlcluster.flags import SUBMIT_FLAGS, ParserExit, before_separator, flag_names, make_parser
from rlcluster.plan import threads_alone
from rlcluster.settings.loading import load_settings
from rlcluster.settings.resume import resumed_settings
from rlcluster.settings.schema import (
    Settings,
    setting_fields,
)
from rlcluster.system.atomic_file import keep_files_from_strangers
from rlcluster.system.console import protect_streams, say
from rlcluster.system.errors import EXIT_RUN_FAILED, EXIT_SAVED, UserError, explained
from rlcluster.system.launcher import launched
from rlcluster.system.signals import time_limit


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    keep_files_from_strangers()
    if arguments is None:
        protect_streams()
    parser, arguments = make_parser(), sys.argv[1:] if arguments is None else list(arguments)
    if not arguments:
        parser.print_help()
        return 0
    try:
        parser.refuse_unknown_flags(arguments)
        own = before_separator(arguments)
        options = parser.parse_args(own if arguments[:1] == ["submit"] else arguments)
        options.submitted = arguments[len(own) + 1 :]  # what follows `--`
        exit_code = _carry_out(options)
    except UserError as error:
        say(f"rlcluster: error: {_rank_prefix()}{error}", stream=sys.stderr)
        exit_code = error.exit_code
    except KeyboardInterrupt:
        say(f"rlcluster: {_rank_prefix()}interrupted", stream=sys.stderr)
        exit_code = 130
    except Exception as error:
        known = explained(error)
        if known is None and not _is_in_process_group():
            raise
        text = f"error: {_rank_prefix()}{known}" if known else f"{_rank_prefix()}\n{traceback.format_exc()}"
        say(f"rlcluster: {text}", stream=sys.stderr)
        exit_code = known.exit_code if known else EXIT_RUN_FAILED
    if _is_in_process_group():  # gloo's threads may abort a normal exit
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    return exit_code


def _carry_out(options: argparse.Namespace) -> int:
    """Code of the user that a command calls may not end it as if it had succeeded."""
    try:
        return COMMANDS[options.command](options)
    except ParserExit:
        raise
    except SystemExit as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = (
            f"{options.command} did not finish: sys.exit({error.code!r}) was called in {place.filename}, line "
            f"{place.lineno}; let it raise an error instead"
        )
        raise UserError(message, EXIT_RUN_FAILED) from None


def _is_in_process_group() -> bool:
    """True for a rank that a launcher has started, once it has joined the others."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_initialized()


def _rank_prefix() -> str:
    try:
        placement = launched()
    except UserError:  # the launcher's variables are what the error is about
        return ""
    return "" if placement is None else f"rank {placement.rank}: "


def _train(options: argparse.Namespace) -> int:
    resume = options.resume or (options.in_job and _has_checkpoint(options))
    settings = _settings(options, resume)
    from rlcluster.experiments.tuned import hint
    from rlcluster.training.progress import training_summary
    from rlcluster.training.train import Start, train

    advice = hint if launched() is None else None  # a tuned setting is of one machine, and never applied unasked
    result = train(settings, Start(resume, options.in_job, options.max_wall, advice))
    if result.summary:
        from rlcluster.experiments.predictions import record_outcome

        record_outcome(result.run, result.summary, result.num_nodes)
        say(training_summary(result.summary, str(result.run)))
        if result.signal_number is not None:
            say(f"stopped by a signal; continue with: rlcluster train --resume --output-dir {result.run}")
    if result.signal_number == signal.SIGUSR1 and (options.in_job or options.max_wall is not None):
        return EXIT_SAVED
    placement = launched()
    if result.signal_number is None or (placement is not None and placement.max_restarts > 0):
        return 0  # a launcher would take a non-zero code for a failure and restart the ranks
    return 128 + result.signal_number


def _profile(options: argparse.Namespace) -> int:
    from rlcluster.profiling.request import profiled_settings
    from rlcluster.runs.files import new_path

    output = options.output or str(new_path("profile"))
    source = (options.algorithm, options.mode, options.config)
    settings = profiled_settings(source, _given_flags(options), options.updates, output)
    from rlcluster.experiments.flame import find_py_spy, record_flame
    from rlcluster.runs.profile_files import read_profile
    from rlcluster.system.atomic_file import write_json
    from rlcluster.training.train import train

    py_spy = find_py_spy() if options.flame else None
    result = train(settings)
    figures = read_profile(result.run) if result.summary else None
    if options.json is not None and figures is not None:
        write_json(Path(options.json), figures)
    if result.signal_number is not None:
        return 128 + result.signal_number
    return 0 if py_spy is None else record_flame(result.run, settings, py_spy)


def _plan(options: argparse.Namespace) -> int:
    from rlcluster.system import cores

    cores.limit_threads(1)  # this process only waits
    from rlcluster.experiments.planning import PlanRequest, plan_command

    request = PlanRequest(
        source=(options.algorithm, options.mode, options.config),
        flags=_given_flags(options),
        flag_names={field.key: flag_names(field)[0] for field in setting_fields()},
        nodes=options.nodes,
        cores_per_node=options.cores_per_node,
        interconnect=options.interconnect,
        run=Path(options.run) if options.run is not None else None,
        seconds=options.seconds,
        json=Path(options.json) if options.json is not None else None,
    )
    return plan_command(request)


def _tune(options: argparse.Namespace) -> int:
    start = time.perf_counter()  # imports take seconds on a busy machine: they are part of the minutes
    from rlcluster.system import cores

    cores.limit_threads(1)  # this process only waits
    from rlcluster.experiments.tuning import TuneRequest, tune_command

    request = TuneRequest(
        algorithm=options.algorithm,
        config=options.config,
        flags=_given_flags(options),
        flag_names={field.key: flag_names(field)[0] for field in setting_fields()},
        minutes=options.minutes,
        start=start,
        allow_algorithm_changes=options.allow_algorithm_changes,
        output=Path(options.output),
        json=Path(options.json) if options.json is not None else None,
    )
    return tune_command(request)


def _given_flags(options: argparse.Namespace) -> dict[str, str]:
    """The settings given as flags, by key."""
    return {field.key: value for field in setting_fields() if (value := getattr(options, field.key)) is not None}


def _settings(options: argparse.Namespace, resume: bool) -> Settings:
    from rlcluster.runs.config import settings_to_resume

    given = options.algorithm, options.mode, options.config, _given_flags(options)
    return resumed_settings(*given, settings_to_resume) if resume else load_settings(*given)


def _has_checkpoint(options: argparse.Namespace) -> bool:
    """Of a run in a job: its first rank resumes where there is one, and the others follow it."""
    from rlcluster.runs.checkpoints import has_checkpoint

    folder, placement = _given_flags(options).get("output.output_dir"), launched()
    if folder is None:
        raise UserError("--in-job: give --output-dir too, so that a requeued job finds its checkpoint")
    return (placement is None or placement.rank == 0) and has_checkpoint(Path(folder))


def _evaluate(options: argparse.Namespace) -> int:
    from rlcluster.system import cores

    if options.run is not None and options.checkpoint is not None:
        raise UserError(f"evaluate: give RUN={options.run} or --checkpoint {options.checkpoint}, not both")
    options.checkpoint = options.run or options.checkpoint
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
    from rlcluster.runs.files import new_path

    flags = _given_flags(options)
    output_dir = flags.pop("output.output_dir", str(new_path("scale")))
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
    from rlcluster.reports.compare import choose_outputs, compare_command
    from rlcluster.reports.comparison import Options
    from rlcluster.reports.reference import ranges

    paths, titles = [Path(run) for run in options.runs], None
    if options.sequential is not None or options.parallel is not None:
        if options.sequential is None or options.parallel is None or paths:
            raise UserError("compare: give --sequential DIR and --parallel DIR, or the runs alone: RUN RUN ...")
        paths, titles = [Path(options.sequential), Path(options.parallel)], ["Sequential", "Parallel"]
    chosen = Options(ranges(options.score_range), options.threshold, options.reference, options.per_run)
    outputs = partial(choose_outputs, Path(options.output), options.format)
    return compare_command(paths, titles, outputs, chosen, options.panels)


def _plot(options: argparse.Namespace) -> int:
    from rlcluster.reports.compare import plot_command

    run, log_file, output = (
        Path(text) if text is not None else None for text in (options.run, options.log_file, options.output)
    )
    return plot_command(run, log_file, output, options.format, options.reference, options.panels)


def _watch(options: argparse.Namespace) -> int:
    from rlcluster.monitor.watch import watch_command

    return watch_command([Path(run) for run in options.runs], options.once)


def _suite(options: argparse.Namespace) -> int:
    from rlcluster.system import cores

    cores.limit_threads(1)  # this process only waits; the runs have their own threads
    from rlcluster.experiments.suite import How, Part, suite_command

    folder = Path(options.output_dir) if options.output_dir else None
    task_file = Path(options.task_file) if options.task_file else None
    in_job = options.in_job or options.max_wall is not None
    part = Part(options.only, task_file, options.task, options.report_only, in_job)
    with time_limit(options.max_wall):
        return suite_command(Path(options.file), folder, part, How(options.jobs, options.watch))


def _presets(options: argparse.Namespace) -> int:
    from rlcluster.runs.agents import agent_names
    from rlcluster.settings.presets import USES, preset, presets

    if options.show is not None:
        say(preset(options.show).text, end="")
        return 0
    known = presets()
    width = max(len(one.name) for one in known)
    for use in USES:
        say(use)
        for one in known:
            if one.use == use:
                say(f"  {one.name:{width}}  {one.summary}")
    say("rlcluster evaluate NAME (trained agents)")
    for name in agent_names():
        say(f"  {name}")
    return 0


def _submit(options: argparse.Namespace) -> int:
    from rlcluster.cluster.settings import load_job_settings
    from rlcluster.cluster.submit import Submission, SuitePart, submit_suite, submit_training
    from rlcluster.experiments.suite_plan import read_suite
    from rlcluster.runs.files import RUNS_FOLDER

    keys = ("scheduler", "scheduler_args", *(name.replace("-", "_") for name, _, _ in SUBMIT_FLAGS))
    job = load_job_settings(options.site, {key: getattr(options, key) for key in keys})
    template = Path(options.template) if options.template else None
    submission = Submission(job, template, options.after, options.dry_run)
    parser = make_parser()
    parser.refuse_unknown_flags(options.submitted)
    inner = parser.parse_args(options.submitted) if options.submitted else argparse.Namespace(command=None)
    if inner.command == "train":
        return submit_training(submission, *_training_of_job(inner, options.submitted, job.world_size))
    if inner.command == "suite":
        if inner.jobs > 1 or inner.watch or inner.report_only or inner.task_file or inner.max_wall is not None:
            raise UserError("submit: of suite's flags, only --output-dir and --only; for cells at once: --max-running")
        suite = read_suite(Path(inner.file))
        folder = Path(inner.output_dir) if inner.output_dir else RUNS_FOLDER / suite.name
        return submit_suite(submission, SuitePart(suite, folder, inner.only, options.max_running))
    raise UserError("submit: give the command after --, as: rlcluster submit --time 4h -- train ppo --env starpilot")


def _training_of_job(
    inner: argparse.Namespace, arguments: Sequence[str], world_size: int
) -> tuple[Settings, Sequence[str]]:
    """The settings of a training that is to be submitted, and its arguments."""
    if world_size > 1:
        if inner.mode not in (None, "distributed"):
            raise UserError(f"submit: {world_size} ranks but --mode {inner.mode}; leave --mode out")
        arguments = [*arguments, *([] if inner.mode else ["--mode", "distributed"])]
        inner.mode = "distributed"
    folder = _given_flags(inner).get("output.output_dir")
    from rlcluster.runs.checkpoints import has_checkpoint

    resume = folder is not None and has_checkpoint(Path(folder))
    if inner.resume and not resume:
        raise UserError(f"--resume: {folder} has no checkpoint; leave --resume out to begin the run")
    return _settings(inner, resume), [argument for argument in arguments if argument != "--resume"]


def _status(options: argparse.Namespace) -> int:
    from rlcluster.cluster.status import status_command

    return status_command([Path(folder) for folder in options.folders], options.json)


def _cancel(options: argparse.Namespace) -> int:
    from rlcluster.cluster.jobs import cancel_command

    return cancel_command(Path(options.folder))


def _logs(options: argparse.Namespace) -> int:
    from rlcluster.cluster.jobs import logs_command

    return logs_command(Path(options.folder), options.rank, options.follow)


COMMANDS = {
    "train": _train,
    "evaluate": _evaluate,
    "compare": _compare,
    "plot": _plot,
    "watch": _watch,
    "suite": _suite,
    "scale": _scale,
    "profile": _profile,
    "plan": _plan,
    "tune": _tune,
    "check": _check,
    "presets": _presets,
    "submit": _submit,
    "status": _status,
    "cancel": _cancel,
    "logs": _logs,
}
