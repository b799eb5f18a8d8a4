"""Thousands of environments take minutes to make: that is shown, can be stopped, and is no hang."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator
from typing import TypeVar

from rlcluster.system.console import say
from rlcluster.system.heartbeat import CALLS
from rlcluster.system.signals import refuse_if_stopped

PROGRESS_SECONDS = 2.0

Thing = TypeVar("Thing")


def with_progress(things: Collection[Thing], done: str = "made", seconds: float = PROGRESS_SECONDS) -> Iterator[Thing]:
    """Yields what one environment each is made from. Every few `seconds` it says for how many that is `done`, and
    raises a StoppedError if a signal has arrived: a shorter wait is left to the loop, which saves.
    """
    said = time.monotonic()
    for count, thing in enumerate(things):
        if time.monotonic() - said >= seconds:
            refuse_if_stopped()
            say(f"{done} {count:,} of {len(things):,} environments", stream=sys.stderr)
            said = time.monotonic()
        CALLS.advance()
        yield thing
