"""train(settings) -> run directory: open it, choose the loop, run, close in all cases; in one process or in many."""

from __future__ import annotations

import io
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlcluster.plan import Plan, num_local_ranks, share_of_rank, with_processes
from rlcluster.settings.schema import Settings
from rlcluster.system import cores, machine
from rlcluster.system.console import counted, say, warn
from rlcluster.system.errors import EXIT_STORAGE, UserError
from rlcluster.system.launcher import INTERFACE_VARIABLE, LOOPBACK, Placement, launched, prepare_network
from rlcluster.system.signals import StopRequest
from rlcluster.training.loops import Job, loop_for
from rlcluster.training.progress import Reporter, SilentReporter, make_reporter

if TYPE_CHECKING:
    from rlcluster.exchange.ranks import Ranks
    from rlcluster.runs.writer import RunDirectory, SilentRun

LOCAL_ADDRESSES = ("localhost", "127.0.0.1", "::1")


class TrainingResult(NamedTuple):
    run: Path
    summary: dict[str, Any]  # empty on ranks other than the first
    signal_number: int | None  # the signal that stopped the run before its budget was spent


def train(settings: Settings, resume: bool = False) -> TrainingResult:
    """One run from its settings to its summary; raises a UserError for what the user can fix."""
    placement = launched()
    if settings.mode == "distributed" and placement is not None:
        return _train_on_launched_rank(settings, resume, placement)
    if placement is not None and placement.world_size > 1:
        raise UserError(
            f"--mode {settings.mode}: a launcher has started {placement.world_size} processes; use --mode distributed"
        )
    if settings.mode == "sequential":
        with StopRequest() as stop:
            return _join_and_train(settings, resume, Placement(), stop)
    if settings.mode == "distributed" and settings.cluster.master_addr not in LOCAL_ADDRESSES:
        raise UserError(
            f"cluster.master_addr={settings.cluster.master_addr} needs a launcher on each machine, which sets RANK and "
            "WORLD_SIZE: torchrun, for example; leave it out to train on this machine alone"
        )
    return _train_on_local_ranks(_with_local_processes(settings), resume)


def _with_local_processes(settings: Settings) -> Settings:
    """From here on the settings hold the number of ranks, and the number of helpers if it was given."""
    if settings.given_ranks is None:
        return with_processes(settings, num_local_ranks(settings, cores.observe()))
    return settings if settings.given_processes is None else with_processes(settings, settings.given_processes)


def _train_on_local_ranks(settings: Settings, resume: bool) -> TrainingResult:
    """One process per rank. After a failure that may be transient they restart from the last checkpoint."""
    from rlcluster.runs.files import default_path
    from rlcluster.runs.status import record_failure
    from rlcluster.system.processes import RankFailedError

    path = Path(settings.output.output_dir or default_path(settings))
    output = settings.output.model_copy(update={"output_dir": str(path)})
    settings = settings.model_copy(update={"output": output})
    restarts, max_restarts = 0, settings.parallel.max_restarts
    with StopRequest() as stop:
        while True:
            try:
                return _spawn_ranks(settings, resume, restarts, stop)
            except RankFailedError as error:
                record_failure(path, error.reason, error.failed_rank)
                if not error.may_pass or stop.requested or restarts == max_restarts:
                    raise
                restarts += 1
                warn(f"{error}\nrestart {restarts} of {max_restarts}")


def _spawn_ranks(settings: Settings, resume: bool, restarts: int, stop: StopRequest) -> TrainingResult:
    """The ranks rendezvous in a file that only this user can read, so no port is open to other machines.

    The file is not in the run directory, which may be on a network file system with slow or missing locks.
    """
    from rlcluster.system.processes import run_ranks

    assert settings.given_ranks is not None
    with tempfile.TemporaryDirectory(prefix="rlcluster-") as folder:
        arguments = settings.model_dump_json(), resume, restarts, str(Path(folder, "rendezvous"))
        timeout_seconds = settings.parallel.timeout_seconds
        result: TrainingResult = run_ranks(
            settings.given_ranks, _train_on_spawned_rank, arguments, stop, timeout_seconds
        )[0]
    return result


def _train_on_spawned_rank(
    rank: int, stop: StopRequest, settings_json: str, resume: bool, restarts: int, rendezvous: str
) -> TrainingResult:
    settings = Settings.model_validate_json(settings_json)
    assert settings.given_ranks is not None
    world_size = settings.given_ranks
    os.environ[INTERFACE_VARIABLE] = LOOPBACK
    placement = Placement(rank, world_size, rank, world_size, restarts, settings.parallel.max_restarts)
    return _join_and_train(settings, resume, placement, stop, rendezvous)


def _train_on_launched_rank(settings: Settings, resume: bool, placement: Placement) -> TrainingResult:
    """Rank 0's settings apply everywhere: other machines need neither the run directory nor the same files."""
    from rlcluster.system.processes import die_with_parent

    if placement.is_under_torchrun:
        die_with_parent(os.getppid())
    if settings.given_processes not in (None, placement.world_size):
        raise UserError(
            f"num_workers={settings.given_processes} but the launcher has started WORLD_SIZE={placement.world_size} "
            "ranks; leave it out"
        )
    if settings.parallel.max_restarts:
        raise UserError(
            f"parallel.max_restarts={settings.parallel.max_restarts}: the launcher restarts its ranks; give it "
            "--max-restarts instead"
        )
    if placement.max_restarts and settings.output.output_dir is None:
        raise UserError("--max-restarts: give --output-dir too, so that restarted ranks find their checkpoint")
    if placement.rank == 0:
        settings = with_processes(settings, placement.world_size)
    prepare_network(placement, settings.cluster.master_addr, settings.cluster.master_port)
    with StopRequest(ignores_second_signal=True) as stop:
        return _join_and_train(settings, resume, placement, stop)


def _join_and_train(
    settings: Settings, resume: bool, placement: Placement, stop: StopRequest, rendezvous: str | None = None
) -> TrainingResult:
    """Limits threads and pins cores before torch starts, joins the other ranks and takes rank 0's settings."""
    share = share_of_rank(settings, cores.observe(), placement)
    cores.pin_to(share.cores)
    cores.limit_threads(share.threads)
    from rlcluster.exchange.ranks import Ranks, join_group

    ranks = (
        Ranks() if placement.world_size == 1 else join_group(placement, settings.parallel.timeout_seconds, rendezvous)
    )
    own = settings.model_dump_json().encode() if placement.rank == 0 else None
    settings = Settings.model_validate_json(ranks.broadcast(own))
    threads = share_of_rank(settings, cores.observe(), placement).threads
    if threads != share.threads:  # rank 0 was given another number
        cores.limit_threads(threads)
    max_restarts = ranks.broadcast(str(placement.max_restarts).encode() if placement.rank == 0 else None)
    ranks.placement = placement._replace(max_restarts=int(max_restarts))
    return _train_on_rank(settings, resume, ranks, stop)


def _train_on_rank(settings: Settings, resume: bool, ranks: Ranks, stop: StopRequest) -> TrainingResult:
    """Everything is decided and refused before the run directory exists."""
    from rlcluster import environments
    from rlcluster.networks import policy
    from rlcluster.runs.reader import read_summary
    from rlcluster.training.planning import agree_on_plan

    spec = environments.describe(settings.env)
    network = policy.choose_network(settings.policy, spec)
    kernels = policy.choose_kernels(settings.hardware.kernels, network, spec)
    chosen = settings.policy.model_copy(update={"network": network})
    settings = settings.model_copy(update={"policy": chosen})
    _refuse_before_the_run_exists(settings, resume, ranks)
    plan = agree_on_plan(settings, ranks, kernels is not None)
    cores.pin_to(plan.ranks[ranks.rank].cores)
    _warn_of_too_many_threads(plan, ranks.placement)
    with _open_run(settings, plan, resume, ranks) as run:
        if ranks.rank == 0:
            instructions = kernels.instruction_set if kernels else "torch"
            say(_heading(settings, plan, f"{network} network ({instructions})") + f" -> {run.path}")
        is_finished = loop_for(settings)(Job(settings, plan, ranks, run, stop, _reporter(ranks)))
        signal_number = _signal_of_any_rank(stop.signal_number, ranks)
        if is_finished:
            run.conclude("finished")
        else:
            run.conclude("preempted", signal.Signals(signal_number).name)
    summary = read_summary(run.path) if ranks.rank == 0 else {}
    return TrainingResult(run.path, summary, None if is_finished else signal_number)


def _heading(settings: Settings, plan: Plan, network: str) -> str:
    ranks = f"{counted(plan.world_size, 'rank')} with " if plan.world_size > 1 else ""
    return (
        f"{settings.log_name} on {settings.env.name}: {counted(settings.env.num_envs, 'environment')}, {network}, "
        f"{ranks}{counted(plan.learner_threads, 'thread')}"
    )


def _refuse_before_the_run_exists(settings: Settings, resume: bool, ranks: Ranks) -> None:
    """What would be refused later anyway, before anything is measured or written."""
    from rlcluster.exchange.shared_parameters import require_store_order
    from rlcluster.runs.writer import refuse_unusable

    if settings.traits.helpers_in(settings.mode) == "actors":
        require_store_order()
    folder = settings.hardware.rollout_dir
    if folder is not None and not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"hardware.rollout_dir={folder} is not a writable folder; create it first", EXIT_STORAGE)
    if ranks.rank == 0:
        refuse_unusable(settings, resume, ranks.placement.restarts)


def _signal_of_any_rank(own: int | None, ranks: Ranks) -> int:
    import torch

    return int(ranks.max_(torch.tensor([own or 0])))


@contextmanager
def _open_run(settings: Settings, plan: Plan, resume: bool, ranks: Ranks) -> Iterator[RunDirectory | SilentRun]:
    """Rank 0 opens the run directory and broadcasts the checkpoint of a resumed run; the others write nothing."""
    from rlcluster.runs.checkpoint import checkpoint_bytes, load_checkpoint
    from rlcluster.runs.writer import SilentRun, open_run

    if ranks.rank > 0:
        path = Path(ranks.broadcast(None).decode())
        content = ranks.broadcast(None)
        yield SilentRun(path, load_checkpoint(path, io.BytesIO(content)) if content else None)
        return
    with open_run(settings, resume, ranks.placement.restarts) as run:
        ranks.broadcast(str(run.path).encode())
        ranks.broadcast(bytes(checkpoint_bytes(run.restored)) if run.restored and ranks.world_size > 1 else b"")
        run.write_machine_facts(machine.facts(plan.learner_threads))
        run.write_plan(plan)
        yield run


def _reporter(ranks: Ranks) -> Reporter:
    return make_reporter() if ranks.rank == 0 else SilentReporter()


def _warn_of_too_many_threads(plan: Plan, placement: Placement) -> None:
    """Once per machine, counting the processes that learn on it."""
    if placement.local_rank > 0:
        return
    learners, num_cores = plan.learners(placement.rank), plan.ranks[placement.rank].cores_allowed
    num_processes, threads = placement.local_world_size * len(learners), learners[0]
    if num_processes * threads > num_cores:
        warn(
            f"{counted(num_processes, 'process')} x {counted(threads, 'thread')} share "
            f"{counted(num_cores, 'core')}: they alternate; slower than {counted(num_cores, 'thread')} in all"
        )
