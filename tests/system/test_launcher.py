"""The launcher's variables, and the network settings that follow from them."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import psutil
import pytest

from rlcluster.system import launcher
from rlcluster.system.errors import UserError
from rlcluster.system.launcher import INTERFACE_VARIABLE, LOOPBACK, Placement, launched, prepare_network

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", INTERFACE_VARIABLE)


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
    assert launched() == Placement(5, 8, 1, 4, 2, 3)
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
    ("placement", "more"), [(Placement(1, 2, 0, 1), {}), (Placement(0, 2, 0, 1), {"ib0": "10.9.0.5"})]
)
def test_a_loopback_address_is_refused_on_another_machine_or_with_several_networks(
    placement: Placement, more: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    interfaces(monkeypatch, lo="127.0.0.1", eth0="10.0.0.5", **more)
    with pytest.raises(UserError, match=r"MASTER_ADDR=localhost resolves to this machine.*GLOO_SOCKET_IFNAME.*eth0"):
        prepare_network(placement, "localhost", 29500)


def test_an_unknown_address_is_named() -> None:
    with pytest.raises(UserError, match=r"MASTER_ADDR=no.such.host.invalid cannot be reached"):
        prepare_network(Placement(0, 2, 0, 1), "no.such.host.invalid", 29500)
