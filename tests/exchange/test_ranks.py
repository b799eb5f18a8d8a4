"""Collectives over a gloo group of real processes, against plain Python."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Any

import pytest
import torch

from rlcluster import exchange
from rlcluster.exchange.ranks import LostRankError, Ranks, join_group
from rlcluster.system.errors import UserError
from rlcluster.system.launcher import Placement
from rlcluster.system.processes import RankFailedError

from conftest import on_ranks


def everything(ranks: Ranks) -> dict[str, Any]:
    torch.manual_seed(ranks.rank)
    values = torch.randn(1003)
    rows = torch.full((ranks.rank, 2), float(ranks.rank))  # rank 0 has none
    return {
        "values": values.tolist(),
        "sum": ranks.sum_(values.clone()).tolist(),
        "bfloat16": ranks.sum_bfloat16_(values.clone()).tolist(),
        "largest": ranks.max_(torch.tensor([ranks.rank, -ranks.rank])).tolist(),
        "rows": ranks.gather_rows(rows).tolist(),
        "bytes": ranks.gather_bytes([b"x" * ranks.rank, b"end"]),
        "broadcast": ranks.broadcast(b"from 0" if ranks.rank == 0 else None),
        "nothing": ranks.broadcast(b"" if ranks.rank == 0 else None),
        "any": (ranks.any(ranks.rank == 1), ranks.any(False)),
        "same": ranks.agree_on(torch.arange(10)),
        "different": ranks.agree_on(torch.tensor([0.0, float(ranks.rank == 2)])),
        "count": ranks.count("here"),
        "sync_seconds": ranks.timer.seconds("sync"),
    }


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    return on_ranks(3, everything)


def test_every_rank_has_the_same_sums_rows_bytes_and_flags(results: list[dict[str, Any]]) -> None:
    own = [torch.tensor(result["values"]) for result in results]
    for result in results:
        torch.testing.assert_close(torch.tensor(result["sum"]), own[0] + own[1] + own[2])
        assert result["sum"] == results[0]["sum"]
        assert result["largest"] == [2, 0]
        assert result["rows"] == [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
        assert result["bytes"] == [b"", b"end", b"x", b"end", b"xx", b"end"]
        assert (result["broadcast"], result["nothing"]) == (b"from 0", b"")
        assert result["any"] == (True, False)
        assert (result["same"], result["different"]) == (True, False)
        assert result["sync_seconds"] > 0
    assert sorted(result["count"] for result in results) == [1, 2, 3]


def test_bfloat16_on_the_wire_rounds_each_value_and_each_sum_once(results: list[dict[str, Any]]) -> None:
    """Each rank's value is rounded to 8 bits of mantissa, and the float32 sum once more; nothing else is."""
    expected = sum(torch.tensor(result["values"]).bfloat16().float() for result in results)
    assert isinstance(expected, torch.Tensor)
    for result in results:
        assert result["bfloat16"] == expected.bfloat16().float().tolist()
        error = (torch.tensor(result["bfloat16"]) - torch.tensor(result["sum"])).abs().max()
        assert 0 < error < 0.05  # of values up to 3: two parts in 256 at most


def test_one_rank_is_the_identity() -> None:
    ranks, values = Ranks(), torch.randn(5)
    assert ranks.sum_(values) is values
    assert ranks.sum_bfloat16_(values) is values
    assert ranks.gather_rows(values) is values
    assert ranks.gather_bytes([b"a", b""]) == [b"a", b""]
    assert ranks.agree_on(values)
    assert not ranks.any(False)
    assert (ranks.count("a"), ranks.count("a"), ranks.is_marked("b")) == (1, 2, False)


def fail_on_rank_1(ranks: Ranks, how: str) -> None:
    if ranks.rank == 1:
        if how == "exception":
            raise ZeroDivisionError("a bug")
        os.kill(os.getpid(), signal.SIGKILL)
    ranks.sum_(torch.zeros(3))


@pytest.mark.parametrize(
    ("how", "message"), [("exception", "ZeroDivisionError: a bug"), ("kill", "the process ended by signal SIGKILL")]
)
def test_the_rank_that_failed_first_is_named_with_its_traceback(how: str, message: str) -> None:
    with pytest.raises(RankFailedError, match=r"^rank 1 failed: ") as failure:
        on_ranks(3, fail_on_rank_1, how)
    assert message in str(failure.value)
    assert (failure.value.failed_rank, failure.value.exit_code, failure.value.may_pass) == (1, 1, True)


def stop_on_rank_1(ranks: Any) -> None:
    ranks.sum_(torch.zeros(3))  # all have joined
    ranks._training_timeout = 1.2503  # the last slice of the wait is shorter than a millisecond
    ranks.end_start_up()
    if ranks.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    ranks.sum_(torch.zeros(3))


def test_a_rank_that_does_not_answer_a_collective_is_named_after_the_time_out() -> None:
    with pytest.raises(RankFailedError, match=r"^rank 1 did not answer for 1.2503 s") as failure:
        on_ranks(2, stop_on_rank_1)
    assert (failure.value.failed_rank, failure.value.exit_code) == (1, 71)


def be_late_on_rank_1(ranks: Any) -> float:
    if ranks.rank == 1:
        time.sleep(0.5)
    return float(ranks.sum_(torch.ones(1)))


def test_a_rank_that_is_late_during_start_up_is_waited_for_longer_than_the_time_out() -> None:
    assert on_ranks(2, be_late_on_rank_1, timeout_seconds=0.01) == [2.0, 2.0]


def differ(ranks: Ranks) -> bool:
    return ranks.agree_on(torch.tensor([1.0 + 2**-23 * ranks.rank]))


def test_a_difference_in_the_last_bit_is_a_difference() -> None:
    assert on_ranks(2, differ) == [False, False]


# Joining


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> int:
    """A free port of this machine, as MASTER_PORT."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    return port


def test_a_busy_port_is_named_at_once(address: int) -> None:
    with socket.socket(socket.AF_INET6) as other:
        other.bind(("::", address))
        other.listen()
        with pytest.raises(UserError, match=rf"rank 0 cannot listen at .*MASTER_PORT={address}: another process"):
            join_group(Placement(0, 2, 0, 1), 20.0)


def test_a_rank_that_never_starts_is_named_when_the_time_to_join_is_over(
    address: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange.ranks, "MIN_START_SECONDS", 0.5)
    with pytest.raises(LostRankError, match=r"rank 0 of 3 did not reach the others .* \(not started.*: rank 1, 2\)"):
        join_group(Placement(0, 3, 0, 1), 0.5)
