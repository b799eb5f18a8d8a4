"""The variables that Slurm's `srun` gives each task of a step, and the two notations in them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rlcluster.system.errors import UserError

# Below the ports that systems give to outgoing connections (from 32768 on Linux).
FIRST_PORT, NUM_PORTS = 20000, 12000


class SlurmStep(NamedTuple):
    """A task among those of its step, and where its first task is."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node: int
    hosts: tuple[str, ...]
    port: int

    @property
    def master_addr(self) -> str:
        return self.hosts[0]


def slurm_step(environment: Mapping[str, str] = os.environ) -> SlurmStep | None:
    """The step that this process is a task of; None outside one, and in a step of a single task: it has no peers.

    A batch script has SLURM_PROCID as well, but it is no task of a step.
    """
    if "SLURM_STEP_ID" not in environment or _number(environment, "SLURM_STEP_NUM_TASKS") < 2:
        return None
    tasks, node = tasks_per_node(_text(environment, "SLURM_STEP_TASKS_PER_NODE")), _number(environment, "SLURM_NODEID")
    hosts = expand_hosts(_text(environment, "SLURM_STEP_NODELIST"))
    if len(hosts) != len(tasks) or not node < len(tasks):
        raise UserError(
            f"SLURM_STEP_NODELIST={environment['SLURM_STEP_NODELIST']} and SLURM_STEP_TASKS_PER_NODE="
            f"{environment['SLURM_STEP_TASKS_PER_NODE']} do not fit SLURM_NODEID={node}; start the ranks with srun"
        )
    return SlurmStep(
        rank=_number(environment, "SLURM_PROCID"),
        world_size=_number(environment, "SLURM_STEP_NUM_TASKS"),
        local_rank=_number(environment, "SLURM_LOCALID"),
        local_world_size=tasks[node],
        node=node,
        hosts=hosts,
        port=port_of(_number(environment, "SLURM_JOB_ID"), _number(environment, "SLURM_STEP_ID")),
    )


def port_of(job: int, step: int = 0) -> int:
    """Another one for each step: the port of a step that has just failed may not be free yet."""
    return FIRST_PORT + (7 * job + step) % NUM_PORTS


def tasks_per_node(text: str) -> list[int]:
    """`2(x3),1` as [2, 2, 2, 1]."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise UserError(f"SLURM_STEP_TASKS_PER_NODE={text} should read like 2(x3),1; start the ranks with srun")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def expand_hosts(text: str) -> tuple[str, ...]:
    """`n[1-3,7],m01` as n1, n2, n3, n7, m01; leading zeros are kept."""
    return tuple(host for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text) for host in _expand(part))


def _expand(part: str) -> Iterator[str]:
    """All hosts of one name, which may have several brackets: `rack[1-2]n[01-02]`."""
    match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
    if match is None:
        yield part
        return
    for item in match[2].split(","):
        first, _, last = item.partition("-")
        for number in range(int(first), int(last or first) + 1):
            for rest in _expand(match[3]):
                yield f"{match[1]}{number:0{len(first)}}{rest}"


def _text(environment: Mapping[str, str], variable: str) -> str:
    if not environment.get(variable):
        raise UserError(f"{variable} is not set, but SLURM_STEP_ID is; start the ranks with srun")
    return environment[variable]


def _number(environment: Mapping[str, str], variable: str) -> int:
    text = _text(environment, variable)
    if not text.isdigit():
        raise UserError(f"{variable}={text} should be a whole number; start the ranks with srun")
    return int(text)
