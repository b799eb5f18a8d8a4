"""What ranks do together: sums, rows and flags over all of them. With one rank each is the identity.

Loops, learner and actor speak to `Ranks` only, so they are the same code for one process and for many.
"""

from __future__ import annotations

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
        """The rows [K, ...] of all ranks, one below the other."""
        return rows

    def any(self, flag: bool) -> bool:
        """True on every rank if it is true on one."""
        return flag
