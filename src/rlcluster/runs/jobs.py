"""The scheduler's jobs of a run or of a suite, in its folder `jobs/`:

ID.log          the output of the job's script
ID/job.json     what was submitted, and when
ID/job.sh       its script
ID/history.txt  one line per event, by the script: started, requeued, restart, finished, failed
ID/rank-0000.log ...  the output of each rank
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rlcluster.runs.files import JOB_FOLDER, JOB_HISTORY_FILE, JOB_RECORD_FILE, JOB_SCRIPT_FILE, read_json
from rlcluster.system.atomic_file import write_atomically, write_json


class JobRecord(NamedTuple):
    """One submission."""

    id: str
    scheduler: str
    kind: str  # train, suite (an array) or report
    submitted_at: str
    command: list[str]

    def covers(self, job: str) -> bool:
        """True for the job itself and for the tasks of its array: `17_3`, `17[3]`."""
        return job == self.id or job.startswith((f"{self.id}_", f"{self.id}["))


def job_folder(path: Path) -> Path:
    return path / JOB_FOLDER


def record_job(path: Path, record: JobRecord, script: str) -> None:
    folder = job_folder(path) / record.id
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / JOB_SCRIPT_FILE, script.encode())
    content = record._asdict()
    del content["id"]
    write_json(folder / JOB_RECORD_FILE, content)


def jobs_of(path: Path) -> list[JobRecord]:
    """All submissions, the oldest first."""
    records = []
    for file in job_folder(path).glob(f"*/{JOB_RECORD_FILE}"):
        content = read_json(file, [])
        if content is not None and content.keys() >= {*JobRecord._fields[1:]}:
            records.append(JobRecord(file.parent.name, *(content[key] for key in JobRecord._fields[1:])))
    return sorted(records, key=lambda record: (record.submitted_at, _number(record.id)))


def history_of(path: Path, job: str) -> list[str]:
    """The events of a job or, for an array, of all its tasks, in order of time."""
    files = [file for file in job_folder(path).glob(f"*/{JOB_HISTORY_FILE}") if _is_of(file.parent.name, job)]
    lines = [line for file in files for line in file.read_text(encoding="utf-8", errors="replace").splitlines()]
    return sorted(lines, key=lambda line: line[:19])


def record_cancelled(path: Path, jobs: Sequence[str]) -> None:
    """Schedulers forget a job soon after its end."""
    for job in jobs:
        with (job_folder(path) / job / JOB_HISTORY_FILE).open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} cancelled by its user\n")


def was_cancelled(path: Path, job: str) -> bool:
    return any(line.endswith(" cancelled by its user") for line in history_of(path, job))


def num_requeues(path: Path, records: Sequence[JobRecord]) -> int:
    """How often these jobs were put back into the queue: before a time limit, after a failure, or preempted. A script
    says so before it asks the scheduler, which may end it at once; if that fails, it says so afterwards.
    """
    events = [line for record in records for line in history_of(path, record.id)]
    asked = sum(re.search(r" requeued \d+ of |preempted, requeued$", line) is not None for line in events)
    return asked - sum(" not started again: scontrol does not work " in line for line in events)


def num_restarts(path: Path, records: Sequence[JobRecord]) -> int:
    """How often the ranks were started again within these jobs."""
    return sum(" restart " in line for record in records for line in history_of(path, record.id))


def rank_log(path: Path, job: str, rank: int) -> Path:
    return job_folder(path) / job / f"rank-{rank:04}.log"


def script_log(path: Path, job: str) -> Path:
    return job_folder(path) / f"{job}.log"


def tasks_file(path: Path) -> Path:
    """A new file for the tasks of an array: one line each, the names of its cells."""
    folder = job_folder(path)
    folder.mkdir(parents=True, exist_ok=True)
    return next(file for k in range(1, 10**6) if not (file := folder / f"tasks-{k}.txt").exists())


def _is_of(folder: str, job: str) -> bool:
    return folder == job or folder.startswith((f"{job}_", f"{job}["))


def _number(job: str) -> int:
    return int(re.sub(r"\D.*", "", job) or 0)
