"""Cells of a suite side by side: each lane has cores of its own, on which it runs one cell after the other."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from rlcluster.system.cores import Core, Cores
from rlcluster.system.errors import UserError

POLL_SECONDS = 0.2

Item = TypeVar("Item")


def partition_cores(own: Cores, num_jobs: int) -> list[Cores]:
    """The cores of each lane: whole physical cores, as equal as possible. One lane keeps them all."""
    if num_jobs == 1:
        return [own]
    physical: dict[int, list[Core]] = {}
    for core in own.affinity:
        physical.setdefault(core.first_sibling, []).append(core)
    usable = list(physical.values())[: own.physical]
    if num_jobs > len(usable):
        raise UserError(
            f"--jobs {num_jobs}: this process may use {len(usable)} physical cores, and each job needs one of its own; "
            f"use --jobs {len(usable)}"
        )
    lanes: list[Cores] = []
    for lane in range(num_jobs):
        chosen = usable[lane * len(usable) // num_jobs : (lane + 1) * len(usable) // num_jobs]
        flat = tuple(sorted((core for cores in chosen for core in cores), key=_first_threads_first))
        lanes.append(Cores(min(len(flat), own.allowed), flat))
    return lanes


def run_side_by_side(
    items: Sequence[Item], lanes: Sequence[Cores], work: Callable[[Item], None], on_wait: Callable[[], None]
) -> None:
    """Calls `work` for every item, in as many threads as there are lanes; `on_wait` in this one, while they work. The
    processes that a lane starts inherit its cores. An error in a lane ends the others after their present item.
    """
    pending: queue.SimpleQueue[Item] = queue.SimpleQueue()
    for item in items:
        pending.put(item)
    errors: list[BaseException] = []

    def serve(lane: Cores) -> None:
        if len(lanes) > 1:
            os.sched_setaffinity(0, lane.numbers)  # of this thread alone
        while not errors:
            try:
                work(pending.get_nowait())
            except queue.Empty:
                return
            except BaseException as error:  # noqa: BLE001 - raised below, in the thread that waits
                errors.append(error)

    threads = [threading.Thread(target=serve, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(POLL_SECONDS)
        on_wait()
    if errors:
        raise errors[0]


def _first_threads_first(core: Core) -> tuple[bool, int]:
    return core.first_sibling != core.number, core.number
