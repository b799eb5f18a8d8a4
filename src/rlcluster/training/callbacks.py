"""Callbacks: code of the user's that is told how a run proceeds, and that may end it.

They are called in the process that called `train` (under a launcher: on rank 0), one after another. All ranks wait for
them, however long they take. They get copies: only by returning "stop" can one change the run, which then ends as at
the end of its budget.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from rlcluster.system.errors import EXIT_RUN_FAILED, ReportedError, UserError, reason_of
from rlcluster.system.import_path import load_object

if TYPE_CHECKING:
    from rlcluster.exchange.ranks import Ranks

EventName = Literal["on_start", "on_update", "on_checkpoint", "on_end"]
EVENTS: tuple[EventName, ...] = ("on_start", "on_update", "on_checkpoint", "on_end")
STOP = "stop"


class Callback:
    """What a callback may define; each method may be left out."""

    def on_start(self, run: Path, settings: Mapping[str, Any]) -> None:
        """The run begins, or continues after `--resume` or a restart. `settings` are as in its config.yaml."""

    def on_update(self, record: dict[str, Any]) -> str | None:
        """After each update, with its line of metrics.jsonl. Returning "stop" ends the run."""

    def on_checkpoint(self, path: Path) -> None:
        """A checkpoint has been written, also the one of the best evaluation (`*_best.pt`)."""

    def on_end(self, summary: dict[str, Any]) -> None:
        """The run is over: its budget is spent, or a signal or a callback has ended it. Not after a failure."""


class Listener(Protocol):
    """What the training loop tells about a run."""

    @property
    def is_asked(self) -> bool:
        """True if rank 0 has callbacks: then all ranks wait for their answers."""

    def tell(self, event: EventName, *arguments: Any) -> bool:
        """Calls the callbacks; returns True if one asks to stop."""


class Callbacks:
    """Callbacks in this process."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        for callback in callbacks:
            if not any(callable(getattr(callback, event, None)) for event in EVENTS):
                raise UserError(f"callback {callback!r}: defines none of {', '.join(EVENTS)}")
        self._callbacks = tuple(callbacks)

    @property
    def is_asked(self) -> bool:
        return bool(self._callbacks)

    def tell(self, event: EventName, *arguments: Any) -> bool:
        answers = [self._call(callback, event, arguments) for callback in self._callbacks]
        return STOP in answers

    def _call(self, callback: Any, event: EventName, arguments: Sequence[Any]) -> str | None:
        method = getattr(callback, event, None)
        answer: str | None = method(*copy.deepcopy(arguments)) if method is not None else None
        if answer is not None and (event, answer) != ("on_update", STOP):
            allowed = f'None or "{STOP}"' if event == "on_update" else "None"
            name = f"{type(callback).__name__}.{event}"
            raise UserError(f"callback {name} returned {answer!r}; it should return {allowed}", EXIT_RUN_FAILED)
        return answer


class RemoteCallbacks:
    """Rank 0's side of callbacks that the parent process calls."""

    is_asked = True

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    def tell(self, event: EventName, *arguments: Any) -> bool:
        self._pipe.send((event, arguments))
        reply: Reply = self._pipe.recv()
        if reply.failure is not None:
            raise ReportedError(reply.failure)
        return reply.wants_stop


class AwaitedCallbacks:
    """Callbacks of rank 0, for which the other ranks wait as long as they take."""

    is_asked = True

    def __init__(self, callbacks: Listener, ranks: Ranks) -> None:
        self._callbacks, self._ranks = callbacks, ranks

    def tell(self, event: EventName, *arguments: Any) -> bool:
        with self._ranks.occupied():
            return self._callbacks.tell(event, *arguments)


def awaited(callbacks: Listener, ranks: Ranks) -> Listener:
    return AwaitedCallbacks(callbacks, ranks) if callbacks.is_asked and ranks.rank == 0 else callbacks


class Reply(NamedTuple):
    """To one event."""

    wants_stop: bool = False
    failure: str | None = None  # a callback has raised; this is the reason


class Answers:
    """The parent's side: calls the callbacks for the one event that has arrived. What one raises ends rank 0, which
    closes the run as if the callback were its own; the error itself stays here.
    """

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self.error: BaseException | None = None

    def __call__(self, pipe: Any) -> None:
        with contextlib.suppress(EOFError, ConnectionError):  # rank 0 has died; its outcome says how
            event, arguments = pipe.recv()
            pipe.send(self._reply(event, arguments))

    def _reply(self, event: EventName, arguments: Sequence[Any]) -> Reply:
        try:
            return Reply(self._callbacks.tell(event, *arguments))
        except BaseException as error:  # noqa: BLE001 - also SystemExit; raised again once the ranks have ended
            self.error = error
            return Reply(failure=reason_of(error))


class Silent:
    """No callbacks in this process; `is_asked` if rank 0 has some."""

    def __init__(self, is_asked: bool = False) -> None:
        self.is_asked = is_asked

    def tell(self, event: EventName, *arguments: Any) -> bool:
        del event, arguments
        return False


def load_callbacks(paths: Sequence[str]) -> list[Any]:
    """Those of `output.callbacks`. A class is instantiated."""
    found = [load_object(path, "output.callbacks") for path in paths]
    return [one() if isinstance(one, type) else one for one in found]
