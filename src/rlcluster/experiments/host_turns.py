"""Runs over the hosts of an allocation that take turns: a process on each host starts, stops and ends the ranks there.
The first one decides, and broadcasts what to do; the others follow.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlcluster.experiments.turns import LocalProcesses
from rlcluster.system import cores
from rlcluster.system.errors import UserError
from rlcluster.system.launcher import Placement, leave_launcher, prepare_network
from rlcluster.system.slurm_step import FIRST_PORT, NUM_PORTS

if TYPE_CHECKING:
    from rlcluster.exchange.ranks import Ranks

PATIENCE_SECONDS = 1_000_000.0  # the others wait while a run takes its turn
NETWORK = ("MASTER_ADDR", "GLOO_SOCKET_IFNAME")


class Hosts:
    """The processes that tune, one on each host."""

    def __init__(self, placement: Placement, master: tuple[str, int]) -> None:
        """Joins the others; from here on this process is no rank of the launcher."""
        from rlcluster.exchange.ranks import join_group

        if placement.local_world_size > 1:
            raise UserError(
                f"tune: the launcher has started {placement.local_world_size} processes on a host; start one on each, "
                "as: srun --ntasks-per-node 1 --cpus-per-task C rlcluster tune ..., which starts the ranks itself"
            )
        prepare_network(placement, *master)
        self._network = {name: os.environ[name] for name in NETWORK}
        self._port, self._num_runs = int(os.environ["MASTER_PORT"]), 0
        self._ranks: Ranks = join_group(placement, PATIENCE_SECONDS)
        leave_launcher()
        self._runs: dict[int, LocalProcesses] = {}
        found = self._ranks.gather_bytes([str(cores.observe().physical).encode()])
        self.cores_of_each = [int(count) for count in found]

    @property
    def is_first(self) -> bool:
        return self._ranks.rank == 0

    @property
    def size(self) -> int:
        return self._ranks.world_size

    def start(self, arguments: Sequence[str], world_size: int) -> RunOverHosts:
        """Of the first host: a run with as many ranks on each host."""
        self._num_runs += 1
        self.command("start", self._num_runs, [list(arguments), world_size // self.size])
        return RunOverHosts(self, self._num_runs)

    def command(self, name: str, run: int, value: Any = None) -> None:
        """Of the first host: all do this."""
        self._ranks.broadcast(json.dumps([name, run, value]).encode())
        self._obey(name, run, value)

    def follow(self) -> None:
        """Of the other hosts: until the first says that it is over."""
        name = ""
        try:
            while name != "over":
                name, run, value = json.loads(self._ranks.broadcast(None))
                self._obey(name, run, value)
        finally:
            self._end_all()

    def failure(self, run: int) -> str | None:
        return self._runs[run].failure()

    def _obey(self, name: str, run: int, value: Any) -> None:
        if name == "start":
            arguments, num_local = value
            self._runs[run] = LocalProcesses(arguments, [self._variables(run, k, num_local) for k in range(num_local)])
        elif name == "signal":
            self._runs[run].signal(value)
        elif name == "close":
            self._runs[run].close()
        elif name == "over":
            self._end_all()

    def _end_all(self) -> None:
        for processes in self._runs.values():
            processes.close()

    def _variables(self, run: int, local_rank: int, num_local: int) -> dict[str, str]:
        """What torchrun would give a rank. Every run has a port of its own."""
        own = self._ranks.rank
        numbers = {
            "RANK": own * num_local + local_rank,
            "WORLD_SIZE": self.size * num_local,
            "LOCAL_RANK": local_rank,
            "LOCAL_WORLD_SIZE": num_local,
            "GROUP_RANK": own,
            "MASTER_PORT": FIRST_PORT + (self._port - FIRST_PORT + run) % NUM_PORTS,
        }
        return {**self._network, **{name: str(number) for name, number in numbers.items()}}


class RunOverHosts:
    """The processes of one run on all hosts, as the first host sees them."""

    def __init__(self, hosts: Hosts, number: int) -> None:
        self._hosts, self._number, self._is_closed = hosts, number, False

    def signal(self, number: int) -> None:
        self._hosts.command("signal", self._number, number)

    def failure(self) -> str | None:
        return self._hosts.failure(self._number)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._hosts.command("close", self._number)
