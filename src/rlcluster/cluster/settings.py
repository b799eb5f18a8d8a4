"""What a job asks of its scheduler. The site file and the flags of `rlcluster submit` fill the same record: the site
says what is the same for all jobs of a cluster, and flags override it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from rlcluster.settings.loading import hint
from rlcluster.settings.reading import read_file
from rlcluster.settings.schema import Section
from rlcluster.settings.values import Count, Duration, Natural, is_null
from rlcluster.system.errors import UserError

SITE_VARIABLE = "RLCLUSTER_SITE"
DIRECTIVES = ("#SBATCH", "#PBS")

SchedulerName = Literal["auto", "slurm", "pbs", "torque"]


def refuse_script_text(value: str) -> str:
    """A value in the head of a script must not become a line, or a directive, of its own."""
    if not value or re.search(r"[\x00-\x1f\x7f]", value) or any(word in value for word in DIRECTIVES):
        raise ValueError("should be one line of text without #SBATCH or #PBS")
    return value


def _plain_word(value: str) -> str:
    if not re.fullmatch(r"[\w.,:@+=/%-]+", refuse_script_text(value), re.ASCII):
        raise ValueError("should consist of letters, digits and . , : @ + = / % - _")
    return value


def _memory(value: str) -> str:
    if not re.fullmatch(r"\d+[MG]", value):
        raise ValueError("should be a number with M or G, as 8G")
    return value


def _argument(value: str) -> str:
    if not refuse_script_text(value).startswith("-"):
        raise ValueError("should be a flag of the scheduler, as --constraint=avx512")
    return value


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


Word = Annotated[str, AfterValidator(_plain_word)]
Line = Annotated[str, AfterValidator(refuse_script_text)]
Lines = Annotated[tuple[Line, ...], BeforeValidator(_listed)]
Memory = Annotated[str, AfterValidator(_memory)]


class JobSettings(Section):
    """One job, or each task of a suite."""

    scheduler: SchedulerName = Field("auto", description="slurm, pbs (OpenPBS, PBS Pro), torque; auto: what is found")
    nodes: Count = Field(1, description="machines")
    ranks_per_node: Count = Field(1, description="ranks on each machine")
    cores_per_rank: Count = Field(1, description="cores of each rank")
    memory: Memory | None = Field(None, description="of each rank, as 8G; null: the scheduler's default")
    time: Duration | None = Field(None, description="time limit: 4h, 30m; null: the partition's (PBS needs it)")
    save_before: Duration = Field(3 / 60, description="time before the limit at which the run saves and stops (3m)")
    partition: Word | None = Field(None, description="partition (Slurm) or queue (PBS)")
    account: Word | None = Field(None, description="account or project")
    qos: Word | None = Field(None, description="quality of service (Slurm alone)")
    mail: Word | None = Field(None, description="address to write to when the job ends or fails")
    scheduler_args: Annotated[tuple[Annotated[str, AfterValidator(_argument)], ...], BeforeValidator(_listed)] = Field(
        (), description="further flags of the scheduler"
    )
    max_requeues: Natural = Field(20, description="how often a job may be started again")
    max_restarts: Natural = Field(1, description="restarts of the ranks within a job, after a failure")
    modules: Annotated[tuple[Word, ...], BeforeValidator(_listed)] = Field((), description="modules to load")
    environment: Line | None = Field(None, description="virtual environment to activate; null: the one of `submit`")
    container: Line | None = Field(None, description="Apptainer image that has rlcluster; null: no container")
    binds: Lines = Field((), description="folders to bind into the container")
    interface: Word | None = Field(None, description="network interface between nodes, as ib0; null: found by route")
    scratch: Line | None = Field(None, description="folder on each node for temporary files (TMPDIR)")
    launch: Literal["pbsdsh", "ssh"] = Field("pbsdsh", description="how PBS reaches the hosts of a job")
    lines: Lines = Field((), description="further shell lines before the run starts, as they are")

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def cores_per_node(self) -> int:
        return self.ranks_per_node * self.cores_per_rank

    @property
    def save_after_seconds(self) -> int | None:
        """When the run has to save; half of a very short time limit is left to it."""
        return None if self.time is None else int(max(self.time - self.save_before, self.time / 2))


def load_job_settings(site: str | None, flags: Mapping[str, Any]) -> JobSettings:
    """Defaults < site file < flags. Raises a UserError that lists every problem at once."""
    file = _site_file(site)
    given = (
        {} if file is None else {key: value for key, value in read_file(file, "--site").items() if not is_null(value)}
    )
    given |= {key: value for key, value in flags.items() if value is not None}
    try:
        return JobSettings.model_validate(given)
    except ValidationError as error:
        problems = list(dict.fromkeys(_problem(item, flags, file) for item in error.errors()))
    heading = "" if len(problems) == 1 else f"{len(problems)} problems:\n  "
    raise UserError("submit: " + heading + "\n  ".join(problems))


def _problem(error: Any, flags: Mapping[str, Any], file: Path | None) -> str:
    key = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return f"{file}: {key}: unknown{hint([key], list(JobSettings.model_fields))}"
    source = "--" + key.replace("_", "-").removesuffix("s" if key == "scheduler_args" else "")
    source = source if flags.get(key) is not None else f"{file}: {key}"
    return f"{source}={error['input']!r}: {error['msg'].removeprefix('Value error, ')}"


def _site_file(given: str | None) -> Path | None:
    """--site, RLCLUSTER_SITE, or site.yaml in the user's configuration folder, if there is one."""
    if given or os.environ.get(SITE_VARIABLE):
        return Path(given or os.environ[SITE_VARIABLE])
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    file = folder / "rlcluster" / "site.yaml"
    return file if file.is_file() else None
