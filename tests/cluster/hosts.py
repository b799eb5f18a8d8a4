"""Hosts made of namespaces on this machine, with a real Slurm on top: its controller on `hub`, slurmd on n1, n2, ...

Each host has its own network, host name and /etc/hosts; a bridge in the hub's namespace joins them, so nothing is added
to the network of the machine. Munge has its own key and socket. Everything lives in one folder; `down` leaves nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

NETWORK = "10.77.2"
SMALL_DISK_MEGABYTES = 16
COMMANDS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "munged": "munge",
    "ip": "iproute2",
    "nsenter": "util-linux",
}
PATIENCE_SECONDS = 300.0  # a loaded machine takes many times as long as a quiet one

ENTER = """
folder=$1 host=$2; shift 2
hostname "$host"
mount --bind "$folder/hosts" /etc/hosts
mount --bind "$folder/nsswitch.conf" /etc/nsswitch.conf
exec "$@"
"""

CONFIGURATION = """
ClusterName=test
SlurmctldHost=hub({network}.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=40
KillWait=30
MinJobAge=3600
JobRequeue=1
MaxArraySize=3
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=2,bf_interval=2
{nodes}
PartitionName=low Nodes=n[1-{size}] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime={patience:.0f}
PartitionName=high Nodes=n[1-{size}] MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def missing_parts() -> str | None:
    """Why there can be no such hosts here; None if there can."""
    if os.geteuid() != 0:
        return "hosts made of namespaces need root"
    packages = sorted({package for command, package in COMMANDS.items() if shutil.which(command) is None})
    if packages:
        return f"not installed: {' '.join(packages)}"
    probe = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "true"], capture_output=True, text=True, check=False
    )
    return f"this machine does not allow namespaces: {probe.stderr.strip()}" if probe.returncode else None


class Hosts:
    """`with Hosts(folder, 4) as hosts: hosts.run("hub", "sinfo")`."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size
        self.small_disk = folder / "small"  # a file system of its own, which all hosts see
        self._names = {name: f"rlc{os.getpid()}-{name}" for name in ("hub", *(f"n{k + 1}" for k in range(size)))}

    def __enter__(self) -> Hosts:
        try:
            self._up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def command(self, host: str, *arguments: str | Path) -> list[str]:
        """nsenter, not `ip netns exec`: that one remounts /sys, and slurmd then refuses to start."""
        namespace = f"--net=/run/netns/{self._names[host]}"
        enter = ["nsenter", namespace, "unshare", "--mount", "--uts", "--propagation", "slave", "bash", "-c", ENTER]
        return [*enter, "enter", str(self.folder / host), host, *map(str, arguments)]

    def run(
        self, host: str, *arguments: str | Path, check: bool = True, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
        streams: dict[str, Any] = {"capture_output": True, "text": True, "timeout": PATIENCE_SECONDS}
        return subprocess.run(self.command(host, *arguments), check=check, env=environment, cwd=cwd, **streams)

    def cable(self, host: str, state: str) -> None:
        """Unplugs (`down`) or plugs (`up`) a host's cable, at the bridge."""
        _ip("-n", self._names["hub"], "link", "set", f"to-{host}", state)

    def down(self) -> None:
        """Jobs are cancelled if Slurm still answers; what is then left on a host is killed."""
        try:
            if (self.folder / "slurmctld.pid").exists():
                self.run("hub", "scancel", "--user=root", check=False)
                until(lambda: not self.run("hub", "squeue", "--noheader", check=False).stdout, 60)
        finally:
            for file in self.folder.glob("*.pid"):
                if pid := file.read_text().strip():
                    _end(int(pid))
            for name in self._names.values():
                left = subprocess.run(["ip", "netns", "pids", name], check=False, capture_output=True, text=True)
                for pid in left.stdout.split():
                    _kill(int(pid))
                subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
            subprocess.run(["umount", "--lazy", self.small_disk], check=False, capture_output=True)

    def _up(self) -> None:
        (self.folder / "state").mkdir()
        self.small_disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MEGABYTES}m", "rlcluster-test", self.small_disk]
        subprocess.run(mount, check=True, capture_output=True)
        addresses = {name: f"{NETWORK}.{1 if k == 0 else 10 + k}" for k, name in enumerate(self._names)}
        for host in self._names:
            self._add(host, addresses)
        nodes = "\n".join(
            f"NodeName={name} NodeAddr={address} CPUs=2 Sockets=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=4000"
            for name, address in addresses.items()
            if name != "hub"
        )
        text = CONFIGURATION.format(
            network=NETWORK, folder=self.folder, nodes=nodes, size=self.size, patience=PATIENCE_SECONDS
        )
        (self.folder / "slurm.conf").write_text(text)
        self._start_munge()
        self.run("hub", "slurmctld", "-f", self.folder / "slurm.conf")
        for host in list(self._names)[1:]:
            self.run(host, "slurmd", "-N", host, "-f", self.folder / "slurm.conf")
        idle = ["sinfo", "--noheader", "--Node", "--partition=low", "--states=idle", "--format=%N"]
        are_idle = until(lambda: len(self.run("hub", *idle, check=False).stdout.split()) == self.size)
        assert are_idle, (self.folder / "slurmctld.log").read_text()

    def _add(self, host: str, addresses: dict[str, str]) -> None:
        name, hub = self._names[host], self._names["hub"]
        folder = self.folder / host
        folder.mkdir()
        lines = ["127.0.0.1 localhost", *(f"{address} {other}" for other, address in addresses.items())]
        (folder / "hosts").write_text("\n".join(lines) + "\n")
        (folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")  # never a DNS that stalls
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
        if host == "hub":
            _ip("-n", hub, "link", "add", "bridge0", "type", "bridge")
            link = "bridge0"
        else:
            _ip("-n", hub, "link", "add", f"to-{host}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", hub, "link", "set", f"to-{host}", "master", "bridge0", "up")
            link = "eth0"
        _ip("-n", name, "addr", "add", f"{addresses[host]}/24", "dev", link)
        _ip("-n", name, "link", "set", link, "up")

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        names = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        flags = [f"--{flag}={self.folder}/munge.{name}" for flag, name in names.items()]
        subprocess.run(["munged", "--force", *flags], check=True, capture_output=True)


def processes_with(text: str) -> Iterator[psutil.Process]:
    """Processes of this machine whose command line has this text."""
    for process in psutil.process_iter():
        try:
            if text in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except psutil.Error:
            continue


def until(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> bool:
    """Waits for a condition; False if it did not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _end(pid: int) -> None:
    """A daemon is not our child, so its end cannot be waited for; nobody may ever collect it."""
    try:
        process = psutil.Process(pid)
        process.send_signal(signal.SIGTERM)
        if not until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, 10):
            process.kill()
    except psutil.NoSuchProcess:
        pass


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
