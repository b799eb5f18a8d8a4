"""Collectives over a gloo group of real processes, against plain Python."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import torch

from rlcluster.exchange.ranks import Ranks
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
    start = time.monotonic()
    with pytest.raises(RankFailedError, match=r"^rank 1 failed: ") as failure:
        on_ranks(3, fail_on_rank_1, how)
    assert message in str(failure.value)
    assert (failure.value.failed_rank, failure.value.exit_code, failure.value.may_pass) == (1, 1, True)
    assert time.monotonic() - start < 60


def differ(ranks: Ranks) -> bool:
    return ranks.agree_on(torch.tensor([1.0 + 2**-23 * ranks.rank]))


def test_a_difference_in_the_last_bit_is_a_difference() -> None:
    assert on_ranks(2, differ) == [False, False]
