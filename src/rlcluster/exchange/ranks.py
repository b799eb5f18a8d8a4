"""Collectives over ranks: sums, rows, bytes and flags. With one rank each is the identity.

Loops, learner and actor use only `Ranks`, so one process and many run the same code. Ranks exchange only tensors, never
pickled objects. `Ranks.timer` records the time of every collective as "sync".
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed

from rlcluster.system.clock import PhaseTimer, wait_while_running
from rlcluster.system.console import say
from rlcluster.system.errors import EXIT_RUN_FAILED, EXIT_TIMEOUT, EXIT_USAGE, RankError, UserError
from rlcluster.system.launcher import INTERFACE_VARIABLE, Placement, wait_for_port

NEVER = timedelta(days=365)  # gloo's own time-out would count while a run is stopped
SHORTEST = timedelta(milliseconds=1)  # torch counts whole milliseconds, and takes 0 for no time-out
DIAGNOSIS_SECONDS = 3.0  # for the surviving ranks to find out which one is missing
MIN_START_SECONDS = 60.0  # to join, and to be ready to train
START_GRACE_SECONDS = 10.0  # a rank that cannot join, or whose helpers do not start, says so itself
ASK_SECONDS = 0.1
OCCUPIED, OCCUPIED_SHARE = "occupied", 0.25  # rank 0's flag in the store, set after this share of the time-out


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

    def end_start_up(self) -> None:
        """All ranks are ready to train: from now on, one that is far behind the others has failed."""

    @contextlib.contextmanager
    def occupied(self) -> Iterator[None]:
        """Rank 0 waits for code of the user's, or for an evaluation: the other ranks wait for it without a time-out."""
        yield

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
    """This rank and its peers, through torch.distributed with gloo.

    Until `end_start_up` they wait for each other as long as they may take to join: on a busy machine some have imported
    their modules, started their helpers and made their environments long before the others.
    """

    def __init__(self, placement: Placement, store: Any, timeout_seconds: float) -> None:
        super().__init__()
        self.placement, self._store, self._training_timeout = placement, store, timeout_seconds
        self._timeout_seconds = _start_timeout(timeout_seconds) + START_GRACE_SECONDS
        self._is_starting = True
        self._watcher: threading.Thread | None = None
        self._answered = threading.Event()  # there is no store request in flight

    def sum_(self, values: Tensor) -> Tensor:
        with self._collective():
            self._finish(distributed.all_reduce(values, async_op=True))
        return values

    def sum_bfloat16_(self, values: Tensor) -> Tensor:
        """Reduce-scatter, then all-gather: rank r sums the r-th part of all ranks' values. Half the bytes of `sum_`."""
        part = -(-len(values) // self.world_size)
        sent = torch.zeros(self.world_size * part, dtype=torch.bfloat16)
        sent[: len(values)] = values
        received = torch.empty_like(sent)
        sums = torch.empty_like(sent)
        with self._collective():
            self._finish(distributed.all_to_all_single(received, sent, async_op=True))
            own = received.view(self.world_size, part).float().sum(0).bfloat16()
            self._finish(distributed.all_gather_single(sums, own, async_op=True))
        return values.copy_(sums[: len(values)])

    def max_(self, values: Tensor) -> Tensor:
        with self._collective():
            self._finish(distributed.all_reduce(values, distributed.ReduceOp.MAX, async_op=True))
        return values

    def gather_rows(self, rows: Tensor) -> Tensor:
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        with self._collective():
            self._finish(distributed.all_gather(counts, torch.tensor([len(rows)]), async_op=True))
        longest = max(int(count) for count in counts)
        padded = torch.zeros(longest, *rows.shape[1:], dtype=rows.dtype)
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        if longest:
            with self._collective():
                self._finish(distributed.all_gather(parts, padded, async_op=True))
        return torch.cat([part[: int(count)] for part, count in zip(parts, counts, strict=True)])

    def broadcast(self, content: bytes | None) -> bytes:
        length = torch.tensor([0 if content is None else len(content)])
        with self._collective():
            self._finish(distributed.broadcast(length, 0, async_op=True))
        if not int(length):
            return b""
        values = to_tensor(content) if content is not None else torch.empty(int(length), dtype=torch.uint8)
        with self._collective():
            self._finish(distributed.broadcast(values, 0, async_op=True))
        return values.numpy().tobytes()

    def end_start_up(self) -> None:
        self._timeout_seconds, self._is_starting = self._training_timeout, False

    @contextlib.contextmanager
    def occupied(self) -> Iterator[None]:
        """Says so in the store, once it takes a while: the others look there before they give up."""
        has_said = threading.Event()

        def say_so() -> None:
            has_said.set()
            _quietly(lambda: self._store.set(OCCUPIED, "1"))

        timer = threading.Timer(self._timeout_seconds * OCCUPIED_SHARE, say_so)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            if has_said.is_set():
                _quietly(lambda: self._store.set(OCCUPIED, "0"))

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
        self._answered.clear()
        try:
            yield
        except RuntimeError as error:
            raise self._diagnose(str(error)) from None
        finally:
            self._answered.set()

    def _watch_store_requests(self) -> None:
        while wait_while_running(self._answered.wait, self._timeout_seconds):
            time.sleep(min(1.0, self._timeout_seconds / 4))
        _exit_with_timeout(f"rank 0 did not answer {self._limit()}")

    @contextlib.contextmanager
    def _collective(self) -> Iterator[None]:
        with self.timer("sync"):
            try:
                yield
            except TimeoutError:
                raise self._diagnose(None) from None
            except RuntimeError as error:  # gloo raises it for closed connections
                raise self._diagnose(str(error)) from None

    def _finish(self, work: Any) -> None:
        """Waits for a collective. Our time-out, not gloo's: it does not count while the run is stopped (Ctrl-Z)."""
        while not wait_while_running(partial(_is_done_within, work), self._timeout_seconds):
            if self.rank == 0 or not self._is_first_occupied():
                raise TimeoutError

    def _is_first_occupied(self) -> bool:
        with self._store_request():
            return bool(self._store.check([OCCUPIED])) and bool(self._store.get(OCCUPIED) == b"1")

    def _diagnose(self, message: str | None) -> LostRankError:
        """Each rank that sees the failure reports to the store: those that do not are the lost ones. `message` is the
        failure's; None: a time-out.
        """
        missing = self._missing_ranks()
        failed_rank = missing[0] if len(missing) == 1 else None
        names = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
        if message is None:
            who = f"{names} did not answer" if missing else "the ranks did not reach each other"
            return LostRankError(f"{who} {self._limit()}", EXIT_TIMEOUT, failed_rank)
        what = f"the connection to {names} was lost" if missing else f"a collective failed: {message.splitlines()[0]}"
        when = " during start-up; start again" if self._is_starting else "; continue with --resume"
        return LostRankError(f"{what}{when}", EXIT_RUN_FAILED, failed_rank)

    def _limit(self) -> str:
        """How long this rank has waited for others, and what to do now."""
        seconds = f"for {self._timeout_seconds:g} s"
        if self._is_starting:
            return f"{seconds} during start-up; raise parallel.timeout_seconds if that is too short, and start again"
        return f"{seconds} (parallel.timeout_seconds={self._timeout_seconds:g}); continue with --resume"

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


def _is_done_within(work: Any, seconds: float) -> bool:
    """Raises a RuntimeError if the collective has failed."""
    try:
        work.wait(max(timedelta(seconds=seconds), SHORTEST))
    except RuntimeError:
        if not work.is_completed():
            return False  # not within this time
        work.wait()  # has failed and says why, or has ended just now
    return True


def _quietly(function: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the store is unreachable
        function()


def join_group(placement: Placement, timeout_seconds: float, rendezvous: str | None = None) -> GlooRanks:
    """Joins the other ranks: through the file `rendezvous` on one machine, else by the launcher's variables."""
    join_timeout, start, have_met = _start_timeout(timeout_seconds), time.monotonic(), False

    def not_reached() -> str:
        return _not_reached(placement, rendezvous, start, have_met)

    with _watchdog(join_timeout + START_GRACE_SECONDS, not_reached):
        try:
            store = _store(placement, join_timeout, rendezvous)
            _wait_for_all(placement, store, join_timeout)
            have_met = True
            distributed.init_process_group(
                "gloo", store=store, rank=placement.rank, world_size=placement.world_size, timeout=NEVER
            )
        except (RuntimeError, TimeoutError) as error:
            reason = next((line for line in str(error).splitlines() if line), "time-out")
            if "EADDRINUSE" in reason:
                raise UserError(
                    f"rank 0 cannot listen at {_meeting_point(rendezvous)}: another process of this machine uses the "
                    "port, perhaps a second one with RANK=0; set MASTER_PORT (or cluster.master_port) to a free one on "
                    "all ranks",
                    EXIT_RUN_FAILED,
                ) from None
            raise LostRankError(f"{not_reached()} ({reason})", EXIT_TIMEOUT, None) from None
    own = distributed.PrefixStore("rlcluster", store)  # type: ignore[attr-defined]
    return GlooRanks(placement, own, timeout_seconds)


def _start_timeout(timeout_seconds: float) -> float:
    return max(timeout_seconds, MIN_START_SECONDS)


def _not_reached(placement: Placement, rendezvous: str | None, start: float, have_met: bool) -> str:
    """What a rank says that could not join, after the time it has really tried. Ranks meet at the address of rank 0;
    gloo then connects them through the interface that each was given.
    """
    who, where = f"rank {placement.rank} of {placement.world_size}", _meeting_point(rendezvous)
    seconds = round(time.monotonic() - start)
    tried = f" in {seconds} s" if seconds else ""
    if have_met:
        return (
            f"{who} met the others at {where} but cannot connect to them through {INTERFACE_VARIABLE}="
            f"{os.environ.get(INTERFACE_VARIABLE)}{tried}; set it, on every machine, to the interface of the network "
            "that joins them"
        )
    return (
        f"{who} did not reach the others at {where}{tried}; check that all ranks were started and that all machines "
        "use this address and can reach it"
    )


def _meeting_point(rendezvous: str | None) -> str:
    return rendezvous or f"MASTER_ADDR={os.environ.get('MASTER_ADDR')} MASTER_PORT={os.environ.get('MASTER_PORT')}"


def _store(placement: Placement, join_timeout: float, rendezvous: str | None) -> Any:
    """A launcher may keep one store across restarts: the prefix hides what an earlier attempt left there."""
    if rendezvous is not None:
        store: Any = distributed.FileStore(rendezvous, placement.world_size)  # type: ignore[attr-defined]
        store.set_timeout(timedelta(seconds=join_timeout))
        return distributed.PrefixStore(f"attempt_{placement.restarts}", store)  # type: ignore[attr-defined]
    if placement.rank > 0:
        wait_for_port(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), join_timeout)
    if placement.is_under_torchrun:  # torchrun may keep the store itself
        store, _, _ = next(iter(distributed.rendezvous("env://", timeout=timedelta(seconds=join_timeout))))  # type: ignore[attr-defined]
    else:
        store = distributed.TCPStore(  # type: ignore[attr-defined]
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            placement.world_size,
            is_master=placement.rank == 0,
            timeout=timedelta(seconds=join_timeout),
            wait_for_workers=False,  # `_wait_for_all` can name those that are missing
        )
    store.set_timeout(timedelta(seconds=join_timeout))
    return distributed.PrefixStore(f"attempt_{placement.restarts}", store)  # type: ignore[attr-defined]


def _wait_for_all(placement: Placement, store: Any, join_timeout: float) -> None:
    """Waits for every rank before gloo connects them: they may start further apart than its time-out, and two with the
    same number would hang it. Until all have arrived, everyone refuses to start with a duplicate.
    """
    if store.add(f"arrived/{placement.rank}", 1) > 1:
        store.set("duplicate", str(placement.rank))
        raise _duplicate(placement.rank)
    if store.add("arrived", 1) == placement.world_size:
        store.set("complete", "1")
    if not wait_while_running(partial(_is_complete_within, placement, store), join_timeout):
        missing = [rank for rank in range(placement.world_size) if not store.check([f"arrived/{rank}"])]
        raise TimeoutError(f"not started, or cut off: rank {', '.join(map(str, missing))}")


def _is_complete_within(placement: Placement, store: Any, seconds: float) -> bool:
    """Asks instead of waiting: the store logs every wait that is not answered."""
    if store.check(["duplicate"]):
        if placement.rank == 0:
            time.sleep(DIAGNOSIS_SECONDS)  # it holds the store, in which the others are about to look
        raise _duplicate(int(store.get("duplicate")))
    if store.check(["complete"]):
        return True
    time.sleep(min(seconds, ASK_SECONDS))
    return False


def _duplicate(rank: int) -> LostRankError:
    message = f"two processes have RANK={rank}; give each process of the launch command its own"
    return LostRankError(message, EXIT_USAGE, rank)


@contextlib.contextmanager
def _watchdog(seconds: float, message: Callable[[], str]) -> Iterator[None]:
    """Exits this process if the block does not end: a rank that resolves its own name to loopback waits for ever."""
    has_ended = threading.Event()

    def watch() -> None:
        if not wait_while_running(has_ended.wait, seconds):
            _exit_with_timeout(message())

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        has_ended.set()


def _exit_with_timeout(message: str) -> None:
    say(f"rlcluster: error: {message}", stream=sys.stderr)
    os._exit(EXIT_TIMEOUT)


def to_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
