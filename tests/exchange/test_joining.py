"""Ranks that join: all of them, none twice, and what is said when some do not come."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch import distributed

from rlcluster.exchange import ranks
from rlcluster.exchange.ranks import LostRankError
from rlcluster.system.launcher import Placement


def join(path: Path, numbers: list[int], world_size: int, timeout: float) -> list[BaseException | None]:
    """How joining ends for processes with these ranks, here threads on one store."""
    outcomes: list[BaseException | None] = [None] * len(numbers)

    def arrive(k: int) -> None:
        store: Any = distributed.FileStore(str(path), world_size)  # type: ignore[attr-defined]
        store.set_timeout(timedelta(seconds=5))
        try:
            ranks._wait_for_all(Placement(numbers[k], world_size), store, timeout)
        except (LostRankError, TimeoutError) as error:
            outcomes[k] = error

    threads = [threading.Thread(target=arrive, args=(k,)) for k in range(len(numbers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return outcomes


def test_all_ranks_meet(tmp_path: Path) -> None:
    assert join(tmp_path / "store", [2, 0, 1], 3, timeout=60.0) == [None] * 3


def test_two_processes_with_one_number_are_named_by_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "DIAGNOSIS_SECONDS", 0.1)
    outcomes = join(tmp_path / "store", [0, 1, 1], 3, timeout=60.0)
    for outcome in outcomes:
        assert isinstance(outcome, LostRankError)
        assert str(outcome) == "two processes have RANK=1; give each process of the launch command its own"
        assert (outcome.exit_code, outcome.failed_rank) == (2, 1)


def test_the_ranks_that_did_not_come_are_named(tmp_path: Path) -> None:
    (outcome,) = join(tmp_path / "store", [1], 4, timeout=0.5)
    assert isinstance(outcome, TimeoutError)
    assert str(outcome) == "not started, or cut off: rank 0, 2, 3"


def test_ranks_that_met_but_cannot_connect_name_the_interface_that_they_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib7")

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("connect: Network is unreachable")

    monkeypatch.setattr(distributed, "init_process_group", refuse)
    monkeypatch.setattr(ranks, "_wait_for_all", lambda *_: None)
    with pytest.raises(LostRankError) as error:
        ranks.join_group(Placement(1, 2), 60.0, str(tmp_path / "store"))
    assert str(error.value) == (
        f"rank 1 of 2 met the others at {tmp_path / 'store'} but cannot connect to them through GLOO_SOCKET_IFNAME=ib7"
        "; set it, on every machine, to the interface of the network that joins them (connect: Network is unreachable)"
    )


def test_a_rank_that_waited_for_connections_says_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib7")
    monkeypatch.setenv("MASTER_ADDR", "n1")
    monkeypatch.setenv("MASTER_PORT", "29517")
    monkeypatch.setattr(ranks.time, "monotonic", lambda: 70.2)
    message = ranks._not_reached(Placement(0, 2), None, start=0.0, have_met=True)
    assert (
        "at MASTER_ADDR=n1 MASTER_PORT=29517 but cannot connect to them through GLOO_SOCKET_IFNAME=ib7 in 70 s;"
        in message
    )
