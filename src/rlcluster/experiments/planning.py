"""`rlcluster plan`: measure one node for a minute, or read a run; then forecast the run on many nodes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlcluster import environments
from rlcluster.environments.interface import EnvironmentSpec
from rlcluster.experiments.commands import failure_text, rlcluster_command, run_to_completion
from rlcluster.experiments.forecast import (
    NETWORKS,
    Forecast,
    Measured,
    Network,
    Workload,
    flat,
    forecast,
    nodes_that_pay,
)
from rlcluster.experiments.predictions import remember, track_record
from rlcluster.experiments.probe import probe_hosts, probe_local
from rlcluster.networks import policy
from rlcluster.runs.plan_file import read_plan
from rlcluster.runs.reader import RecordedRun, read_run
from rlcluster.runs.sizes import checkpoint_bytes, log_bytes
from rlcluster.settings.algorithms import OPTIMIZER_STATISTICS
from rlcluster.settings.loading import Files, files_of, load_settings
from rlcluster.settings.schema import BUDGETS, Settings
from rlcluster.system import cores, machine
from rlcluster.system.atomic_file import write_json
from rlcluster.system.console import counted, say
from rlcluster.system.errors import EXIT_RUN_FAILED, UserError
from rlcluster.system.launcher import Placement, launched
from rlcluster.system.scratch import scratch_folder
from rlcluster.system.signals import StopRequest

PROBE_SECONDS = 10.0
MEASURE, DEFAULT_NETWORK = "MEASURE", "10GbE"
MIN_UPDATES = 3  # to measure, after the first one
SMALL_PER_UPDATE = 6  # collectives of an update besides gradients and the statistics of each epoch


class PlanRequest(NamedTuple):
    """The parsed command line. `flags` maps "section.name" to a value, `flag_names` to the flag's name."""

    source: tuple[str | None, str | None, Files]  # algorithm, mode, files
    flags: Mapping[str, str]
    flag_names: Mapping[str, str]
    nodes: tuple[int, ...]
    cores_per_node: int | None
    interconnect: str | None  # None: what is measured between hosts, if a launcher has started ranks there, else 10GbE
    run: Path | None  # take the measurement from this run
    seconds: float
    json: Path | None


def plan_command(request: PlanRequest) -> int:
    """Prints and writes the forecast; returns the exit code."""
    settings = load_settings(*request.source, dict(request.flags))
    if settings.mode == "sequential":
        _refuse_what_one_process_cannot_use(request)
    placement = launched()
    with StopRequest(ignores_second_signal=True) as stop:
        between = None
        if placement is not None and placement.world_size > 1:
            between = _probe_hosts(placement, settings, stop)
            if placement.rank > 0:
                return 0 if stop.signal_number is None else 128 + stop.signal_number
        if stop.signal_number is None:
            say(f"probing gloo on this machine for {PROBE_SECONDS:.0f} s ...")
            local = probe_local(PROBE_SECONDS, stop)
        if stop.signal_number is not None:
            return 128 + stop.signal_number
        measured, run = _measure(request, settings, local, stop)
        if measured is None or run is None:
            return 128 + (stop.signal_number or 0)
    workload = workload_of(settings, run.settings.policy.network)
    refuse_other_work(settings, run)
    cores_per_node = request.cores_per_node or measured.num_cores
    name, network = _network(request.interconnect, local, between)
    forecasts = [forecast(measured, workload, nodes, cores_per_node, network) for nodes in sorted(set(request.nodes))]
    best = 1 if settings.mode == "sequential" else nodes_that_pay(measured, workload, cores_per_node, network)
    remember(settings, str(run.settings.policy.network), forecasts)
    say(_table(forecasts))
    if settings.mode != "sequential":
        say(f"between nodes: {name}, {_shown(network)}\n{_limit(best, cores_per_node, workload.num_envs)}")
    say(_closing(measured, local))
    if request.json is not None:
        _write_figures(request.json, (best, local, name, network), forecasts)
    return 0


def _refuse_what_one_process_cannot_use(request: PlanRequest) -> None:
    if max(request.nodes) > 1:
        raise UserError(f"--nodes {max(request.nodes)}: mode sequential uses one; use --mode distributed")
    if request.cores_per_node is not None:
        raise UserError(
            f"--cores-per-node {request.cores_per_node}: mode sequential is one process and uses the cores of its "
            "threads; leave it out, or use --mode parallel"
        )


def _write_figures(file: Path, found: tuple[int, Network, str, Network], forecasts: list[Forecast]) -> None:
    """One flat object, with units in the names."""
    best, local, name, network = found
    figures = {
        "nodes_that_pay": best,
        "latency_seconds": local.latency_seconds,
        "bytes_per_second": local.bytes_per_second,
        "interconnect": name,
        "interconnect_latency_seconds": network.latency_seconds,
        "interconnect_bytes_per_second": network.bytes_per_second,
    }
    write_json(file, {**figures, **flat(forecasts)})


def _probe_hosts(placement: Placement, settings: Settings, stop: StopRequest) -> Network:
    """On every host; from here on rank 0 is alone."""
    if placement.rank == 0:
        say(f"probing gloo between {counted(placement.world_size, 'host')} for {PROBE_SECONDS:.0f} s ...")
    return probe_hosts(placement, (settings.cluster.master_addr, settings.cluster.master_port), PROBE_SECONDS, stop)


def workload_of(settings: Settings, network: str | None) -> Workload:
    """What an update computes and exchanges."""
    spec = environments.describe(settings.env)
    chosen = settings.policy if network is None else settings.policy.model_copy(update={"network": network})
    made = policy.make_policy(chosen, spec, 0, "torch")
    num_parameters = sum(tensor.numel() for tensor in made.parameters())
    parallel, helpers = settings.parallel, settings.traits.helpers
    exchanged_bytes, exchanges = 4.0 * (num_parameters + 1), float(settings.n_epochs * settings.num_minibatches)
    if parallel.wire_dtype == "bfloat16":
        exchanged_bytes /= 2
    if parallel.sync_strategy == "parameters" or helpers == "workers":
        averaged = 1 + len(OPTIMIZER_STATISTICS[settings.optimizer])  # the parameters and the optimiser's statistics
        exchanges = averaged / parallel.sync_updates
    return Workload(
        steps_per_update=settings.rollout_size,
        num_envs=settings.env.num_envs,
        num_exchanges=exchanges,
        num_small=settings.n_epochs + SMALL_PER_UPDATE,
        exchanged_bytes=exchanged_bytes,
        rollout_bytes_per_env=_rollout_bytes(settings, spec),
        total_steps=_budget_in_steps(settings),
        total_seconds=settings.training.duration,
        has_one_rank=settings.mode == "sequential" or helpers is not None,
    )


def refuse_other_work(settings: Settings, run: RecordedRun) -> None:
    """A measured run of another kind says nothing about this one. Only its number of steps may differ. A run of many
    ranks says nothing about one process; that of one process is what the model divides among ranks.
    """

    def kind(of: Settings, network: str | None) -> dict[str, Any]:
        return {
            **({"mode": of.mode} if settings.mode == "sequential" else {}),
            "algorithm": of.algorithm,
            "env.name": of.env.name,
            "env.frame_stack": of.env.frame_stack,
            "policy.network": network,
            "training.n_epochs": of.n_epochs,
            "hardware.kernels": of.hardware.kernels,
        }

    theirs = kind(run.settings, run.settings.policy.network)
    ours = kind(settings, settings.policy.network or run.settings.policy.network)
    other = [f"{key}={theirs[key]} instead of {ours[key]}" for key in ours if ours[key] != theirs[key]]
    if other:
        raise UserError(f"--run {run.path}: it has {', '.join(other)}; give a run with the same settings, or no --run")


def _rollout_bytes(settings: Settings, spec: EnvironmentSpec) -> float:
    """Observations are nearly all of a rollout; actors keep several rollouts."""
    copies = settings.parallel.slots_per_actor if settings.traits.helpers == "actors" else 1
    size = int(np.prod(spec.observation_shape)) * np.dtype(spec.observation_dtype).itemsize
    return float(copies * (settings.training.n_steps + 1) * size)


def _budget_in_steps(settings: Settings) -> int | None:
    training = settings.training
    if training.total_updates is not None:
        return training.total_updates * settings.rollout_size
    return training.total_timesteps


def _measure(
    request: PlanRequest, settings: Settings, local: Network, stop: StopRequest
) -> tuple[Measured | None, RecordedRun | None]:
    """From a run, or by a short one here; None if a signal came."""
    if request.run is not None:
        run = read_run(request.run)
        return measured_from(run, local), run
    with scratch_folder() as folder:
        path = folder / "run"
        mode = "parallel" if settings.mode == "distributed" else settings.mode
        say(f"training for {request.seconds:.0f} s in mode {mode} ...")
        _train(_first_part(request, settings.algorithm, mode, path), stop)
        if stop.signal_number is None and len(read_run(path).metrics) <= MIN_UPDATES:
            say(f"an update takes long here: training on, to {MIN_UPDATES + 1} updates ...")
            more = ("--resume", "--output-dir", str(path), "--total-updates", str(MIN_UPDATES + 1))
            _train(["train", *more], stop)
        if stop.signal_number is not None:
            return None, None
        run = read_run(path)
        return measured_from(run, local), run


def _train(arguments: list[str], stop: StopRequest) -> None:
    """Raises a UserError if the run fails."""
    code, errors = run_to_completion(rlcluster_command(*arguments), stop)
    if code != 0 and stop.signal_number is None:
        raise UserError(f"plan: the measured run failed: {failure_text(code, errors)}", EXIT_RUN_FAILED)
    if errors:
        say(errors.rstrip(), stream=sys.stderr)


def _first_part(request: PlanRequest, algorithm: str, mode: str, path: Path) -> list[str]:
    """The command that trains for the given seconds."""
    dropped = [*(f"training.{budget}" for budget in BUDGETS), "output.output_dir"]
    if mode == "parallel":
        dropped += ["cluster.num_workers", "cluster.master_addr", "cluster.master_port", "parallel.workers_per_rank"]
    given = {key: value for key, value in request.flags.items() if key not in dropped}
    arguments = ["train", algorithm, "--mode", mode]
    arguments += [part for file in files_of(request.source[2]) for part in ("--config", str(file))]
    arguments += [f"{request.flag_names[key]}={value}" for key, value in given.items()]
    return [*arguments, "--duration", f"{request.seconds:g}s", "--output-dir", str(path)]


def measured_from(run: RecordedRun, local: Network) -> Measured:
    """Raises a UserError if the run is too short to measure anything."""
    updates, syncs = list(run.metrics["t_iter"])[1:], list(run.metrics["t_sync"])[1:]
    plan = read_plan(run.path, [])
    if plan is None or len(updates) < MIN_UPDATES:
        raise UserError(
            f"plan: {counted(len(updates), 'update')} after the first cannot be measured; give --seconds more, or "
            "--run a longer run"
        )
    return Measured(
        workload=workload_of(run.settings, run.settings.policy.network),
        update_seconds=tuple(map(float, updates)),
        sync_seconds=tuple(map(float, syncs)),
        num_ranks=plan.world_size,
        num_cores=plan.num_cores,
        num_helpers=sum(len(rank.helpers) for rank in plan.ranks),
        memory_gb=float(run.summary["peak_memory_gb"]),
        checkpoint_gb=(1 + run.settings.output.keep_checkpoints) * checkpoint_bytes(run.path, run.settings) / 2**30,
        log_bytes_per_update=log_bytes(run.path, run.settings) / (len(updates) + 1),
        local=local,
    )


def _network(given: str | None, local: Network, between: Network | None) -> tuple[str, Network]:
    """Between nodes, with its name."""
    if between is not None and given in (None, MEASURE):
        return "measured between the hosts", between
    if given == MEASURE:
        return "as between two ranks of this machine", local
    return given or DEFAULT_NETWORK, NETWORKS[given or DEFAULT_NETWORK]


def _shown(network: Network) -> str:
    return f"{1e6 * network.latency_seconds:.0f} µs, {network.bytes_per_second / 1e9:.2f} GB/s"


def _table(forecasts: list[Forecast]) -> str:
    headings = (
        f"{'nodes':>6}{'cores':>7}{'ranks':>7}{'steps/s':>10}{'interval':>24}{'hours':>9}{'core-hours':>12}"
        f"{'GB/node':>9}{'disk GB':>9}{'network':>9}{'waiting':>9}"
    )
    rows = []
    for one in forecasts:
        interval = f"{one.steps_per_second_low:,.0f} to {one.steps_per_second_high:,.0f}"
        hours = "-" if one.wall_hours is None else f"{one.wall_hours:,.2f}"
        core_hours = "-" if one.core_hours is None else f"{one.core_hours:,.1f}"
        rows.append(
            f"{one.nodes:6}{one.cores:7}{one.ranks:7}{one.steps_per_second:10,.0f}{interval:>24}{hours:>9}"
            f"{core_hours:>12}{one.memory_gb_per_node:9.2f}{one.disk_gb:9.2f}{one.network_share:9.1%}"
            f"{one.straggler_share:9.1%}"
        )
    return "\n".join([headings, *rows])


def _limit(best: int, cores_per_node: int, num_envs: int) -> str:
    few = 2 * best > num_envs
    reason = f"env.num_envs={num_envs} are too few" if few else "twice as many are not 1.2 times as fast"
    return f"more than {counted(best, 'node')} of {counted(cores_per_node, 'core')} do not pay: {reason}"


def _closing(measured: Measured, local: Network) -> str:
    """What was measured, and how good earlier forecasts were."""
    line = (
        f"measured on {machine.cpu_model()}: {counted(len(measured.update_seconds), 'update')}, "
        f"{counted(measured.num_ranks, 'rank')}, {measured.num_cores} of {cores.allowed()} cores; gloo here: "
        f"{_shown(local)}"
    )
    record = track_record()
    return line if record is None else f"{line}\n{record}"
