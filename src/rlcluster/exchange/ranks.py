"""What ranks do together: sums, rows, bytes and flags over all of them. With one rank each is the identity.

Loops, learner and actor speak to `Ranks` only, so they are the same code for one process and for many. Only tensors
cross between processes, never pickled objects. The time of every exchange is booked as "sync" in `Ranks.timer`.
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

DIAGNOSIS_SECONDS = 3.0  # survivors of a lost rank find out in this time who is missing
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
        """The sum over ranks, in place; bfloat16 on the way, added up in float32."""
        return values

    def max_(self, values: Tensor) -> Tensor:
        """The largest of all ranks, element by element, in place."""
        return values

    def gather_rows(self, rows: Tensor) -> Tensor:
        """The rows [K, ...] of all ranks, one below the other, in the order of the ranks."""
        return rows

    def broadcast(self, content: bytes | None) -> bytes:
        """What rank 0 has, on every rank."""
        assert content is not None
        return content

    def count(self, name: str) -> int:
        """Adds this rank to those that have counted themselves under `name`; returns their number, at once."""
        self._marks[name] = self._marks.get(name, 0) + 1
        return self._marks[name]

    def mark(self, name: str) -> None:
        """Sets a mark that all ranks can see, at once."""
        self._marks[name] = 1

    def is_marked(self, name: str) -> bool:
        return name in self._marks

    def any(self, flag: bool) -> bool:
        """True on every rank if it is true on one."""
        return bool(self.max_(torch.tensor([int(flag)])))

    def gather_bytes(self, parts: Sequence[bytes]) -> list[bytes]:
        """The parts of all ranks, in the order of the ranks."""
        lengths = self.gather_rows(torch.tensor([len(part) for part in parts], dtype=torch.int64))
        whole = self.gather_rows(to_tensor(b"".join(parts))).numpy().tobytes()
        ends = lengths.cumsum(0).tolist()
        return [whole[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]

    def agree_on(self, values: Tensor) -> bool:
        """True if all ranks hold the same bits: the largest and the smallest digest are then the same."""
        digest = hashlib.blake2b(values.detach().numpy().tobytes(), digest_size=32).digest()
        words = torch.frombuffer(bytearray(digest), dtype=torch.int32).to(torch.int64)
        extremes = self.max_(torch.cat([words, -words]))
        return torch.equal(extremes[: len(words)], -extremes[len(words) :])


class GlooRanks(Ranks):
    """This process and its fellows, through torch.distributed."""

    def __init__(self, placement: Placement, store: Any, timeout_seconds: float) -> None:
        super().__init__()
        self.placement, self._store, self._timeout_seconds = placement, store, timeout_seconds
        self._watcher: threading.Thread | None = None
        self._asked_at = math.inf  # when the store was asked something that it has not answered yet

    def sum_(self, values: Tensor) -> Tensor:
        with self._exchange():
            distributed.all_reduce(values)
        return values

    def sum_bfloat16_(self, values: Tensor) -> Tensor:
        """Rank r adds up the r-th part of all ranks' values; then all collect the sums. Half the bytes of `sum_`."""
        part = -(-len(values) // self.world_size)
        sent = torch.zeros(self.world_size * part, dtype=torch.bfloat16)
        sent[: len(values)] = values
        received = torch.empty_like(sent)
        sums = torch.empty_like(sent)
        with self._exchange():
            distributed.all_to_all_single(received, sent)
            own = received.view(self.world_size, part).float().sum(0).bfloat16()
            distributed.all_gather_single(sums, own)
        return values.copy_(sums[: len(values)])

    def max_(self, values: Tensor) -> Tensor:
        with self._exchange():
            distributed.all_reduce(values, distributed.ReduceOp.MAX)
        return values

    def gather_rows(self, rows: Tensor) -> Tensor:
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        with self._exchange():
            distributed.all_gather(counts, torch.tensor([len(rows)]))
        longest = max(int(count) for count in counts)
        padded = torch.zeros(longest, *rows.shape[1:], dtype=rows.dtype)
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        if longest:
            with self._exchange():
                distributed.all_gather(parts, padded)
        return torch.cat([part[: int(count)] for part, count in zip(parts, counts, strict=True)])

    def broadcast(self, content: bytes | None) -> bytes:
        length = torch.tensor([0 if content is None else len(content)])
        with self._exchange():
            distributed.broadcast(length, 0)
        if not int(length):
            return b""
        values = to_tensor(content) if content is not None else torch.empty(int(length), dtype=torch.uint8)
        with self._exchange():
            distributed.broadcast(values, 0)
        return values.numpy().tobytes()

    def count(self, name: str) -> int:
        with self._question():
            return int(self._store.add(name, 1))

    def mark(self, name: str) -> None:
        with self._question():
            self._store.set(name, "1")

    def is_marked(self, name: str) -> bool:
        with self._question():
            return bool(self._store.check([name]))

    @contextlib.contextmanager
    def _question(self) -> Iterator[None]:
        """To the store. It has no time-out of its own when its machine is cut off: a thread ends this process then."""
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch_questions, daemon=True)
            self._watcher.start()
        self._asked_at = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            raise self._diagnose(str(error), time.monotonic() - self._asked_at) from None
        finally:
            self._asked_at = math.inf

    def _watch_questions(self) -> None:
        while time.monotonic() - self._asked_at < self._timeout_seconds:
            time.sleep(min(1.0, self._timeout_seconds / 4))
        _leave(
            f"rank 0 did not answer for {self._timeout_seconds:g} s (parallel.timeout_seconds); continue with --resume"
        )

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        with self.timer("sync"):
            start = time.perf_counter()
            try:
                yield
            except RuntimeError as error:  # what gloo raises for a closed connection and for silence
                raise self._diagnose(str(error), time.perf_counter() - start) from None

    def _diagnose(self, message: str, waited_seconds: float) -> LostRankError:
        """Each rank that sees the failure says so in the store: those that stay silent are the lost ones."""
        missing = self._silent_ranks()
        failed_rank = missing[0] if len(missing) == 1 else None
        names = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
        if waited_seconds >= 0.9 * self._timeout_seconds:
            limit = f"for {waited_seconds:.0f} s (parallel.timeout_seconds={self._timeout_seconds:g})"
            who = f"{names} did not answer" if missing else "ranks did not hear of each other"
            return LostRankError(f"{who} {limit}; continue with --resume", EXIT_TIMEOUT, failed_rank)
        what = f"the connection to {names} was lost" if missing else f"the exchange failed: {message.splitlines()[0]}"
        return LostRankError(f"{what}; continue with --resume", EXIT_RUN_FAILED, failed_rank)

    def _silent_ranks(self) -> list[int]:
        """Asks the store, which may be out of reach itself: then it is rank 0's machine that is lost."""
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
    with contextlib.suppress(RuntimeError):  # a store that is out of reach
        function()


def join_group(placement: Placement, timeout_seconds: float, rendezvous: str | None = None) -> GlooRanks:
    """Meets the other ranks: in the file `rendezvous` on one machine, else by the launcher's variables."""
    patience = max(timeout_seconds, MIN_JOIN_SECONDS)
    where = rendezvous or f"MASTER_ADDR={os.environ.get('MASTER_ADDR')} MASTER_PORT={os.environ.get('MASTER_PORT')}"
    message = (
        f"rank {placement.rank} of {placement.world_size} did not meet the others within {patience:g} s at {where}; "
        "see that all ranks were started, that this address is the same on all machines and reachable, and set "
        "GLOO_SOCKET_IFNAME where a machine has several networks"
    )
    with _watchdog(patience + JOIN_GRACE_SECONDS, message):
        try:
            store = _store(placement, patience, rendezvous)
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


def _store(placement: Placement, patience: float, rendezvous: str | None) -> Any:
    """A launcher may keep one store over its restarts: what an earlier attempt left there does not count."""
    if rendezvous is None:
        store, _, _ = next(iter(distributed.rendezvous("env://", timeout=timedelta(seconds=patience))))  # type: ignore[attr-defined]
    else:
        store = distributed.FileStore(rendezvous, placement.world_size)  # type: ignore[attr-defined]
    store.set_timeout(timedelta(seconds=patience))
    return distributed.PrefixStore(f"attempt_{placement.restarts}", store)  # type: ignore[attr-defined]


def _wait_for_all(placement: Placement, store: Any) -> None:
    """Before gloo connects them, whose own patience is that of an exchange: processes may start far apart."""
    if store.add("arrived", 1) == placement.world_size:
        store.set("complete", "1")
    store.wait(["complete"])


@contextlib.contextmanager
def _watchdog(seconds: float, message: str) -> Iterator[None]:
    """Ends this process if the block does not: a rank that resolves its own name to loopback waits for ever."""
    timer = threading.Timer(seconds, _leave, (message,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _leave(message: str) -> None:
    say(f"rlcluster: error: {message}", stream=sys.stderr)
    os._exit(EXIT_TIMEOUT)


def to_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
