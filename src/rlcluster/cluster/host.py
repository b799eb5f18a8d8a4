"""The process of one host in a PBS job: spawns the host's ranks with the variables of a launcher and waits for them.

python -m rlcluster.cluster.host --ranks 8 --hosts FILE --host-number 1 --log-dir FOLDER -- COMMAND ...
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rlcluster.system.processes import POLL_SECONDS, die_with_parent
from rlcluster.system.signals import StopRequest
from rlcluster.system.slurm_step import port_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the highest exit code of the ranks; 128 plus the signal for one that was killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--hosts", type=Path, required=True)
    parser.add_argument("--host-number", type=int, required=True)
    parser.add_argument("--log-dir", type=Path, required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    hosts = options.hosts.read_text().split()
    with StopRequest(ignores_second_signal=True) as stop:
        ranks = [
            _start(options.command, options.log_dir, rank_variables(hosts, options.ranks, options.host_number, local))
            for local in range(options.ranks)
        ]
        return _wait(ranks, stop)


def rank_variables(hosts: Sequence[str], ranks_per_host: int, host: int, local_rank: int) -> dict[str, str]:
    """As torchrun sets them; MASTER_PORT belongs to the job."""
    digits = re.sub(r"\D.*", "", os.environ.get("PBS_JOBID", ""))
    return {
        "RANK": str(host * ranks_per_host + local_rank),
        "WORLD_SIZE": str(len(hosts) * ranks_per_host),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(ranks_per_host),
        "GROUP_RANK": str(host),
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": str(port_of(int(digits or 0))),
    }


def _start(command: Sequence[str], folder: Path, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    """A single rank has no peers, so it is told of none."""
    environment = {**os.environ, **(variables if int(variables["WORLD_SIZE"]) > 1 else {})}
    parent = os.getpid()
    with (folder / f"rank-{int(variables['RANK']):04}.log").open("ab") as log:
        return subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            env=environment,
            preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 - this process has no threads that hold locks
        )


def _wait(ranks: Sequence[subprocess.Popen[bytes]], stop: StopRequest) -> int:
    is_stop_forwarded = False
    for rank in ranks:
        while True:
            try:
                rank.wait(POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                if stop.signal_number is not None and not is_stop_forwarded:
                    is_stop_forwarded = True
                    for one in ranks:
                        one.send_signal(stop.signal_number)
    return max(code if code >= 0 else 128 - code for code in (rank.returncode for rank in ranks))


if __name__ == "__main__":
    sys.exit(main())
