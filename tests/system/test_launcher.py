"""The launcher's variables, and the network settings that follow from them."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import psutil
import pytest

from rlcluster.system import launcher
from rlcluster.system.errors import UserError
from rlcluster.system.launcher import (
    INTERFACE_VARIABLE,
    LOOPBACK,
    QUIET,
    Placement,
    launched,
    prepare_network,
    wait_for_port,
)
from rlcluster.system.slurm_step import expand_hosts

VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *(INTERFACE_VARIABLE, QUIET[0]),
)


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that monkeypatch undoes what the code sets
        monkeypatch.delenv(name)


def test_without_its_variables_there_is_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched() is None
    monkeypatch.setenv("RANK", "1")
    assert launched() is None


def test_the_variables_of_torchrun_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"RANK": 5, "WORLD_SIZE": 8, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 4}
    for name, value in {**values, "TORCHELASTIC_RESTART_COUNT": 2, "TORCHELASTIC_MAX_RESTARTS": 3}.items():
        monkeypatch.setenv(name, str(value))
    assert launched() == Placement(5, 8, 1, 4, 2, 3, host=socket.gethostname())
    assert Placement(5, 8, 1, 4).spans_machines
    assert not Placement(5, 8, 5, 8).spans_machines


@pytest.mark.parametrize(
    ("rank", "message"), [("one", "RANK=one should be a whole number"), ("2", "RANK=2 should be below WORLD_SIZE=2")]
)
def test_wrong_variables_are_named(rank: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=message):
        launched()


def test_a_launcher_must_set_how_many_ranks_share_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="WORLD_SIZE=2 but LOCAL_RANK is not set"):
        launched()


def test_one_machine_uses_loopback_and_the_address_in_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_network(Placement(0, 2, 0, 2), "localhost", 29500)
    assert launcher.os.environ[INTERFACE_VARIABLE] == LOOPBACK
    assert (launcher.os.environ["MASTER_ADDR"], launcher.os.environ["MASTER_PORT"]) == ("localhost", "29500")


def test_variables_that_the_user_has_set_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    interfaces(monkeypatch, lo="127.0.0.1", eth7="10.1.2.4")
    monkeypatch.setenv(INTERFACE_VARIABLE, "eth7")
    monkeypatch.setenv("MASTER_ADDR", "10.1.2.3")
    prepare_network(Placement(0, 2, 0, 1), "localhost", 29500)
    assert (launcher.os.environ[INTERFACE_VARIABLE], launcher.os.environ["MASTER_ADDR"]) == ("eth7", "10.1.2.3")


def interfaces(monkeypatch: pytest.MonkeyPatch, **addresses: str) -> None:
    found = {n: [SimpleNamespace(family=socket.AF_INET, address=address)] for n, address in addresses.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)


def test_a_loopback_address_is_replaced_by_the_only_network_on_the_first_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interfaces(monkeypatch, lo="127.0.0.1", eth0="10.0.0.5")
    prepare_network(Placement(0, 2, 0, 1), "localhost", 29500)
    assert launcher.os.environ[INTERFACE_VARIABLE] == "eth0"


@pytest.mark.parametrize(
    ("placement", "more"),
    [
        (Placement(1, 2, 0, 1), {}),
        (Placement(1, 3, 0, 2, node=1), {}),  # rank 0's machine has one rank
        (Placement(0, 2, 0, 1), {"ib0": "10.9.0.5"}),
    ],
)
def test_a_loopback_address_is_refused_on_another_machine_or_with_several_networks(
    placement: Placement, more: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    interfaces(monkeypatch, lo="127.0.0.1", eth0="10.0.0.5", **more)
    with pytest.raises(UserError, match=r"MASTER_ADDR=localhost resolves to this machine.*GLOO_SOCKET_IFNAME.*eth0"):
        prepare_network(placement, "localhost", 29500)


def test_an_unknown_interface_is_named_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    interfaces(monkeypatch, lo="127.0.0.1", eth0="10.0.0.5")
    monkeypatch.setenv(INTERFACE_VARIABLE, "ib0")
    with pytest.raises(UserError, match=r"GLOO_SOCKET_IFNAME=ib0: .* has no interface ib0 .* it has eth0, lo"):
        prepare_network(Placement(0, 2, 0, 1), "localhost", 29500)


@pytest.mark.parametrize("given", ["lo", "eth0,lo"])
def test_loopback_is_refused_as_the_interface_between_machines(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    interfaces(monkeypatch, lo="127.0.0.1", eth0="10.0.0.5", ib0="10.9.0.5")
    monkeypatch.setenv(INTERFACE_VARIABLE, given)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.5")
    message = (
        rf"{INTERFACE_VARIABLE}={given}: lo reaches this machine alone, but rank 0 of 2 has peers on other machines"
    )
    with pytest.raises(UserError, match=message + "; use one of: eth0, ib0"):
        prepare_network(Placement(0, 2, 0, 1), "localhost", 29500)


def test_loopback_is_kept_where_all_ranks_are_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    interfaces(monkeypatch, lo="127.0.0.1", eth0="10.0.0.5")
    monkeypatch.setenv(INTERFACE_VARIABLE, "lo")
    prepare_network(Placement(0, 2, 0, 2), "10.0.0.5", 29500)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")  # two launchers on one machine: no other could reach this address
    prepare_network(Placement(0, 2, 0, 1), "localhost", 29500)
    assert launcher.os.environ[INTERFACE_VARIABLE] == "lo"


def test_an_unknown_address_is_named() -> None:
    with pytest.raises(UserError, match=r"MASTER_ADDR=no.such.host.invalid cannot be reached"):
        prepare_network(Placement(0, 2, 0, 1), "no.such.host.invalid", 29500)


def test_a_port_where_somebody_listens_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        wait_for_port("127.0.0.1", server.getsockname()[1], 30.0)


def test_a_port_where_nobody_listens_is_not_and_the_reason_is_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(TimeoutError, match="rank 0: Connection refused"):
        wait_for_port("127.0.0.1", port, 0.3)


def test_a_name_that_cannot_be_resolved_is_refused_at_once() -> None:
    with pytest.raises(UserError, match=r"MASTER_ADDR=no-such-host.invalid cannot be resolved"):
        wait_for_port("no-such-host.invalid", 29500, 60.0)


# Slurm

STEP = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "n[08-10],m1",
    "SLURM_NODEID": "3",
    "SLURM_PROCID": "6",
    "SLURM_LOCALID": "0",
}


def in_step(monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    for name, value in {**STEP, **changes}.items():
        monkeypatch.setenv(name, value)


def test_a_task_of_srun_is_a_rank_and_machines_may_differ_in_their_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    in_step(monkeypatch)
    assert launched() == Placement(6, 7, 0, 1, node=3, host="m1")
    in_step(monkeypatch, SLURM_PROCID="5", SLURM_NODEID="2", SLURM_LOCALID="1")
    assert launched() == Placement(5, 7, 1, 2, node=2, host="n10")


def test_the_first_host_of_the_step_is_rank_0s_and_the_port_belongs_to_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_step(monkeypatch, SLURM_STEP_NODELIST="localhost,n[2-4]")
    interfaces(monkeypatch, lo="127.0.0.1", eth0="10.0.0.5")
    prepare_network(Placement(0, 7, 0, 2), "localhost", 29500)
    assert launcher.os.environ["MASTER_ADDR"] == "localhost"
    assert launcher.os.environ["MASTER_PORT"] == str(20000 + 7 * 17 + 2)


def test_torchruns_variables_win_and_a_batch_script_or_a_single_task_is_no_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_step(monkeypatch, SLURM_STEP_NUM_TASKS="1")
    assert launched() is None
    in_step(monkeypatch)
    monkeypatch.delenv("SLURM_STEP_ID")
    assert launched() is None
    in_step(monkeypatch)
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}.items():
        monkeypatch.setenv(name, str(value))
    assert launched() == Placement(1, 2, 0, 1, host=socket.gethostname())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "2x3"}, "SLURM_STEP_TASKS_PER_NODE=2x3 should read like"),
        ({"SLURM_STEP_TASKS_PER_NODE": "7"}, "do not fit SLURM_NODEID=3"),
        ({"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST is not set"),
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID=x should be a whole number"),
        ({"SLURM_PROCID": "9"}, "SLURM_PROCID=9 should be below SLURM_STEP_NUM_TASKS=7"),
    ],
)
def test_wrong_variables_of_slurm_are_named(
    changes: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_step(monkeypatch, **changes)
    with pytest.raises(UserError, match=message):
        launched()


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", "n1"),
        ("n[1-3,7],m01", "n1 n2 n3 n7 m01"),
        ("n[08-10]", "n08 n09 n10"),
        ("a-b[1-2],c-d", "a-b1 a-b2 c-d"),
        ("rack[1-2]n[1,3]x", "rack1n1x rack1n3x rack2n1x rack2n3x"),
    ],
)
def test_lists_of_hosts_are_expanded(text: str, hosts: str) -> None:
    assert expand_hosts(text) == tuple(hosts.split())
