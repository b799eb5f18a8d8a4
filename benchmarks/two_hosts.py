"""Two hosts on this machine: network namespaces joined by a cable, a core each. Needs root and iproute2."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Any, Self

ADDRESS = "10.77.3"
PORT = "29533"
BURST, QUEUE = "64kb", "100ms"  # of the token bucket that limits the bandwidth


class TwoHosts:
    """`with TwoHosts() as hosts: hosts.limit("100mbit"); hosts.run([first_command, second_command])`."""

    def __init__(self) -> None:
        self._names = [f"rlcluster-bench-{os.getpid()}-{k + 1}" for k in range(2)]

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

    def limit(self, rate: str | None) -> None:
        """The bandwidth of both directions, in tc's words (`100mbit`); None: no limit."""
        for name in self._names:
            own = ["-n", name, "qdisc"]
            subprocess.run(["tc", *own, "del", "dev", "cable", "root"], check=False, capture_output=True)
            if rate is not None:
                bucket = ["tbf", "rate", rate, "burst", BURST, "latency", QUEUE]
                _call("tc", *own, "add", "dev", "cable", "root", *bucket)

    def run(self, commands: Sequence[Sequence[str]]) -> None:
        """One command on each host, as the launcher of a distributed run would start them."""
        processes = [self._start(k, command) for k, command in enumerate(commands)]
        errors = [process.communicate()[1] for process in processes]
        if any(process.returncode for process in processes):
            raise SystemExit("\n".join(errors))

    def _start(self, k: int, command: Sequence[str]) -> subprocess.Popen[str]:
        ranks = {"RANK": k, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": k}
        environment: dict[str, Any] = {**ranks, "MASTER_ADDR": f"{ADDRESS}.1", "MASTER_PORT": PORT}
        return subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{self._names[k]}", "taskset", "--cpu-list", str(k), *command],
            env={**os.environ, **{name: str(value) for name, value in environment.items()}},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _make(self) -> None:
        first, second = self._names
        for name in self._names:
            _call("ip", "netns", "add", name)
        _call("ip", "link", "add", "cable", "netns", first, "type", "veth", "peer", "name", "cable", "netns", second)
        for k, name in enumerate(self._names):
            _call("ip", "-n", name, "link", "set", "lo", "up")
            _call("ip", "-n", name, "addr", "add", f"{ADDRESS}.{k + 1}/24", "dev", "cable")
            _call("ip", "-n", name, "link", "set", "cable", "up")


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
