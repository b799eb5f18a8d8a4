"""A rank that a launcher has started watches its own calls into environments: no parent of ours hears its heartbeats,
and where all ranks hang, none waits for another.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rlcluster.runs.status import record_own_failure
from rlcluster.settings.schema import Settings
from rlcluster.system.console import say
from rlcluster.system.errors import EXIT_TIMEOUT, UserError
from rlcluster.system.heartbeat import watched_calls
from rlcluster.system.launcher import Placement


@contextmanager
def hangs_end(settings: Settings, placement: Placement) -> Iterator[None]:
    """Ends this process if an environment of a launched rank hangs. Spawned ranks are watched by their parent."""
    if not placement.host:
        yield
        return
    run = Path(settings.output.output_dir) if settings.output.output_dir is not None and placement.rank == 0 else None
    with watched_calls(settings.parallel.timeout_seconds, partial(_end, placement.rank, run)):
        yield


def _end(rank: int, run: Path | None, reason: str) -> None:
    """The main thread does not return from the environment, so this thread says what has happened."""
    say(f"rlcluster: error: rank {rank}: {reason}", stream=sys.stderr)
    if run is not None:
        with contextlib.suppress(OSError, UserError):  # the exit code tells
            record_own_failure(run, reason, rank)
    os._exit(EXIT_TIMEOUT)
