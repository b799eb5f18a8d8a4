"""The script of a job, from a template. Placeholders read @name@; what replaces them is quoted for the shell already.

The user's own template (`--template`) is filled in the same way; docs/cluster.md lists the placeholders.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from rlcluster.cluster.schedulers import Scheduler, Slurm
from rlcluster.cluster.settings import JobSettings, refuse_script_text
from rlcluster.experiments.commands import ERROR_PREFIX
from rlcluster.system.errors import EXIT_STORAGE, EXIT_USAGE, UserError

# With these exit codes the same start would fail again.
FINAL_CODES_OF_A_RUN = (EXIT_USAGE, EXIT_STORAGE)
FINAL_CODES_OF_A_TASK = (1, *FINAL_CODES_OF_A_RUN)  # 1: a cell has failed, and is recorded; the other cells are done


class Work(NamedTuple):
    """What a job does."""

    folder: Path  # the run directory or the suite's folder, absolute
    checkpoints: Path  # where a run saves; a new file there is progress
    arguments: Sequence[str]  # of rlcluster
    is_task: bool = False  # of an array: --task and its number are added
    final_codes: Sequence[int] = FINAL_CODES_OF_A_RUN
    report: Sequence[str] = ()  # arguments of rlcluster that bring the suite's report up to date

    @property
    def title(self) -> str:
        return f"rlcluster {shlex.join(self.arguments)}"


def make_script(work: Work, jobs: Path, job: JobSettings, scheduler: Scheduler, template: Path | None) -> str:
    """The whole text; raises a UserError for a placeholder that is not known."""
    text = _read(template) if template else _shipped(scheduler.template)
    values = placeholders(work, jobs, job, scheduler)
    unknown = sorted(set(re.findall(r"@([a-z_]+)@", text)) - set(values))
    if unknown:
        raise UserError(f"--template {template}: unknown placeholder @{unknown[0]}@; known: {', '.join(values)}")
    return re.sub(r"@([a-z_]+)@", lambda match: values[match[1]], text)


def placeholders(work: Work, jobs: Path, job: JobSettings, scheduler: Scheduler) -> Mapping[str, str]:
    program, host_ranks = program_words(job, "rlcluster"), program_words(job, "rlcluster.cluster.host")
    # On PBS the host's process starts the ranks, and it is in the container already.
    ranks = ["python", "-m", "rlcluster"] if job.container and not isinstance(scheduler, Slurm) else program
    return {
        "directives": "\n".join(scheduler.directives(job_name(work.folder), job)),
        "title": title_comment(work.title),
        "jobs": shlex.quote(str(jobs)),
        "directory": shlex.quote(str(Path.cwd())),
        "setup": "\n".join(setup_lines(job)),
        "srun": scheduler.srun(job) if isinstance(scheduler, Slurm) else "",
        "command": shlex.join([*ranks, *work.arguments]) + (' --task "$RLCLUSTER_TASK"' if work.is_task else ""),
        "host_ranks": shlex.join([*host_ranks, "--ranks", str(job.ranks_per_node)]),
        "cores": str(job.cores_per_node),
        "launch": job.launch,
        "report": shlex.join([*program, *work.report]) if work.report else ":",
        "checkpoints": shlex.quote(str(work.checkpoints)),
        "max_requeues": str(job.max_requeues),
        "max_restarts": str(job.max_restarts),
        "save_after": str(job.save_after_seconds or 0),
        "final_codes": " | ".join(map(str, work.final_codes)),
    }


def job_name(folder: Path) -> str:
    """The folder's name, with what a scheduler might not accept replaced."""
    try:
        refuse_script_text(folder.name)
    except ValueError as error:
        raise UserError(f"--output-dir {folder.name!r}: {error}") from None
    return re.sub(r"[^\w.-]", "_", folder.name, flags=re.ASCII).lstrip(".-") or "rlcluster"


def program_words(job: JobSettings, module: str) -> list[str]:
    """How a node starts a module: in the container, in the site's environment, or with this Python."""
    if job.container:
        binds = [word for bind in job.binds for word in ("--bind", bind)]
        return ["apptainer", "exec", *binds, job.container, "python", "-m", module]
    return ["python" if job.environment else sys.executable, "-m", module]


def setup_lines(job: JobSettings) -> list[str]:
    """Shell lines before the run starts."""
    lines = [_or_stop(f"module load {shlex.quote(module)}", f"modules: {module}") for module in job.modules]
    if job.environment:
        activate = f"source {shlex.quote(job.environment + '/bin/activate')}"
        lines.append(_or_stop(activate, f"environment: {job.environment}"))
    if job.interface:
        lines.append(f"export GLOO_SOCKET_IFNAME={shlex.quote(job.interface)}")
    if job.scratch:
        lines.append(f"export TMPDIR={shlex.quote(job.scratch)}")
    return [*lines, *job.lines]


def _or_stop(command: str, setting: str) -> str:
    """Without its modules or environment a run would fail with a less helpful error. `status` shows this line."""
    error = shlex.quote(f"{ERROR_PREFIX}{setting}: cannot be loaded on this node")
    return f"{command} || {{ echo {error} >&2; exit {EXIT_USAGE}; }}"


def title_comment(title: str) -> str:
    """For a comment: one line, and nothing that a scheduler reads as a directive."""
    try:
        return refuse_script_text(title)
    except ValueError as error:
        raise UserError(f"submit: the command {title!r} {error}") from None


def _shipped(name: str) -> str:
    return resources.files("rlcluster.cluster").joinpath("templates", name).read_text(encoding="utf-8")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--template {path}: not readable ({error})") from None
