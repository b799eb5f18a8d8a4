"""One class per scheduler: the head of a script, and the commands that submit, query and cancel jobs.

Slurm is queried with squeue and scontrol alone: sacct needs a database that many clusters do not have.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

from rlcluster.cluster.settings import JobSettings, SchedulerName
from rlcluster.system.errors import EXIT_RUN_FAILED, UserError

COMMAND_SECONDS = 60.0
DEFAULT_ARRAY_SIZE = 1000
SLURM_PENDING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED")
SLURM_RUNNING = ("RUNNING", "CONFIGURING", "COMPLETING", "STOPPED", "SIGNALING")
PBS_PENDING, PBS_RUNNING = "QHWTSU", "REB"

Phase = Literal["pending", "running", "ended"]


class JobState(NamedTuple):
    """The scheduler's word on one job, or on one task of an array."""

    id: str
    phase: Phase
    word: str  # the scheduler's own: RUNNING, TIMEOUT, R, ...
    hosts: str = ""
    reason: str = ""  # why it waits, or how it ended


class Array(NamedTuple):
    """Tasks 0 .. size-1, of which `max_running` run at once."""

    size: int
    max_running: int | None


class SchedulerError(UserError):
    """The scheduler has refused, or does not answer."""


class Scheduler(ABC):
    """What a scheduler is asked for."""

    name: SchedulerName
    template: str
    ids: str  # regular expression of a job to wait for
    examples_of_ids: str

    @abstractmethod
    def directives(self, name: str, job: JobSettings) -> list[str]:
        """The lines at the head of the script."""

    @abstractmethod
    def submit_command(self, script: str, array: Array | None, after: Sequence[str]) -> list[str]:
        """Of a job that waits until the jobs `after` have ended, however they end."""

    @abstractmethod
    def id_of(self, output: str) -> str:
        """The job's id, as the scheduler's commands take it, from the output of the submission."""

    @abstractmethod
    def states(self) -> list[JobState]:
        """All jobs of this user that the scheduler knows. Raises a SchedulerError if it does not answer."""

    @abstractmethod
    def cancel_command(self, jobs: Sequence[str]) -> list[str]: ...

    def largest_array(self) -> int:
        return DEFAULT_ARRAY_SIZE

    def refuse_other_id(self, job: str) -> None:
        """A typing error in an id would be a job that never starts, or that does not wait."""
        if not re.fullmatch(self.ids, job, re.ASCII):
            raise UserError(
                f"submit: --after={job!r}: should be the id of a job of {self.name}, as {self.examples_of_ids}"
            )

    def submit(self, command: Sequence[str]) -> str:
        """Returns the id of the new job."""
        return self.id_of(call(command))


class Slurm(Scheduler):
    """Slurm 20 or later."""

    name: SchedulerName = "slurm"
    template = "slurm.sh"
    ids = r"\d+(_\d+)?"
    examples_of_ids = "12 or, a task of an array, 12_3"

    def directives(self, name: str, job: JobSettings) -> list[str]:
        given = {
            "job-name": name,
            "nodes": job.nodes,
            "ntasks-per-node": job.ranks_per_node,
            "cpus-per-task": job.cores_per_rank,
            "mem": _times(job.memory, job.ranks_per_node),
            "time": None if job.time is None else slurm_time(job.time),
            "signal": f"B:USR1@{self.signal_seconds(job)}",
            "partition": job.partition,
            "account": job.account,
            "qos": job.qos,
            "mail-user": job.mail,
            "mail-type": job.mail and "END,FAIL",
            "output": "/dev/null",
        }
        flags = [f"--{key}={value}" for key, value in given.items() if value is not None]
        return [f"#SBATCH {flag}" for flag in (*flags, "--requeue", *job.scheduler_args)]

    def signal_seconds(self, job: JobSettings) -> int:
        limit, save_after = job.time, job.save_after_seconds
        return int(job.save_before if limit is None or save_after is None else limit - save_after)

    def srun(self, job: JobSettings) -> str:
        """srun takes the cores of a task from its own flag alone, from Slurm 22.05 on."""
        return f"srun --ntasks={job.world_size} --cpus-per-task={job.cores_per_rank}"

    def submit_command(self, script: str, array: Array | None, after: Sequence[str]) -> list[str]:
        command = ["sbatch", "--parsable"]
        if array is not None:
            limit = f"%{array.max_running}" if array.max_running else ""
            command.append(f"--array=0-{array.size - 1}{limit}")
        if after:
            command.append(f"--dependency=afterany:{':'.join(after)}")
        return [*command, script]

    def id_of(self, output: str) -> str:
        return _only_id(output.partition(";")[0], output)

    def states(self) -> list[JobState]:
        command = ["squeue", "--noheader", "--me", "--states=all", "--array", "--format=%i|%T|%N|%r"]
        return [_slurm_state(line) for line in call(command).splitlines() if line.count("|") == 3]

    def cancel_command(self, jobs: Sequence[str]) -> list[str]:
        return ["scancel", *jobs]

    def largest_array(self) -> int:
        found = re.search(r"MaxArraySize\s*=\s*(\d+)", call(["scontrol", "show", "config"]))
        return int(found[1]) if found else DEFAULT_ARRAY_SIZE


class Pbs(Scheduler):
    """OpenPBS and PBS Pro."""

    name: SchedulerName = "pbs"
    template = "pbs.sh"
    ids = r"\d+(\[\d*\])?(\.[\w.-]+)?"
    examples_of_ids = "12, 12[] or 12.server"
    array_flag = "-J"

    def directives(self, name: str, job: JobSettings) -> list[str]:
        if job.time is None:
            raise UserError("submit: PBS gives no signal before the wall time, so the run must know it: give --time 4h")
        if job.qos is not None:
            raise UserError(
                f"submit: qos={job.qos} is a flag of Slurm; on PBS give the flag that your site has for it, as "
                f"--scheduler-arg='-l qos={job.qos}'"
            )
        flags = [
            "-S /bin/bash",  # else the user's login shell, which may be another one, reads the script
            f"-N {name[:230]}",
            *self.resources(job),
            f"-l walltime={slurm_time(job.time)}",
            *([f"-q {job.partition}"] if job.partition else []),
            *([f"-A {job.account}"] if job.account else []),
            *([f"-M {job.mail}", "-m ae"] if job.mail else []),
            "-j oe",
            "-o /dev/null",
            "-r y",
            *job.scheduler_args,
        ]
        return [f"#PBS {flag}" for flag in flags]

    def resources(self, job: JobSettings) -> list[str]:
        """One process per host: it spawns the ranks."""
        memory = _times(job.memory, job.ranks_per_node)
        chunk = f"ncpus={job.cores_per_node}:mpiprocs=1" + (f":mem={memory}B" if memory else "")
        return [f"-l select={job.nodes}:{chunk}", "-l place=scatter"]

    def submit_command(self, script: str, array: Array | None, after: Sequence[str]) -> list[str]:
        dependency = ["-W", f"depend={self.dependency(after)}"] if after else []
        return ["qsub", *(self.array_flags(array) if array else []), *dependency, script]

    def dependency(self, after: Sequence[str]) -> str:
        return f"afterany:{':'.join(after)}"

    def array_flags(self, array: Array) -> list[str]:
        """PBS refuses an array of one task: that is a plain job which is told its number."""
        limit = f"%{array.max_running}" if array.max_running else ""
        return [self.array_flag, f"0-{array.size - 1}{limit}"] if array.size > 1 else ["-v", "RLCLUSTER_TASK=0"]

    def id_of(self, output: str) -> str:
        """`41`, or `41[]` of an array: PBS knows it by this name only."""
        return _only_id(output.strip().partition(".")[0], output)

    def states(self) -> list[JobState]:
        output = call(["qstat", "-x"] if self.name == "pbs" else ["qstat"])
        return [state for line in output.splitlines() if (state := _pbs_state(line)) is not None]

    def cancel_command(self, jobs: Sequence[str]) -> list[str]:
        return ["qdel", *jobs]


class Torque(Pbs):
    """Torque, which differs in resources and arrays."""

    name: SchedulerName = "torque"
    array_flag = "-t"

    def resources(self, job: JobSettings) -> list[str]:
        memory = _times(job.memory, job.ranks_per_node * job.nodes)
        nodes = f"-l nodes={job.nodes}:ppn={job.cores_per_node}"
        return [nodes, *([f"-l mem={memory.lower()}b"] if memory else [])]

    def dependency(self, after: Sequence[str]) -> str:
        kinds: dict[str, list[str]] = {"afterany": [], "afteranyarray": []}
        for job in after:
            kinds["afteranyarray" if "[]" in job else "afterany"].append(job)
        return ",".join(":".join([kind, *jobs]) for kind, jobs in kinds.items() if jobs)


SCHEDULERS: dict[SchedulerName, Scheduler] = {one.name: one for one in (Slurm(), Pbs(), Torque())}


def scheduler_of(name: str) -> Scheduler:
    """Of a recorded job."""
    for known, scheduler in SCHEDULERS.items():
        if known == name:
            return scheduler
    raise UserError(f"scheduler {name!r} of a recorded job is not known; known: {', '.join(SCHEDULERS)}")


def choose_scheduler(name: SchedulerName) -> Scheduler:
    """`auto`: the one whose commands are found on this machine."""
    if name != "auto":
        return SCHEDULERS[name]
    if shutil.which("sbatch"):
        return SCHEDULERS["slurm"]
    if shutil.which("qsub") and shutil.which("qstat"):
        return SCHEDULERS["pbs" if "pbs_version" in call(["qstat", "--version"]) else "torque"]
    raise UserError("no scheduler found: neither sbatch nor qsub is on the path; run this on a login node")


def call(command: Sequence[str]) -> str:
    """The output of a command of the scheduler; raises a SchedulerError with its first line of complaint."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    except FileNotFoundError:
        raise SchedulerError(f"{command[0]} is not on the path of this machine", EXIT_RUN_FAILED) from None
    except subprocess.TimeoutExpired:
        text = f"{command[0]} did not answer within {COMMAND_SECONDS:g} s"
        raise SchedulerError(text, EXIT_RUN_FAILED) from None
    if result.returncode != 0:
        lines = (result.stderr or result.stdout).strip().splitlines() or [f"exit code {result.returncode}"]
        raise SchedulerError(f"{command[0]}: {lines[-1]}", EXIT_RUN_FAILED)
    return result.stdout + (result.stderr if command[-1] == "--version" else "")


def slurm_time(seconds: float) -> str:
    """`4:00:00`, as PBS writes it too; Slurm rounds up to minutes."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _times(memory: str | None, factor: int) -> str | None:
    return None if memory is None else f"{int(memory[:-1]) * factor}{memory[-1]}"


def _only_id(text: str, output: str) -> str:
    if not re.fullmatch(r"\d+(\[\])?", text.strip()):
        raise SchedulerError(f"the scheduler did not answer with the id of a job: {output.strip()!r}", EXIT_RUN_FAILED)
    return text.strip()


def _slurm_state(line: str) -> JobState:
    job, word, hosts, reason = line.strip().split("|")
    phases = {**dict.fromkeys(SLURM_PENDING, "pending"), **dict.fromkeys(SLURM_RUNNING, "running")}
    phase = cast(Phase, phases.get(word, "ended"))
    return JobState(job, phase, word, hosts, "" if reason == "None" else reason)


def _pbs_state(line: str) -> JobState | None:
    """Of a line of qstat's table: id, name, user, time, state, queue."""
    match = re.match(r"(\d+(?:\[\d*\])?)\S*\s+\S+\s+\S+\s+\S+\s+(\w)\s+\S+\s*$", line)
    if match is None:
        return None
    phases = {**dict.fromkeys(PBS_PENDING, "pending"), **dict.fromkeys(PBS_RUNNING, "running")}
    return JobState(match[1], cast(Phase, phases.get(match[2], "ended")), match[2])
