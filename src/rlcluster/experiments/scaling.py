"""`rlcluster scale`: how speed scales with the number of ranks. Each run is a `rlcluster train` process.

Repeats are interleaved: each repeat runs all world sizes, every second one in reverse order, so that a drift in the
machine's speed does not favour any of them. World size 1 also uses mode parallel: only the number of ranks differs. The
smallest world size is the baseline of the speed-ups (`scaling_statistics`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rlcluster import environments
from rlcluster.experiments.commands import failure_text, rlcluster_command, run_to_completion
from rlcluster.experiments.scaling_output import table_text, write_plots, write_runs, write_summary
from rlcluster.experiments.scaling_statistics import RunRow, State, medians, summarise
from rlcluster.networks import policy
from rlcluster.plan import ranks_that_fit
from rlcluster.runs.files import make_folders, refuse_occupied
from rlcluster.runs.metrics import copy_metrics
from rlcluster.settings.algorithms import ALGORITHMS
from rlcluster.settings.loading import Files, files_of, load_settings
from rlcluster.settings.schema import BUDGETS, Settings
from rlcluster.system import cores, machine
from rlcluster.system.atomic_file import write_atomically
from rlcluster.system.console import clock_text, counted, say
from rlcluster.system.errors import EXIT_RUN_FAILED, UserError
from rlcluster.system.signals import StopRequest

MODE = "parallel"
DEFAULT_UPDATES = 30

# Training settings that this command sets itself, and what to use instead.
DECIDED_HERE = {
    "parallel.num_workers": "--world-sizes sets the number of ranks",
    "parallel.num_envs_per_worker": "with --scaling weak, --num-envs is per rank",
    "output.checkpoint_dir": "each run keeps its checkpoints in its own directory",
    "output.log_dir": "each run keeps its log in its own directory",
}


class ScaleRequest(NamedTuple):
    """The parsed command line. `flags` maps "section.name" to a value, `flag_names` to the flag's name."""

    algorithm: str | None
    config: Files
    flags: Mapping[str, str]
    flag_names: Mapping[str, str]
    world_sizes: tuple[int, ...]
    scalings: tuple[str, ...]
    repeats: int
    warmup_iters: int
    output_dir: Path


class Case(NamedTuple):
    """One world size under one kind of scaling; all its repeats share these settings."""

    scaling: str
    world_size: int
    settings: Settings
    arguments: list[str]  # of `rlcluster`, without the output directory


def scale_command(request: ScaleRequest) -> int:
    """Runs all cases, writes and prints the results; returns 0 if every run finished."""
    cases = plan_cases(request)
    settings = cases[0].settings
    fitting = ranks_that_fit(_threads(settings), cores.observe())
    make_folders(request.output_dir, request.output_dir / "runs", request.output_dir / "logs")
    with StopRequest(ignores_second_signal=True) as stop:  # a second signal must not orphan a run
        rows = _run_all(request, cases, stop)
        summary = summarise(rows, fitting)
        write_summary(request.output_dir, summary, _facts(request, settings, fitting))
        write_plots(request.output_dir, summary, settings, fitting)
    say("\n" + table_text(summary, rows, settings, fitting))
    say(f"Results saved to: {request.output_dir}")
    if stop.signal_number is not None:
        return 128 + stop.signal_number
    return EXIT_RUN_FAILED if any(row.state == "failed" for row in rows) else 0


def plan_cases(request: ScaleRequest) -> list[Case]:
    """The cases, smallest world size first; raises UserError for any problem that can be found before the first run."""
    flags = _common_flags(request)
    base = load_settings(request.algorithm, MODE, request.config, flags)
    if base.traits.helpers:
        others = " or ".join(name for name, record in ALGORITHMS.items() if record.helpers is None)
        raise UserError(f"scale {base.algorithm}: only algorithms with identical ranks can be scaled; use {others}")
    if "hardware.num_threads" not in flags and base.hardware.num_threads is None:
        flags["hardware.num_threads"] = "1"
    _refuse_too_many_ranks(request, base.env.num_envs)
    cases = [
        _case(request, flags, base, scaling, world_size)
        for scaling in request.scalings
        for world_size in sorted(set(request.world_sizes))
    ]
    for case in cases:
        _refuse_too_short(request, case.settings)
    _refuse_untrainable(base)
    refuse_occupied(request.output_dir, "choose another --output-dir")
    return cases


def _common_flags(request: ScaleRequest) -> dict[str, str]:
    """The user's flags, with nulls that override a config file's values for what this command sets itself."""
    for key, reason in DECIDED_HERE.items():
        if key in request.flags:
            raise UserError(f"{key}={request.flags[key]}: {reason}; leave it out")
    flags = {**request.flags, **dict.fromkeys(DECIDED_HERE, "null")}
    if not any(f"training.{budget}" in flags for budget in BUDGETS):
        flags["training.total_updates"] = str(DEFAULT_UPDATES)
    return flags


def _refuse_too_many_ranks(request: ScaleRequest, num_envs: int) -> None:
    largest = max(request.world_sizes)
    if "strong" in request.scalings and largest > num_envs:
        raise UserError(
            f"--world-sizes {largest}: strong scaling partitions env.num_envs={num_envs} environments, at least one "
            f"per rank; use at most {num_envs} ranks, or --num-envs {largest} or more"
        )


def _case(request: ScaleRequest, common: Mapping[str, str], base: Settings, scaling: str, world_size: int) -> Case:
    """Weak scaling multiplies the environments by the number of ranks and, unless the user sets it, the minibatch size
    too: otherwise the number of gradient synchronisations per update would grow.
    """
    num_envs = base.env.num_envs * (world_size if scaling == "weak" else 1)
    flags = {**common, "parallel.num_workers": str(world_size), "env.num_envs": str(num_envs)}
    is_batch_chosen = base.training.batch_size is not None or base.training.n_minibatches is not None
    if scaling == "weak" and base.traits.has_minibatches and not is_batch_chosen:
        flags["training.n_minibatches"] = str(base.num_minibatches)
    settings = load_settings(request.algorithm, MODE, request.config, flags)
    arguments = ["train", settings.algorithm, "--mode", MODE]
    arguments += [part for file in files_of(request.config) for part in ("--config", str(file))]
    arguments += [f"{request.flag_names[key]}={value}" for key, value in flags.items()]
    return Case(scaling, world_size, settings, arguments)


def _refuse_too_short(request: ScaleRequest, settings: Settings) -> None:
    training = settings.training
    updates = training.total_updates or math.inf
    if training.total_timesteps is not None:
        updates = min(updates, math.ceil(training.total_timesteps / settings.rollout_size))
    if request.warmup_iters >= updates:
        raise UserError(
            f"--warmup-iters {request.warmup_iters}: a run with world size {settings.given_processes} has only "
            f"{counted(int(updates), 'update')}, so none is left to measure; use fewer, or --total-updates "
            f"{request.warmup_iters + 1} or more"
        )


def _refuse_untrainable(settings: Settings) -> None:
    spec = environments.describe(settings.env)
    policy.kernels_of(settings.policy, spec, settings.env.seed, settings.hardware.kernels)


def _run_all(request: ScaleRequest, cases: Sequence[Case], stop: StopRequest) -> list[RunRow]:
    """Writes the rows so far to disk after each run."""
    rows: list[RunRow] = []
    order = schedule(cases, request.repeats)
    start = time.perf_counter()
    for case, repeat in order:
        if stop.requested:
            break
        kind = f" ({case.scaling})" if len(request.scalings) > 1 else ""
        ranks = counted(case.world_size, "rank")
        say(f"run {len(rows) + 1} of {len(order)}: {ranks}{kind}, repeat {repeat} ...", end=" ")
        rows.append(_run(request, case, repeat, stop))
        seconds = (time.perf_counter() - start) / len(rows) * (len(order) - len(rows))
        say(_outcome_text(rows[-1]) + ("" if stop.requested else f", ETA {clock_text(seconds)}"))
        write_runs(request.output_dir, rows)
    return rows


def schedule(cases: Sequence[Case], repeats: int) -> list[tuple[Case, int]]:
    """Every case once per repeat, in reverse order in every second repeat."""
    return [
        (case, repeat) for repeat in range(1, repeats + 1) for case in (cases if repeat % 2 else tuple(reversed(cases)))
    ]


def _outcome_text(row: RunRow) -> str:
    return f"{row.fps:,.0f} steps/s" if row.state == "finished" else f"{row.state}: {row.error}"


def _run(request: ScaleRequest, case: Case, repeat: int, stop: StopRequest) -> RunRow:
    name = f"{case.scaling}_workers_{case.world_size}_repeat_{repeat}"
    run, log = request.output_dir / "runs" / name, request.output_dir / "logs" / f"{name}.jsonl"
    exit_code, errors = run_to_completion(training_command(case, run), stop)
    records = copy_metrics(run, case.settings, log)
    measured = medians(records, request.warmup_iters)
    state, error = _state(exit_code, errors, measured.fps is not None, stop)
    if state == "failed" and errors:
        write_atomically(log.with_suffix(".stderr"), errors.encode())
    steps = records[-1]["steps_global"] if records else 0
    return RunRow(case.scaling, case.world_size, repeat, case.settings.env.num_envs, state, steps, *measured, error)


def training_command(case: Case, run: Path) -> list[str]:
    return rlcluster_command(*case.arguments, "--output-dir", str(run))


def _state(exit_code: int, errors: str, is_measured: bool, stop: StopRequest) -> tuple[State, str | None]:
    if exit_code == 0 and is_measured:
        return "finished", None
    if stop.signal_number is not None:
        return "stopped", "by a signal"
    if exit_code == 0:
        return "failed", "no update is left after the warm-up; use a larger budget or fewer --warmup-iters"
    return "failed", failure_text(exit_code, errors)


def _facts(request: ScaleRequest, settings: Settings, fitting: int) -> dict[str, object]:
    return {
        "world_sizes": sorted(set(request.world_sizes)),
        "scalings": request.scalings,
        "repeats": request.repeats,
        "warmup_iters": request.warmup_iters,
        "workers_that_fit": fitting,
        "settings": settings.to_dict(),
        "machine": machine.facts(_threads(settings)),
    }


def _threads(settings: Settings) -> int:
    """Of a rank."""
    assert settings.hardware.num_threads is not None, "plan_cases sets it"
    return settings.hardware.num_threads
