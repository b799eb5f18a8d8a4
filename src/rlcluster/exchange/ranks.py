"""Collectives over ranks: sums, rows, bytes and flags. With one rank each is the identity.

Loops, learner and actor use only `Ranks`, so one process and many run the same code. Ranks exchange only tensors, never
pickled objects. `Ranks.timer` records the time of every collective as "sync".
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from rlcluster.system.clock import PhaseTimer
from rlcluster.system.console import say
from rlcluster.system.errors import EXIT_RUN_FAILED, EXIT_TIMEOUT, RankError
from rlcluster.system.launcher import Placement

DIAGNOSIS_SECONDS = 3.0  # for the surviving ranks to find out which one is missing
MIN_JOIN_SECONDS = 60.0
JOIN_GRACE_SECONDS = 10.0


class LostRankError(RankError):
    """Another rank has died or does not answer."""


class Ranks:
    """One rank: this process alone."""

    placement = Placement()

    def __init__(self) -> None:
        self.timer = PhaseTimer()
        self._marks: dict[str, int] = {}

    @property
    def rank(self) -> int:
        return self.placement.rank

    @property
    def world_size(self) -> int:
        return self.placement.world_size

    def sum_(self, values: Tensor) -> Tensor:
        """The sum over ranks, in place."""
        return values

    def sum_bfloat16_(self, values: Tensor) -> Tensor:
        """The sum over ranks, in place; sent as bfloat16, accumulated in float32."""
        return values

    def max_(self, values: Tensor) -> Tensor:
        """The element-wise maximum over ranks, in place."""
        return values

    def gather_rows(self, rows: Tensor) -> Tensor:
        """The rows [K, ...] of all ranks, concatenated in rank order. K may differ between ranks."""
        return rows

    def broadcast(self, content: bytes | None) -> bytes:
        """Rank 0's content, on every rank."""
        assert content is not None
        return content

    def count(self, name: str) -> int:
        """Increments the counter `name` that all ranks share; returns its value. Waits for no other rank."""
        self._marks[name] = self._marks.get(name, 0) + 1
        return self._marks[name]

    def mark(self, name: str) -> None:
        """Sets a flag that all ranks can see. Waits for no other rank."""
        self._marks[name] = 1

    def is_marked(self, name: str) -> bool:
        return name in self._marks

    def any(self, flag: bool) -> bool:
        """True on every rank if `flag` is true on any."""
        return bool(self.max_(torch.tensor([int(flag)])))

    def gather_bytes(self, parts: Sequence[bytes]) -> list[bytes]:
        """The parts of all ranks, in rank order."""
        lengths = self.gather_rows(torch.tensor([len(part) for part in parts], dtype=torch.int64))
        whole = self.gather_rows(to_tensor(b"".join(parts))).numpy().tobytes()
        ends = lengths.cumsum(0).tolist()
        return [whole[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]

    def agree_on(self, values: Tensor) -> bool:
        """True if all ranks hold the same bits: the maximum and the minimum of their digests are then equal."""
        digest = hashlib.blake2b(values.detach().numpy().tobytes(), digest_size=32).digest()
        words = torch.frombuffer(bytearray(digest), dtype=torch.int32).to(torch.int64)
        extremes = self.max_(torch.cat([words, -words]))
        return torch.equal(extremes[: len(words)], -extremes[len(words) :])


class GlooRanks(Ranks):
    """This rank and its peers, through torch.distributed with gloo."""

    def __init__(self, placement: Placement, store: Any, timeout_seconds: float) -> None:
        super().__init__()
        self.placement, self._store, self._timeout_seconds = placement, store, timeout_seconds
        self._watcher: threading.Thread | None = None
        self._requested_at = math.inf  # start of the store request in flight

    def sum_(self, values: Tensor) -> Tensor:
        with self._collective():
            distributed.all_reduce(values)
        return values

    def sum_bfloat16_(self, values: Tensor) -> Tensor:
        """Reduce-scatter, then all-gather: rank r sums the r-th part of all ranks' values. Half the bytes of `sum_`."""
        part = -(-len(values) // self.world_size)
        sent = torch.zeros(self.world_size * part, dtype=torch.bfloat16)
        sent[: len(values)] = values
        received = torch.empty_like(sent)
        sums = torch.empty_like(sent)
        with self._collective():
            distributed.all_to_all_single(received, sent)
            own = received.view(self.world_size, part).float().sum(0).bfloat16()
            distributed.all_gather_single(sums, own)
        return values.copy_(sums[: len(values)])

    def max_(self, values: Tensor) -> Tensor:
        with self._collective():
            distributed.all_reduce(values, distributed.ReduceOp.MAX)
        return values

    def gather_rows(self, rows: Tensor) -> Tensor:
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        with self._collective():
            distributed.all_gather(counts, torch.tensor([len(rows)]))
        longest = max(int(count) for count in counts)
        padded = torch.zeros(longest, *rows.shape[1:], dtype=rows.dtype)
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        if longest:
            with self._collective():
                distributed.all_gather(parts, padded)
        return torch.cat([part[: int(count)] for part, count in zip(parts, counts, strict=True)])

    def broadcast(self, content: bytes | None) -> bytes:
        length = torch.tensor([0 if content is None else len(content)])
        with self._collective():
            distributed.broadcast(length, 0)
        if not int(length):
            return b""
        values = to_tensor(content) if content is not None else torch.empty(int(length), dtype=torch.uint8)
        with self._collective():
            distributed.broadcast(values, 0)
        return values.numpy().tobytes()

    def count(self, name: str) -> int:
        with self._store_request():
            return int(self._store.add(name, 1))

    def mark(self, name: str) -> None:
        with self._store_request():
            self._store.set(name, "1")

    def is_marked(self, name: str) -> bool:
        with self._store_request():
            return bool(self._store.check([name]))

    @contextlib.contextmanager
    def _store_request(self) -> Iterator[None]:
        """A request to the store never times out if its machine is cut off: a thread then exits this process."""
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch_store_requests, daemon=True)
            self._watcher.start()
        self._requested_at = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            raise self._diagnose(str(error), time.monotonic() - self._requested_at) from None
        finally:
            self._requested_at = math.inf

    def _watch_store_requests(self) -> None:
        while time.monotonic() - self._requested_at < self._timeout_seconds:
            time.sleep(min(1.0, self._timeout_seconds / 4))
        _exit_with_timeout(
            f"rank 0 did not answer for {self._timeout_seconds:g} s (parallel.timeout_seconds); continue with --resume"
        )

    @contextlib.contextmanager
    def _collective(self) -> Iterator[None]:
        with self.timer("sync"):
            start = time.perf_counter()
            try:
                yield
            except RuntimeError as error:  # gloo raises it for closed connections and for time-outs
                raise self._diagnose(str(error), time.perf_counter() - start) from None

    def _diagnose(self, message: str, waited_seconds: float) -> LostRankError:
        """Each rank that sees the failure reports to the store: those that do not are the lost ones."""
        missing = self._missing_ranks()
        failed_rank = missing[0] if len(missing) == 1 else None
        names = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
        if waited_seconds >= 0.9 * self._timeout_seconds:
            limit = f"for {waited_seconds:.0f} s (parallel.timeout_seconds={self._timeout_seconds:g})"
            who = f"{names} did not answer" if missing else "the ranks did not reach each other"
            return LostRankError(f"{who} {limit}; continue with --resume", EXIT_TIMEOUT, failed_rank)
        what = f"the connection to {names} was lost" if missing else f"a collective failed: {message.splitlines()[0]}"
        return LostRankError(f"{what}; continue with --resume", EXIT_RUN_FAILED, failed_rank)

    def _missing_ranks(self) -> list[int]:
        """The ranks that did not report to the store. If the store is unreachable, rank 0's machine is lost."""
        silent = [rank for rank in range(self.world_size) if rank != self.rank]
        answered = threading.Event()

        def ask() -> None:
            deadline = time.monotonic() + DIAGNOSIS_SECONDS
            self._store.set(f"lost/{self.rank}", "1")
            while silent and time.monotonic() < deadline:
                silent[:] = [rank for rank in silent if not self._store.check([f"lost/{rank}"])]
                time.sleep(0.05)
            answered.set()

        threading.Thread(target=_quietly, args=(ask,), daemon=True).start()
        if answered.wait(2 * DIAGNOSIS_SECONDS) or self.rank == 0:
            return list(silent)
        return [0]


def _quietly(function: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the store is unreachable
        function()


def join_group(placement: Placement, timeout_seconds: float, rendezvous: str | None = None) -> GlooRanks:
    """Joins the other ranks: through the file `rendezvous` on one machine, else by the launcher's variables."""
    join_timeout = max(timeout_seconds, MIN_JOIN_SECONDS)
    where = rendezvous or f"MASTER_ADDR={os.environ.get('MASTER_ADDR')} MASTER_PORT={os.environ.get('MASTER_PORT')}"
    message = (
        f"rank {placement.rank} of {placement.world_size} did not reach the others within {join_timeout:g} s at "
        f"{where}; check that all ranks were started and that all machines use this address and can reach it; set "
        "GLOO_SOCKET_IFNAME where a machine has several networks"
    )
    with _watchdog(join_timeout + JOIN_GRACE_SECONDS, message):
        try:
            store = _store(placement, join_timeout, rendezvous)
            _wait_for_all(placement, store)
            distributed.init_process_group(
                "gloo",
                store=store,
                rank=placement.rank,
                world_size=placement.world_size,
                timeout=timedelta(seconds=timeout_seconds),
            )
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise LostRankError(f"{message} ({reason})", EXIT_TIMEOUT, None) from None
    own = distributed.PrefixStore("rlcluster", store)  # type: ignore[attr-defined]
    return GlooRanks(placement, own, timeout_seconds)


def _store(placement: Placement, join_timeout: float, rendezvous: str | None) -> Any:
    """A launcher may keep one store across restarts: the prefix hides what an earlier attempt left there."""
    if rendezvous is None:
        store, _, _ = next(iter(distributed.rendezvous("env://", timeout=timedelta(seconds=join_timeout))))  # type: ignore[attr-defined]
    else:
        store = distributed.FileStore(rendezvous, placement.world_size)  # type: ignore[attr-defined]
    store.set_timeout(timedelta(seconds=join_timeout))
    return distributed.PrefixStore(f"attempt_{placement.restarts}", store)  # type: ignore[attr-defined]


def _wait_for_all(placement: Placement, store: Any) -> None:
    """Waits for every rank before gloo connects them: they may start further apart than gloo's time-out."""
    if store.add("arrived", 1) == placement.world_size:
        store.set("complete", "1")
    store.wait(["complete"])


@contextlib.contextmanager
def _watchdog(seconds: float, message: str) -> Iterator[None]:
    """Exits this process if the block does not end: a rank that resolves its own name to loopback waits for ever."""
    timer = threading.Timer(seconds, _exit_with_timeout, (message,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _exit_with_timeout(message: str) -> None:
    say(f"rlcluster: error: {message}", stream=sys.stderr)
    os._exit(EXIT_TIMEOUT)


def to_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
