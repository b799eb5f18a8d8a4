"""train(settings) -> run directory: open it, choose the loop, run, close in all cases; in one process or in many."""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlcluster import machine
from rlcluster.config import Settings
from rlcluster.errors import UserError
from rlcluster.loops import loop_for, refuse_empty_cell

if TYPE_CHECKING:
    from rlcluster.collectives import Ranks
    from rlcluster.console import Reporter
    from rlcluster.run_directory import RunDirectory, SilentRun

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


class TrainingResult(NamedTuple):
    run: Path
    summary: dict[str, Any]
    signal_number: int | None  # the signal that stopped the run before its budget was spent


def train(settings: Settings, resume: bool = False) -> TrainingResult:
    """One run from its settings to its summary; raises a UserError for what the user can mend."""
    refuse_empty_cell(settings.algorithm, settings.mode)
    if settings.mode == "sequential":
        from rlcluster.collectives import Ranks

        return _train_on_rank(settings, resume, Ranks())
    settings = _with_workers(settings)
    _warn_of_too_many_threads(settings)
    return _train_on_local_ranks(settings, resume)


def _with_workers(settings: Settings) -> Settings:
    """The number of workers, chosen for this machine where it is not given; an environment for each at least."""
    chosen = settings.num_workers
    num_workers = chosen or min(machine.default_workers(), settings.env.num_envs)
    if num_workers > settings.env.num_envs:
        raise UserError(
            f"parallel.num_workers={num_workers} but env.num_envs={settings.env.num_envs}: every worker needs an "
            "environment; use fewer workers or more environments"
        )
    parallel = settings.parallel.model_copy(update={"num_workers": num_workers})
    return settings.model_copy(update={"parallel": parallel})


def _train_on_local_ranks(settings: Settings, resume: bool) -> TrainingResult:
    """Spawns a process for each rank. They meet in a file of their own: no port is opened to other machines."""
    from rlcluster.interruption import StopRequest
    from rlcluster.workers import run_ranks

    assert settings.num_workers is not None
    with StopRequest() as stop, tempfile.TemporaryDirectory(prefix="rlcluster-") as folder:
        arguments = settings.model_dump_json(), resume, settings.num_workers, str(Path(folder, "rendezvous"))
        result: TrainingResult = run_ranks(settings.num_workers, _train_on_spawned_rank, arguments, stop)[0]
    if result.signal_number is not None and stop.signal_number is not None:
        return result._replace(signal_number=stop.signal_number)  # what the ranks got from this process is a SIGTERM
    return result


def _train_on_spawned_rank(rank: int, settings_json: str, resume: bool, world_size: int, rendezvous: str) -> Any:
    settings = Settings.model_validate_json(settings_json)
    num_threads = machine.num_threads(settings.hardware.num_threads, world_size)
    if settings.parallel.pin_workers:
        machine.pin(rank, world_size, num_threads)
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    machine.limit_threads(num_threads)
    from rlcluster.collectives import join_group

    ranks = join_group(rank, world_size, settings.parallel.timeout_seconds, rendezvous)
    return _train_on_rank(settings, resume, ranks)


def _train_on_rank(settings: Settings, resume: bool, ranks: Ranks) -> TrainingResult:
    """What every rank does, the only one included."""
    num_threads = machine.num_threads(settings.hardware.num_threads, ranks.world_size)
    machine.limit_threads(num_threads)  # before anything below imports torch or numpy
    from rlcluster import environments, policy
    from rlcluster.interruption import StopRequest
    from rlcluster.run_directory import SUMMARY_FILE

    if ranks.world_size == 1:
        _warn_of_too_many_threads(settings)
    spec = environments.describe(settings.env)
    network = policy.choose_network(settings.policy, spec)
    kernels = policy.choose_kernels(settings.hardware.kernels, network, spec)
    chosen = settings.policy.model_copy(update={"network": network})
    settings = settings.model_copy(update={"policy": chosen})
    with StopRequest(is_patient=ranks.world_size > 1) as stop, _open_run(settings, resume, ranks) as run:
        if ranks.rank == 0:
            workers = f"{ranks.world_size} workers with " if ranks.world_size > 1 else ""
            print(
                f"{settings.log_name} on {settings.env.name}: {settings.env.num_envs} environments, {network} network "
                f"({kernels.instruction_set if kernels else 'torch'}), {workers}{num_threads} threads -> {run.path}",
                flush=True,
            )
        loop = loop_for(settings.algorithm, settings.mode)
        is_finished = loop(settings, ranks, run, stop, _reporter(ranks))
        signal_number = ranks.largest(stop.signal_number or 0)  # any rank may have got it
    summary = json.loads((run.path / SUMMARY_FILE).read_text()) if ranks.rank == 0 else {}
    return TrainingResult(run.path, summary, None if is_finished else signal_number)


@contextmanager
def _open_run(settings: Settings, resume: bool, ranks: Ranks) -> Iterator[RunDirectory | SilentRun]:
    """The run directory on the first rank; the others get from it what a resumed run needs, and write nothing."""
    from rlcluster.checkpoint import checkpoint_bytes, load_checkpoint
    from rlcluster.run_directory import RunDirectory, SilentRun

    if ranks.rank > 0:
        path = Path(ranks.broadcast(None).decode())
        content = ranks.broadcast(None)
        yield SilentRun(path, load_checkpoint(path, io.BytesIO(content)) if content else None)
        return
    with RunDirectory(settings, resume) as run:
        ranks.broadcast(str(run.path).encode())
        ranks.broadcast(bytes(checkpoint_bytes(run.restored)) if run.restored and ranks.world_size > 1 else b"")
        run.write_machine_facts(machine.facts(machine.num_threads(settings.hardware.num_threads, ranks.world_size)))
        yield run


def _reporter(ranks: Ranks) -> Reporter:
    from rlcluster.console import SilentReporter, make_reporter

    return make_reporter() if ranks.rank == 0 else SilentReporter()


def _warn_of_too_many_threads(settings: Settings) -> None:
    num_workers = settings.num_workers or 1
    num_threads = num_workers * machine.num_threads(settings.hardware.num_threads, num_workers)
    if num_threads > machine.cores_allowed():
        print(
            f"warning: {num_threads} threads share {machine.cores_allowed()} cores, which is slower; use fewer",
            file=sys.stderr,
        )
