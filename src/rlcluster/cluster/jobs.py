"""The jobs of a folder as the scheduler knows them; `rlcluster cancel` and `rlcluster logs`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rlcluster.cluster.schedulers import JobState, Scheduler, SchedulerError, call, scheduler_of
from rlcluster.runs.jobs import JobRecord, jobs_of, rank_log, record_cancelled, script_log
from rlcluster.system.console import say
from rlcluster.system.cores import number_ranges
from rlcluster.system.errors import UserError

FOLLOW_SECONDS = 0.5
STATE_SECONDS = 10.0  # between questions to the scheduler while a log is followed


def active_jobs(folder: Path, scheduler: Scheduler) -> list[str]:
    """The submissions that wait or run, by the ids that the scheduler's commands take."""
    records = [record for record in jobs_of(folder) if record.scheduler == scheduler.name]
    states = scheduler.states() if records else []
    return [job for record in records if (job := _active_job(record, states)) is not None]


def _active_job(record: JobRecord, states: Sequence[JobState]) -> str | None:
    """PBS knows an array by its brackets: `41[]`."""
    active = [state.id for state in states if state.phase != "ended" and record.covers(state.id)]
    array = f"{record.id}[]"
    return None if not active else array if array in active else record.id


def cancel_command(folder: Path) -> int:
    """The scheduler asks the ranks to stop; they save, and nothing starts them again."""
    for name in {record.scheduler for record in _records(folder)}:
        scheduler = scheduler_of(name)
        active = active_jobs(folder, scheduler)
        if active:
            call(scheduler.cancel_command(active))
            record_cancelled(folder, [job.removesuffix("[]") for job in active])
            say(f"cancelled job {' '.join(active)}; the run saves if its time allows. To resume: submit it again")
            return 0
    say(f"{folder} has no job that waits or runs")
    return 0


def logs_command(folder: Path, rank: int | None, follow: bool) -> int:
    """The output of a rank in the last job or, where it has none yet, of the job's script."""
    log = _log(folder, rank)
    if follow:
        return _follow(folder, rank)
    if not log.exists():
        raise _not_written(folder, log)
    _print_from(log, 0)
    return 0


def _log(folder: Path, rank: int | None) -> Path:
    record = _records(folder)[-1]
    log = rank_log(folder, record.id, rank or 0)
    return script_log(folder, record.id) if rank is None and not log.exists() else log


def _not_written(folder: Path, log: Path) -> UserError:
    ranks = [int(other.stem.rpartition("-")[2]) for other in log.parent.glob("rank-*.log")]
    others = f", but those of ranks {number_ranges(ranks)} are" if ranks else _elsewhere(folder)
    return UserError(f"{log} is not written yet{others}; see rlcluster status {folder}")


def _elsewhere(folder: Path) -> str:
    return f" (the cells of this suite write into {folder}/logs)" if _records(folder)[-1].kind == "report" else ""


def _follow(folder: Path, rank: int | None) -> int:
    """Until the jobs have ended. On PBS a requeued job is a new one, with logs of its own."""
    positions: dict[Path, int] = {}
    asked_at = time.monotonic()
    is_over = False
    while True:
        log = _log(folder, rank)
        positions[log] = _print_from(log, positions.get(log, 0))
        if is_over and not any(positions.values()):
            raise _not_written(folder, log)
        if is_over:
            return 0
        time.sleep(FOLLOW_SECONDS)
        if time.monotonic() - asked_at > STATE_SECONDS:
            is_over = not _is_any_active(folder)
            asked_at = time.monotonic()


def _is_any_active(folder: Path) -> bool:
    """True where a scheduler does not answer."""
    try:
        return any(active_jobs(folder, scheduler_of(name)) for name in {one.scheduler for one in _records(folder)})
    except SchedulerError:
        return True


def _print_from(log: Path, position: int) -> int:
    """Prints what was written since; returns the new position."""
    if not log.exists():
        return position
    with log.open("rb") as file:
        file.seek(position)
        text = file.read()
    if text:
        say(text.decode(errors="replace"), end="")
    return position + len(text)


def _records(folder: Path) -> list[JobRecord]:
    records = jobs_of(folder)
    if not records:
        raise UserError(f"{folder}: no job of it was submitted (rlcluster submit)")
    return records
