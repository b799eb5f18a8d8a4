"""train(settings) -> run directory: open it, choose the loop, run, close in all cases; in one process or in many."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlcluster.plan import Peers, Plan, num_local_ranks, refuse_too_many_threads, share_of_rank, with_processes
from rlcluster.settings.schema import Settings
from rlcluster.system import cores, machine
from rlcluster.system.console import counted, say, warn
from rlcluster.system.errors import EXIT_STORAGE, UserError, reason_of
from rlcluster.system.launcher import INTERFACE_VARIABLE, LOOPBACK, Placement, launched, prepare_network
from rlcluster.system.scratch import remove_abandoned, scratch_folder
from rlcluster.system.signals import StopRequest, time_limit
from rlcluster.training.callbacks import Answers, Callbacks, Listener, RemoteCallbacks, Silent, awaited, load_callbacks
from rlcluster.training.loops import Job, loop_for
from rlcluster.training.memory import refuse_too_little_memory, refuse_too_many_processes
from rlcluster.training.progress import Reporter, SilentReporter, make_reporter
from rlcluster.training.warm_start import read_initial, share_initial, with_checkpoint_file
from rlcluster.training.watching import hangs_end

if TYPE_CHECKING:
    from rlcluster.exchange.ranks import Ranks
    from rlcluster.runs.checkpoints import Check
    from rlcluster.runs.writer import RunDirectory, SilentRun

LOCAL_ADDRESSES = ("localhost", "127.0.0.1", "::1")


class TrainingResult(NamedTuple):
    run: Path
    summary: dict[str, Any]  # empty on ranks other than the first
    signal_number: int | None  # the signal that stopped the run before its budget was spent
    num_nodes: int = 1  # machines that have ranks


class Start(NamedTuple):
    """How a run is started."""

    resume: bool = False  # from its last checkpoint
    in_job: bool = False  # by the script of a scheduler's job: without a checkpoint the run begins again
    max_wall_seconds: float | None = None  # save and stop after this time; None: no limit
    advice: Callable[[Settings, Plan], str | None] | None = None  # a line for the user about a run's plan; a function


class SpawnedRank(NamedTuple):
    """What a spawned rank is given."""

    settings_json: str
    start: Start
    restarts: int
    rendezvous: str  # the file in which the ranks meet


def train(settings: Settings, start: Start = Start(), callbacks: Sequence[Any] = ()) -> TrainingResult:  # noqa: B008
    """One run from its settings to its summary; raises a UserError for what the user can fix. `callbacks` are called
    in this process, after those of the settings.
    """
    with time_limit(start.max_wall_seconds):
        return _train(settings, start, callbacks)


def _train(settings: Settings, start: Start, callbacks: Sequence[Any]) -> TrainingResult:
    refuse_too_many_threads(settings.hardware.num_threads, cores.observe())
    remove_abandoned()
    placement = launched()
    if settings.mode == "distributed" and placement is not None:
        return _train_on_launched_rank(settings, start, placement, callbacks)
    if placement is not None and placement.world_size > 1:
        raise UserError(
            f"--mode {settings.mode}: a launcher has started {placement.world_size} processes; use --mode distributed"
        )
    listener = Callbacks([*load_callbacks(settings.output.callbacks), *callbacks])
    if settings.mode == "sequential":
        with StopRequest(ignores_second_signal=start.in_job) as stop:
            return _join_and_train(settings, start, Placement(), stop, listener)
    if settings.mode == "distributed" and settings.cluster.master_addr not in LOCAL_ADDRESSES:
        raise UserError(
            f"cluster.master_addr={settings.cluster.master_addr} needs a launcher on each machine, which sets RANK and "
            "WORLD_SIZE: torchrun, for example; leave it out to train on this machine alone"
        )
    settings = _with_local_processes(settings)
    refuse_too_many_processes(settings.given_ranks or 1)
    return _train_on_local_ranks(settings, start, listener)


def _with_local_processes(settings: Settings) -> Settings:
    """From here on the settings hold the number of ranks, and the number of helpers if it was given."""
    if settings.given_ranks is None:
        return with_processes(settings, num_local_ranks(settings, cores.observe()))
    return settings if settings.given_processes is None else with_processes(settings, settings.given_processes)


def _train_on_local_ranks(settings: Settings, start: Start, callbacks: Callbacks) -> TrainingResult:
    """One process per rank. After a failure that may be transient they restart from the last checkpoint."""
    from rlcluster.runs.status import record_failure
    from rlcluster.system.processes import RankFailedError

    settings, path = _with_output_dir(settings)
    restarts, max_restarts = 0, settings.parallel.max_restarts
    with StopRequest(ignores_second_signal=start.in_job) as stop:
        while True:
            try:
                return _spawn_ranks(settings, start, restarts, stop, callbacks)
            except RankFailedError as error:
                record_failure(path, error.reason, error.failed_rank)
                if not error.may_pass or stop.requested or restarts == max_restarts:
                    raise
                restarts += 1
                warn(f"{error}\nrestart {restarts} of {max_restarts}")
            except BaseException as error:  # of a callback; the ranks have ended
                record_failure(path, reason_of(error), None)
                raise


def _with_output_dir(settings: Settings) -> tuple[Settings, Path]:
    """Those who watch a run from outside must know where it is."""
    from rlcluster.runs.files import default_path

    path = Path(settings.output.output_dir or default_path(settings))
    output = settings.output.model_copy(update={"output_dir": str(path)})
    return settings.model_copy(update={"output": output}), path


def _spawn_ranks(
    settings: Settings, start: Start, restarts: int, stop: StopRequest, callbacks: Callbacks
) -> TrainingResult:
    """The ranks rendezvous in a file that only this user can read, so no port is open to other machines.

    The file is not in the run directory, which may be on a network file system with slow or missing locks.
    """
    from rlcluster.system.processes import RankFailedError, run_ranks

    assert settings.given_ranks is not None
    with scratch_folder() as folder:
        given = SpawnedRank(settings.model_dump_json(), start, restarts, str(folder / "rendezvous"))
        timeout_seconds = settings.parallel.timeout_seconds
        answers = Answers(callbacks) if callbacks.is_asked else None
        try:
            result: TrainingResult = run_ranks(
                settings.given_ranks, _train_on_spawned_rank, (given,), stop, timeout_seconds, answers
            )[0]
        except RankFailedError:
            if answers is not None and answers.error is not None:
                raise answers.error from None
            raise
    return result


def _train_on_spawned_rank(rank: int, stop: StopRequest, given: SpawnedRank, pipe: Any = None) -> TrainingResult:
    """`pipe`: rank 0's to the callbacks, if there are any."""
    settings = Settings.model_validate_json(given.settings_json)
    assert settings.given_ranks is not None
    world_size = settings.given_ranks
    os.environ[INTERFACE_VARIABLE] = LOOPBACK
    placement = Placement(rank, world_size, rank, world_size, given.restarts, settings.parallel.max_restarts)
    callbacks = Silent() if pipe is None else RemoteCallbacks(pipe)
    return _join_and_train(settings, given.start, placement, stop, callbacks, given.rendezvous)


def _train_on_launched_rank(
    settings: Settings, start: Start, placement: Placement, callbacks: Sequence[Any]
) -> TrainingResult:
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
    listener: Listener = Silent()
    if placement.rank == 0:
        settings, _ = _with_output_dir(with_processes(settings, placement.world_size))
        listener = Callbacks([*load_callbacks(settings.output.callbacks), *callbacks])
    prepare_network(placement, settings.cluster.master_addr, settings.cluster.master_port)
    with StopRequest(ignores_second_signal=True) as stop:
        return _join_and_train(settings, start, placement, stop, listener)


def _join_and_train(
    settings: Settings,
    start: Start,
    placement: Placement,
    stop: StopRequest,
    callbacks: Listener,
    rendezvous: str | None = None,
) -> TrainingResult:
    """Limits threads and pins cores before torch starts, joins the other ranks and takes rank 0's settings."""
    share = share_of_rank(settings, cores.observe(), Peers.expected(placement))
    cores.pin_to(share.cores)
    cores.limit_threads(share.threads, is_final=placement.world_size == 1)
    from rlcluster.exchange.ranks import Ranks, join_group
    from rlcluster.training.introduction import introduce

    ranks = (
        Ranks() if placement.world_size == 1 else join_group(placement, settings.parallel.timeout_seconds, rendezvous)
    )
    settings, peers, num_nodes = introduce(settings, start.resume, ranks)
    settings = _with_initial_file(settings, start, ranks)
    cores.limit_threads(share_of_rank(settings, cores.observe(), peers).threads)
    max_restarts = ranks.broadcast(str(placement.max_restarts).encode() if placement.rank == 0 else None)
    ranks.placement = placement._replace(max_restarts=int(max_restarts))
    if placement.world_size > 1:
        is_asked = bool(ranks.broadcast(bytes([callbacks.is_asked]) if placement.rank == 0 else None)[0])
        callbacks = callbacks if placement.rank == 0 else Silent(is_asked)
    with hangs_end(settings, placement):
        return _train_on_rank(settings, start, ranks, stop, callbacks)._replace(num_nodes=num_nodes)


def _with_initial_file(settings: Settings, start: Start, ranks: Ranks) -> Settings:
    """Rank 0 finds the checkpoint of a warm start: other machines need not have its files."""
    if ranks.rank > 0:
        return Settings.model_validate_json(ranks.broadcast(None))
    own = settings if start.resume else with_checkpoint_file(settings)
    ranks.broadcast(own.model_dump_json().encode())
    return own


def _train_on_rank(
    settings: Settings, start: Start, ranks: Ranks, stop: StopRequest, callbacks: Listener
) -> TrainingResult:
    """Everything is decided and refused before the run directory exists."""
    from rlcluster import environments
    from rlcluster.networks import policy
    from rlcluster.runs.reader import read_summary
    from rlcluster.training.introduction import Convolutions, compare_convolutions, cores_line
    from rlcluster.training.planning import agree_on_plan
    from rlcluster.training.restoring import refuse_unrestorable

    spec = environments.describe(settings.env)
    network = policy.choose_network(settings.policy, spec)
    kernels = policy.kernels_of(settings.policy, spec, settings.env.seed, settings.hardware.kernels)
    compare_convolutions(Convolutions.of(kernels), ranks)
    chosen = settings.policy.model_copy(update={"network": network})
    settings = settings.model_copy(update={"policy": chosen})
    _refuse_before_the_run_exists(settings, start, ranks)
    threads_that_pay = policy.threads_that_pay(settings.policy, settings.hardware, spec)
    plan = agree_on_plan(settings, ranks, kernels != "torch", threads_that_pay)
    refuse_too_little_memory(settings, plan, ranks.placement, spec)
    initial = read_initial(settings, spec) if ranks.rank == 0 and not start.resume else None
    cores.pin_to(plan.ranks[ranks.rank].cores)
    _warn_of_too_many_threads(plan, ranks.placement)
    if ranks.placement.host:  # a launcher has started this rank
        say(cores_line(ranks.placement, cores.observe(), plan.ranks[ranks.rank].cores))
    check = partial(refuse_unrestorable, settings=settings, spec=spec)
    with _open_run(settings, plan, start, ranks, check) as run:
        if ranks.rank == 0:
            say(_heading(settings, plan, f"{network} network ({kernels})") + f" -> {run.path}")
            advice = None if start.advice is None else start.advice(settings, plan)
            if advice is not None:
                say(advice)
        if settings.policy.init_from is not None:
            initial = share_initial(initial, ranks)
            if ranks.rank == 0 and run.restored is None:
                say(f"it begins with the {settings.policy.init_with} of {settings.policy.init_from}")
        reporter = _reporter(settings, ranks, run.path)
        job = Job(settings, plan, ranks, run, stop, reporter, awaited(callbacks, ranks), initial)
        is_finished = loop_for(settings)(job)
        signal_number = _signal_of_any_rank(stop.signal_number, ranks)
        if is_finished:
            run.conclude("finished")
        else:
            run.conclude("preempted", signal.Signals(signal_number).name)
    summary = read_summary(run.path) if ranks.rank == 0 else {}
    if ranks.rank == 0 and not summary:
        left = f"{run.path} stays as it was" if run.path.exists() else f"nothing is left in {run.path}"
        say(f"stopped by a signal before the first update; {left}")
    return TrainingResult(run.path, summary, None if is_finished else signal_number)


def _heading(settings: Settings, plan: Plan, network: str) -> str:
    ranks = f"{counted(plan.world_size, 'rank')} with " if plan.world_size > 1 else ""
    return (
        f"{settings.log_name} on {settings.env.name}: {counted(settings.env.num_envs, 'environment')}, {network}, "
        f"{ranks}{counted(plan.learner_threads, 'thread')}"
    )


def _refuse_before_the_run_exists(settings: Settings, start: Start, ranks: Ranks) -> None:
    """What would be refused later anyway, before anything is measured or written."""
    from rlcluster.exchange.shared_parameters import require_store_order
    from rlcluster.runs.writer import refuse_unusable

    if settings.traits.helpers_in(settings.mode) == "actors":
        require_store_order()
    folder = settings.hardware.rollout_dir
    if folder is not None and not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"hardware.rollout_dir={folder} is not a writable folder; create it first", EXIT_STORAGE)
    if ranks.rank == 0:
        refuse_unusable(settings, start.resume, start.in_job or ranks.placement.restarts > 0)


def _signal_of_any_rank(own: int | None, ranks: Ranks) -> int:
    import torch

    return int(ranks.max_(torch.tensor([own or 0])))


@contextmanager
def _open_run(
    settings: Settings, plan: Plan, start: Start, ranks: Ranks, check: Check
) -> Iterator[RunDirectory | SilentRun]:
    """Rank 0 opens the run directory and broadcasts the checkpoint of a resumed run; the others write nothing."""
    from rlcluster.runs.checkpoint import checkpoint_bytes, load_checkpoint
    from rlcluster.runs.writer import SilentRun, open_run

    if ranks.rank > 0:
        path = Path(ranks.broadcast(None).decode())
        content = ranks.broadcast(None)
        yield SilentRun(path, load_checkpoint(path, content).content if content else None)
        return
    with open_run(settings, start.resume, ranks.placement.restarts, check, start.in_job) as run:
        ranks.broadcast(str(run.path).encode())
        ranks.broadcast(bytes(checkpoint_bytes(run.restored)) if run.restored and ranks.world_size > 1 else b"")
        run.write_machine_facts(machine.facts(plan.learner_threads))
        _note_other_threads(run, plan)
        run.write_plan(plan)
        yield run


def _note_other_threads(run: RunDirectory, plan: Plan) -> None:
    """Sums of floating-point numbers are taken in another order by another number of threads or ranks."""
    before = run.read_plan() if run.restored is not None else None
    if before is None:
        return
    parts = ((one.world_size, one.learner_threads) for one in (before, plan))
    was, now = (f"{counted(ranks, 'rank')} with {counted(threads, 'thread')}" for ranks, threads in parts)
    if was != now:
        say(f"note: this run had {was} and resumes with {now}: its course is the same up to rounding, not to the bit")


def _reporter(settings: Settings, ranks: Ranks, run: Path) -> Reporter:
    title = f"{settings.log_name} on {settings.env.name}"
    return make_reporter(title, run) if ranks.rank == 0 else SilentReporter()


def _warn_of_too_many_threads(plan: Plan, placement: Placement) -> None:
    """Once per machine, counting the processes that learn on it."""
    if placement.local_rank > 0:
        return
    own = plan.ranks[placement.rank]
    learners, num_cores = plan.learners(placement.rank), own.cores_allowed
    num_processes, threads = own.num_peers * len(learners), learners[0]
    if num_processes * threads > num_cores:
        warn(
            f"{counted(num_processes, 'process')} x {counted(threads, 'thread')} share "
            f"{counted(num_cores, 'core')}: they alternate; slower than {counted(num_cores, 'thread')} in all"
        )
