"""The placement of a rank, from the environment variables of its launcher: those of torchrun and compatible ones (RANK,
WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), else those of Slurm's `srun`.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from rlcluster.system.clock import wait_while_running
from rlcluster.system.errors import UserError
from rlcluster.system.slurm_step import slurm_step

RETRY_SECONDS = 0.2
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
TORCHRUN_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "GROUP_RANK",
)
QUIET = ("TORCH_CPP_LOG_LEVEL", "FATAL")  # else torch logs pages of C++ frames before our one line; read when it loads


class Placement(NamedTuple):
    """A rank among all ranks of a run, and among those on its machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    restarts: int = 0  # how often the launcher has restarted the ranks
    max_restarts: int = 0
    is_under_torchrun: bool = False
    node: int = 0  # the number of its machine
    host: str = ""  # and its name, where a launcher has started the rank

    @property
    def spans_machines(self) -> bool:
        return self.world_size > self.local_world_size


def launched() -> Placement | None:
    """The placement that a launcher has given this process; None without a launcher."""
    if _has_ranks_of_torchrun():
        return _launched_by_torchrun()
    step = slurm_step()
    if step is None:
        return None
    if not step.rank < step.world_size:
        raise UserError(f"SLURM_PROCID={step.rank} should be below SLURM_STEP_NUM_TASKS={step.world_size}; use srun")
    return Placement(*step[:4], node=step.node, host=step.hosts[step.node])


def leave_launcher() -> None:
    """From here on this process and those that it starts are no ranks of the launcher. What Slurm allows a task to use
    stays known.
    """
    elastic = [name for name in os.environ if name.startswith("TORCHELASTIC_")]
    for name in (*TORCHRUN_VARIABLES, *elastic, "SLURM_STEP_ID", INTERFACE_VARIABLE):
        os.environ.pop(name, None)


def is_slurm_task() -> bool:
    """True for a rank that srun has started itself: Slurm's limits per task are its own alone."""
    return not _has_ranks_of_torchrun() and slurm_step() is not None


def _has_ranks_of_torchrun() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def _launched_by_torchrun() -> Placement:
    placement = Placement(
        rank=_number("RANK", 0),
        world_size=_number("WORLD_SIZE", 1),
        local_rank=_number("LOCAL_RANK", 0),
        local_world_size=_number("LOCAL_WORLD_SIZE", 1),
        restarts=_number("TORCHELASTIC_RESTART_COUNT", 0),
        max_restarts=_number("TORCHELASTIC_MAX_RESTARTS", 0),
        is_under_torchrun="TORCHELASTIC_RUN_ID" in os.environ,
        node=_number("GROUP_RANK", 0),
        host=socket.gethostname(),
    )
    missing = [name for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE") if name not in os.environ]
    if placement.world_size > 1 and missing:
        raise UserError(f"WORLD_SIZE={placement.world_size} but {missing[0]} is not set; fix the launch command")
    if not placement.rank < placement.world_size:
        raise UserError(
            f"RANK={placement.rank} should be below WORLD_SIZE={placement.world_size}; fix the launch command"
        )
    return placement


def prepare_network(placement: Placement, master_addr: str, master_port: int) -> None:
    """Sets the variables that gloo reads: the address of rank 0, unless the launcher has set it, and the interface.

    Without an interface gloo resolves the host's own name, which on Debian is a loopback address that other machines
    cannot reach.
    """
    os.environ.setdefault(*QUIET)
    step = slurm_step() if is_slurm_task() else None
    if step is not None:
        master_addr, master_port = step.master_addr, step.port
    os.environ.setdefault("MASTER_ADDR", master_addr)
    os.environ.setdefault("MASTER_PORT", str(master_port))
    if INTERFACE_VARIABLE in os.environ:
        _refuse_unknown_interface(os.environ[INTERFACE_VARIABLE])
        if placement.spans_machines and not _is_loopback(os.environ["MASTER_ADDR"]):
            _refuse_loopback_interface(placement, os.environ[INTERFACE_VARIABLE])
    else:
        os.environ[INTERFACE_VARIABLE] = (
            _interface(placement, os.environ["MASTER_ADDR"]) if placement.spans_machines else LOOPBACK
        )


def wait_for_port(host: str, port: int, timeout_seconds: float) -> None:
    """Returns when somebody listens there; raises a TimeoutError that says why nobody was reached. torch would wait as
    well, but its error takes seconds and a page of C++ frames.
    """
    refusals: list[str] = []

    def try_once(seconds: float) -> bool:
        try:
            socket.create_connection((host, port), seconds).close()
        except socket.gaierror as error:
            raise UserError(
                f"MASTER_ADDR={host} cannot be resolved ({error.strerror}); give the address of rank 0's machine"
            ) from None
        except OSError as error:
            refusals.append(f"rank 0: {error.strerror or error}")
            time.sleep(min(seconds, RETRY_SECONDS))
            return False
        return True

    if not wait_while_running(try_once, timeout_seconds):
        raise TimeoutError(refusals[-1])


def _refuse_unknown_interface(name: str) -> None:
    """gloo's own error does not say which interfaces there are. (It takes several, separated by commas.)"""
    known = sorted({interface for interface, _ in _addresses()})
    unknown = [one for one in name.split(",") if one not in known]
    if unknown:
        raise UserError(
            f"{INTERFACE_VARIABLE}={name}: {socket.gethostname()} has no interface {unknown[0]} with an "
            f"address; it has {', '.join(known)}"
        )


def _refuse_loopback_interface(placement: Placement, name: str) -> None:
    """Other machines would connect to themselves, and wait until the time to join is over."""
    loopback = {interface for interface, address in _addresses() if _is_loopback(address)}
    wrong = [one for one in name.split(",") if one in loopback]
    if wrong:
        others = sorted({interface for interface, _ in _addresses()} - loopback)
        raise UserError(
            f"{INTERFACE_VARIABLE}={name}: {wrong[0]} reaches this machine alone, but rank {placement.rank} of "
            f"{placement.world_size} has peers on other machines; use one of: {', '.join(others) or 'no network found'}"
        )


def _is_loopback(address: str) -> bool:
    """Of an address as it is written: a host's own name may be resolved to loopback on that host alone."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _interface(placement: Placement, master_addr: str) -> str:
    """The network interface that reaches rank 0; on rank 0's machine, its only external one."""
    own_address = _address_towards(master_addr)
    if not _is_loopback(own_address):
        return next(name for name, address in _addresses() if address == own_address)
    others = sorted({name for name, address in _addresses() if not _is_loopback(address)})
    is_elsewhere = placement.node > 0 or placement.rank >= placement.local_world_size  # than rank 0
    if is_elsewhere or len(others) != 1:
        raise UserError(
            f"MASTER_ADDR={master_addr} resolves to this machine ({own_address}), but rank {placement.rank} of "
            f"{placement.world_size} has peers on other machines; give an address of rank 0 that they can reach, or "
            f"set {INTERFACE_VARIABLE} to one of: {', '.join(others) or 'no network found'}"
        )
    return others[0]


def _address_towards(host: str) -> str:
    """This machine's address on the route to `host`. Nothing is sent: connecting over UDP only picks a route."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UserError(
            f"MASTER_ADDR={host} cannot be reached ({error.strerror}); give the address of rank 0's machine"
        ) from None


def _addresses() -> Iterator[tuple[str, str]]:
    """(interface, address) of this machine, IPv4 and IPv6."""
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        for entry in addresses:
            if entry.family in (socket.AF_INET, socket.AF_INET6):
                yield name, entry.address.split("%")[0]


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    if not text.isdigit():
        raise UserError(f"{variable}={text} should be a whole number; fix the launch command")
    return int(text)
