"""`rlcluster submit`: a training as one job, or a suite as arrays of tasks and a job that writes the report."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rlcluster.cluster.jobs import active_jobs
from rlcluster.cluster.schedulers import DEFAULT_ARRAY_SIZE, Array, Scheduler, SchedulerError, choose_scheduler
from rlcluster.cluster.script import FINAL_CODES_OF_A_TASK, Work, make_script
from rlcluster.cluster.settings import JobSettings
from rlcluster.experiments.predictions import Processes, record_forecast
from rlcluster.experiments.suite import PendingCell, pending_cells
from rlcluster.experiments.suite_plan import Suite
from rlcluster.plan import refuse_idle_processes
from rlcluster.runs.checkpoints import has_checkpoint
from rlcluster.runs.config import is_run, read_run_settings
from rlcluster.runs.files import RunFiles, make_folders, refuse_occupied
from rlcluster.runs.jobs import JobRecord, job_folder, record_job, tasks_file
from rlcluster.runs.status import read_state
from rlcluster.settings.schema import Settings, budgets
from rlcluster.system.atomic_file import write_atomically
from rlcluster.system.console import counted, say, warn
from rlcluster.system.errors import UserError

SHORTEST_TASK_SECONDS = 300.0  # shorter cells share a task: starting one costs the scheduler and the node time


class Submission(NamedTuple):
    """What the user asks for, whatever the job does."""

    job: JobSettings
    template: Path | None
    after: str | None  # a job that has to end first
    is_dry_run: bool


def submit_training(submission: Submission, settings: Settings, arguments: Sequence[str]) -> int:
    """`arguments` are those of `rlcluster train`; `settings` what they say."""
    files, job = RunFiles.of(settings), submission.job
    folder = files.path.absolute()
    scheduler = _scheduler(submission)
    _refuse_active(folder, scheduler)
    _refuse_training(folder, settings, job)
    work = Work(folder, files.checkpoints.absolute(), [*arguments, "--in-job", "--output-dir", str(folder)])
    submitter = _Submitter(submission, scheduler, folder)
    job_id = submitter.submit("train", work, after=submitter.first)
    if not submission.is_dry_run:
        record_forecast(folder, settings, _processes(settings, job))
        resumes = ", which resumes its run" if has_checkpoint(folder) else ""
        say(f"submitted job {job_id}{resumes} -> {folder}")
        say(f"rlcluster status {shlex.quote(str(folder))}; rlcluster logs {shlex.quote(str(folder))} --follow")
    return 0


def _scheduler(submission: Submission) -> Scheduler:
    """The one that is asked for, which can wait for the job that is given."""
    scheduler = choose_scheduler(submission.job.scheduler)
    if submission.after is not None:
        scheduler.refuse_other_id(submission.after)
    return scheduler


def _processes(settings: Settings, job: JobSettings) -> Processes:
    """Those of a training that uses what its job asks for. A single task starts its ranks itself."""
    own = settings.given_ranks or min(job.cores_per_rank, settings.env.num_envs)
    ranks = job.world_size if job.world_size > 1 else own
    return Processes(ranks, job.nodes, job.world_size * job.cores_per_rank)


class SuitePart(NamedTuple):
    """What of a suite is submitted."""

    suite: Suite
    folder: Path
    only: str | None  # the cells whose names this pattern matches
    max_running: int | None  # tasks at once

    @property
    def report(self) -> list[str]:
        """The arguments of rlcluster that write the report."""
        return [*self.base, "--report-only"]

    @property
    def base(self) -> list[str]:
        return ["suite", str(self.suite.file.absolute()), "--output-dir", str(self.folder)]


def submit_suite(submission: Submission, part: SuitePart) -> int:
    """Each cell runs on one node, in the mode that the suite gives it."""
    part, job = part._replace(folder=part.folder.absolute()), submission.job
    if job.world_size > 1:
        raise UserError(
            f"submit: --nodes {job.nodes} --ranks-per-node {job.ranks_per_node}: a cell of a suite runs on one node "
            "and starts its own processes; give its cores with --cores-per-rank"
        )
    scheduler = _scheduler(submission)
    _refuse_active(part.folder, scheduler)
    tasks = packed(pending_cells(part.suite, part.folder, part.only))
    submitter = _Submitter(submission, scheduler, part.folder)
    arrays = _submit_arrays(submitter, part, list(_parts(tasks, _largest_array(submission, scheduler) if tasks else 1)))
    report = Work(part.folder, part.folder / "runs", part.report, final_codes=FINAL_CODES_OF_A_TASK)
    report_id = submitter.submit("report", report, after=arrays or submitter.first)
    if not submission.is_dry_run:
        cells = sum(map(len, tasks))
        say(f"submitted {counted(cells, 'cell')} in {counted(len(tasks), 'task')}: job {' '.join(arrays) or '-'}")
        say(f"job {report_id} writes the report -> {part.folder}")
    return 0


def _largest_array(submission: Submission, scheduler: Scheduler) -> int:
    """A dry run needs no scheduler, as that of a training."""
    try:
        return scheduler.largest_array()
    except SchedulerError as error:
        if not submission.is_dry_run:
            raise
        warn(f"{error}: MaxArraySize={DEFAULT_ARRAY_SIZE} is assumed")
        return DEFAULT_ARRAY_SIZE


def _submit_arrays(submitter: _Submitter, part: SuitePart, arrays: Sequence[Sequence[list[str]]]) -> list[str]:
    """Returns the ids of the jobs. The scheduler counts the running tasks of each array alone: under a limit, an array
    waits for the one before.
    """
    ids: list[str] = []
    for tasks in arrays:
        file = submitter.write_tasks(tasks)
        arguments = [*part.base, "--in-job", "--task-file", str(file)]
        runs = part.folder / "runs"
        work = Work(part.folder, runs, arguments, True, FINAL_CODES_OF_A_TASK, part.report)
        after = ids[-1:] if part.max_running and ids else submitter.first
        ids.append(submitter.submit("suite", work, Array(len(tasks), part.max_running), after))
    return ids


def packed(cells: Sequence[PendingCell]) -> list[list[str]]:
    """Tasks of one or more cells: short cells share one."""
    tasks: list[list[str]] = []
    room = 0.0  # seconds that the last task is short of
    for cell in cells:
        if room > 0:
            tasks[-1].append(cell.name)
            room -= cell.seconds
        else:
            tasks.append([cell.name])
            room = SHORTEST_TASK_SECONDS - cell.seconds
    return tasks


def _parts(tasks: Sequence[list[str]], largest: int) -> Iterator[Sequence[list[str]]]:
    for begin in range(0, len(tasks), largest):
        yield tasks[begin : begin + largest]


class _Submitter:
    """Writes scripts, hands them to the scheduler and records the jobs; on a dry run only prints."""

    def __init__(self, submission: Submission, scheduler: Scheduler, folder: Path) -> None:
        self._submission, self._scheduler, self._folder = submission, scheduler, folder
        self._kinds: Counter[str] = Counter()  # what a dry run has shown

    @property
    def first(self) -> list[str]:
        """What has to end before the first job starts."""
        return [] if self._submission.after is None else [self._submission.after]

    def write_tasks(self, tasks: Sequence[list[str]]) -> Path:
        """The file of an array: a line for each task, with the names of its cells."""
        if self._submission.is_dry_run:
            return job_folder(self._folder) / "tasks.txt"
        file = tasks_file(self._folder)
        write_atomically(file, "".join(" ".join(cells) + "\n" for cells in tasks).encode())
        return file

    def submit(self, kind: str, work: Work, array: Array | None = None, after: Sequence[str] = ()) -> str:
        """The id of the job; on a dry run a word in its place."""
        jobs = job_folder(self._folder)
        script = make_script(work, jobs, self._submission.job, self._scheduler, self._submission.template)
        file = jobs / f"next-{kind}.sh"
        command = self._scheduler.submit_command(str(file), array, after)
        if self._submission.is_dry_run:
            say(script)
            say(f"# {shlex.join(command)}")
            self._kinds[kind] += 1
            number = f"-{self._kinds[kind]}" if self._kinds[kind] > 1 else ""
            return f"ID-OF-{kind.upper()}{number}"
        make_folders(self._folder, jobs)
        write_atomically(file, script.encode())
        try:
            job_id = self._scheduler.submit(command)
        except SchedulerError:
            file.unlink()
            raise
        now = time.strftime("%Y-%m-%dT%H:%M:%S")
        record = JobRecord(job_id.removesuffix("[]"), self._scheduler.name, kind, now, list(work.arguments))
        record_job(self._folder, record, script)
        file.unlink()
        return job_id


def _refuse_training(folder: Path, settings: Settings, job: JobSettings) -> None:
    """What the ranks would refuse later, on the nodes."""
    if job.world_size > 1:
        refuse_idle_processes(settings, job.world_size)
        if settings.given_processes not in (None, job.world_size):
            raise UserError(
                f"num_workers={settings.given_processes} but --nodes {job.nodes} --ranks-per-node "
                f"{job.ranks_per_node} are {job.world_size} ranks; leave num_workers out"
            )
        if settings.parallel.max_restarts:
            raise UserError("parallel.max_restarts: the job restarts its ranks; give --max-restarts to submit instead")
    if not is_run(folder):
        refuse_occupied(folder, "choose another --output-dir")
        return
    state = read_state(folder)
    if state is not None and state.state == "finished" and budgets(settings) == budgets(read_run_settings(folder)):
        raise UserError(f"{folder} is finished; to extend it, give a larger budget")
    if state is not None and state.state == "running":
        raise UserError(f"{folder} is being written by another process; wait for it")


def _refuse_active(folder: Path, scheduler: Scheduler) -> None:
    active = active_jobs(folder, scheduler)
    if active:
        raise UserError(f"{folder} has a job already: {' '.join(active)}; wait for it, or: rlcluster cancel {folder}")
