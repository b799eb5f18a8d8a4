"""`rlcluster status`: the scheduler's word on each job, joined with what its run says of itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlcluster.cluster.schedulers import JobState, SchedulerError, scheduler_of
from rlcluster.experiments.commands import ERROR_PREFIX, error_line
from rlcluster.experiments.suite_outcomes import Outcome, is_written_after_outcome, recorded_outcomes
from rlcluster.runs.config import is_run, read_run_settings
from rlcluster.runs.files import RUNS_FOLDER
from rlcluster.runs.jobs import (
    JobRecord,
    history_of,
    job_folder,
    jobs_of,
    num_requeues,
    num_restarts,
    rank_log,
    script_log,
    was_cancelled,
)
from rlcluster.runs.metrics import find_metrics, read_metrics_file
from rlcluster.runs.status import RunState, read_state, read_written_state
from rlcluster.settings.schema import budgets
from rlcluster.system.console import clock_text, say, warn
from rlcluster.system.errors import EXIT_RUN_FAILED, UserError

FAILED_WORDS = ("FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED")
LOG_TAIL_BYTES = 20_000


class Row(NamedTuple):
    """One run."""

    name: str
    state: str  # pending, running, finished, failed, stopped, cancelled or unknown
    job: str = ""
    steps: int | None = None
    steps_per_second: float | None = None
    eta_seconds: float | None = None
    requeues: int = 0
    restarts: int = 0
    hosts: str = ""
    note: str = ""  # why it waits, or its last error


class Progress(NamedTuple):
    steps: int | None = None
    steps_per_second: float | None = None
    eta_seconds: float | None = None


def status_command(folders: Sequence[Path], as_json: bool) -> int:
    """Returns 1 if something has failed."""
    submitted = [path.parent for path in RUNS_FOLDER.glob(f"*/{job_folder(Path()).name}") if jobs_of(path.parent)]
    chosen = list(folders) or sorted(submitted)
    if not chosen:
        raise UserError("no jobs: nothing in runs/ was submitted; name a run or a suite's folder")
    states, complaints = _scheduler_states(chosen)
    rows = [row for folder in chosen for row in rows_of(folder, states)]
    for complaint in complaints:
        warn(f"{complaint}: the states below are the runs' own")
    say(json.dumps([row._asdict() for row in rows], indent=2) if as_json else table(rows))
    return EXIT_RUN_FAILED if any(row.state == "failed" for row in rows) else 0


def rows_of(folder: Path, states: Sequence[JobState] | None) -> list[Row]:
    """The run of the folder, or those of its suite. `states` is None if the scheduler does not answer."""
    records = jobs_of(folder)
    if any(record.kind == "suite" for record in records) or (folder / "cells").is_dir():
        return _suite_rows(folder, records, states)
    if not records and not is_run(folder):
        raise UserError(f"{folder}: neither a run nor a suite, and no job of it was submitted")
    return [_run_row(folder, records, states)]


def _scheduler_states(folders: Sequence[Path]) -> tuple[list[JobState] | None, list[str]]:
    names = {record.scheduler for folder in folders for record in jobs_of(folder)}
    states: list[JobState] = []
    for name in sorted(names):
        try:
            states += scheduler_of(name).states()
        except SchedulerError as error:
            return None, [f"the scheduler does not answer ({error})"]
    return states, []


def _run_row(folder: Path, records: Sequence[JobRecord], states: Sequence[JobState] | None) -> Row:
    record = records[-1] if records else None
    known = [state for state in states or () if record is not None and record.covers(state.id)]
    run = read_state(folder)
    state, note = _combined(run, known, record is not None and states is not None)
    if record is not None and not known and state == "failed" and was_cancelled(folder, record.id):
        state, note = "cancelled", ""  # before it could save, or start at all
    if state in ("failed", "unknown") and (not note or _says_it_runs(folder)):
        note = _last_error(folder, record) or note or _last_event(folder, record)
    if state == "stopped" and (event := _last_event(folder, record)).startswith("not started again: --max-requeues"):
        note = f"{event}; submit it again to resume"
    hosts = ",".join(one.hosts for one in known if one.hosts) or _last_hosts(folder, record)
    return Row(
        name=str(folder),
        state=state,
        job=record.id if record else "",
        **_progress(folder)._asdict(),
        requeues=num_requeues(folder, records),
        restarts=num_restarts(folder, records) + (run.restarts if run else 0),
        hosts=hosts,
        note=note,
    )


def _says_it_runs(folder: Path) -> bool:
    """Of a failed run: it could not write why, on a full disk for example."""
    written = read_written_state(folder)
    return written is not None and written.state == "running"


def _combined(run: RunState | None, known: Sequence[JobState], is_asked: bool) -> tuple[str, str]:
    """(state, note). An active job counts first, then what the run says, then how the scheduler ended the job."""
    for phase in ("running", "pending"):
        active = [state for state in known if state.phase == phase]
        if active:
            return phase, active[0].reason if phase == "pending" else ""
    word = known[-1].word if known else ""
    is_cancelled = word.startswith("CANCELLED")
    if run is not None and (run.state in ("finished", "failed") or not is_asked) and not is_cancelled:
        return "stopped" if run.state == "preempted" else run.state, run.reason or ""
    if run is not None and run.state == "preempted":
        return "cancelled" if is_cancelled else "stopped", f"saved ({run.reason}); submit it again to resume"
    if is_cancelled:
        return "cancelled", ""
    return ("failed" if word in FAILED_WORDS or not known else "unknown"), ""


def _progress(folder: Path) -> Progress:
    try:
        settings = read_run_settings(folder)
        metrics = read_metrics_file(find_metrics(folder, settings))
    except UserError:
        return Progress()  # nothing logged yet
    last = {name: float(metrics[name][-1]) for name in ("steps_global", "elapsed_seconds", "update", "fps")}
    spent = (last["steps_global"], last["elapsed_seconds"], last["update"])
    share = max(used / limit for used, limit in zip(spent, budgets(settings), strict=True) if limit is not None)
    eta = last["elapsed_seconds"] * (1 - share) / share if 0 < share < 1 else 0.0
    return Progress(int(last["steps_global"]), last["fps"], eta)


def _last_error(folder: Path, record: JobRecord | None) -> str:
    """The error that a rank or the script has printed last, in one line."""
    if record is None:
        return ""
    logs = sorted(rank_log(folder, record.id, 0).parent.glob(rank_log(Path(), "", 0).name.replace("0000", "*")))
    for log in [*logs, script_log(folder, record.id)]:
        if log.is_file():
            tail = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
            if ERROR_PREFIX in tail:
                return error_line(ERROR_PREFIX + tail.rpartition(ERROR_PREFIX)[2])
    return ""


def _last_event(folder: Path, record: JobRecord | None) -> str:
    events = history_of(folder, record.id) if record else []
    if events:
        return events[-1][20:]
    return f"the job has written nothing; is {job_folder(folder)} visible on the nodes?" if record else ""


def _last_hosts(folder: Path, record: JobRecord | None) -> str:
    started = [line for line in (history_of(folder, record.id) if record else []) if " started on " in line]
    return started[-1].rpartition(" ")[2] if started else ""


def _suite_rows(folder: Path, records: Sequence[JobRecord], states: Sequence[JobState] | None) -> list[Row]:
    """The jobs of the suite first, then its cells."""
    rows = []
    for record in _last_submission(records):
        known = [state for state in states or () if record.covers(state.id)]
        counts = {phase: sum(one.phase == phase for one in known) for phase in ("pending", "running", "ended")}
        phase = next((phase for phase in ("running", "pending") if counts[phase]), "ended" if known else "unknown")
        note = ", ".join(f"{count} {phase}" for phase, count in counts.items() if count)
        requeues = num_requeues(folder, [record])
        rows.append(Row(f"{folder} ({record.kind})", phase, record.id, requeues=requeues, note=note))
    has_running_task = any(row.state == "running" for row in rows)
    outcomes = recorded_outcomes(folder)
    names = sorted({path.name for path in (folder / "runs").glob("*") if is_run(path)} | set(outcomes))
    return [*rows, *(_cell_row(folder, name, outcomes.get(name), has_running_task) for name in names)]


def _cell_row(folder: Path, name: str, outcome: Outcome | None, has_running_task: bool) -> Row:
    """A cell counts as running if it says so and was not recorded as ended since: the lock of a run on another machine
    may be invisible here, and an earlier failure may be recorded of a cell that runs again.
    """
    path = folder / "runs" / name
    row = _run_row(path, [], None) if is_run(path) else Row(name, outcome.state if outcome else "unknown")
    state = read_written_state(path)
    if has_running_task and state is not None and state.state == "running" and is_written_after_outcome(folder, name):
        row = row._replace(state="running", note="")
    elif outcome is not None and outcome.state == "failed":
        row = row._replace(state="failed", note=outcome.error or row.note)
    return row._replace(name=name)


def _last_submission(records: Sequence[JobRecord]) -> list[JobRecord]:
    """The arrays and the report that were submitted together: a report is submitted last."""
    reports = [k for k, record in enumerate(records[:-1]) if record.kind == "report"]
    return list(records[reports[-1] + 1 if reports else 0 :])


def table(rows: Sequence[Row]) -> str:
    """Aligned columns; the note stands last, as it may be long."""
    titles = ("RUN", "STATE", "JOB", "STEP", "STEPS/S", "ETA", "REQUEUES", "RESTARTS", "HOSTS", "NOTE")
    lines = [titles, *(_cells(row) for row in rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(titles))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    def shown(value: Any, text: str) -> str:
        return "-" if value is None else text

    return (
        row.name,
        row.state,
        row.job or "-",
        shown(row.steps, f"{row.steps:,}" if row.steps is not None else ""),
        shown(row.steps_per_second, f"{row.steps_per_second or 0:,.0f}"),
        shown(row.eta_seconds, clock_text(row.eta_seconds or 0)) if row.state == "running" else "-",
        str(row.requeues),
        str(row.restarts),
        row.hosts or "-",
        row.note,
    )
