"""What ranks do together: sums, rows, bytes and flags over all of them. With one rank each is the identity.

Loops, learner and actor speak to `Ranks` only, so they are the same code for one process and for many. Only tensors
cross between processes, never pickled objects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import timedelta

import torch
from torch import Tensor


class Ranks:
    """One rank: this process alone."""

    rank = 0
    world_size = 1

    def share_of(self, count: int) -> range:
        """The part of 0..count-1 that this rank owns: contiguous, and as even as possible."""
        return range(self.rank * count // self.world_size, (self.rank + 1) * count // self.world_size)

    def sum_(self, values: Tensor) -> Tensor:
        """The sum over ranks, in place."""
        return values

    def gather_rows(self, rows: Tensor) -> Tensor:
        """The rows [K, ...] of all ranks, one below the other, in the order of the ranks."""
        return rows

    def largest(self, value: int) -> int:
        """The largest value of all ranks."""
        return value

    def any(self, flag: bool) -> bool:
        """True on every rank if it is true on one."""
        return bool(self.largest(int(flag)))

    def first(self, value: float) -> float:
        """The value of rank 0, on every rank."""
        return float(self.sum_(torch.tensor([value if self.rank == 0 else 0.0], dtype=torch.float64)))

    def broadcast(self, content: bytes | None) -> bytes:
        """What rank 0 has, on every rank."""
        assert content is not None
        return content

    def gather_bytes(self, parts: Sequence[bytes]) -> list[bytes]:
        """The parts of all ranks, in the order of the ranks."""
        lengths = self.gather_rows(torch.tensor([len(part) for part in parts], dtype=torch.int64))
        whole = self.gather_rows(to_tensor(b"".join(parts))).numpy().tobytes()
        ends = lengths.cumsum(0).tolist()
        return [whole[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]

    def agree_on(self, values: Tensor) -> bool:
        """True if all ranks hold the same bits."""
        digest = hashlib.blake2b(values.detach().numpy().tobytes(), digest_size=32).digest()
        digests = self.gather_rows(to_tensor(digest)).view(self.world_size, -1)
        return bool((digests == digests[0]).all())


class GlooRanks(Ranks):
    """This process and its fellows, through torch.distributed. The group exists while this is open."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size

    def sum_(self, values: Tensor) -> Tensor:
        torch.distributed.all_reduce(values)
        return values

    def gather_rows(self, rows: Tensor) -> Tensor:
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        torch.distributed.all_gather(counts, torch.tensor([len(rows)]))
        longest = max(int(count) for count in counts)
        padded = torch.zeros(longest, *rows.shape[1:], dtype=rows.dtype)
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        if longest:
            torch.distributed.all_gather(parts, padded)
        return torch.cat([part[: int(count)] for part, count in zip(parts, counts, strict=True)])

    def largest(self, value: int) -> int:
        values = torch.tensor([value])
        torch.distributed.all_reduce(values, torch.distributed.ReduceOp.MAX)
        return int(values)

    def broadcast(self, content: bytes | None) -> bytes:
        length = torch.tensor([0 if content is None else len(content)])
        torch.distributed.broadcast(length, 0)
        if not int(length):
            return b""
        values = to_tensor(content) if content is not None else torch.empty(int(length), dtype=torch.uint8)
        torch.distributed.broadcast(values, 0)
        return values.numpy().tobytes()


def join_group(rank: int, world_size: int, timeout_seconds: float, rendezvous: str | None) -> GlooRanks:
    """Meets the other ranks: in the file `rendezvous` on one machine, else by the launcher's variables."""
    timeout = timedelta(seconds=timeout_seconds)
    if rendezvous is None:
        torch.distributed.init_process_group("gloo", timeout=timeout)
    else:
        store = torch.distributed.FileStore(rendezvous, world_size)  # type: ignore[attr-defined]
        torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
    return GlooRanks(rank, world_size)


def to_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
