"""The phases of a process: what it does, and when. `clock` records them while it is on; otherwise a phase costs one
attribute check.

    with clock("simulator"):
        environments.step(actions)

Phases nest: a *path* is the names from the outermost to the innermost. A recording belongs to the thread that trains.
"""

from __future__ import annotations

import time
from array import array
from enum import StrEnum
from typing import NamedTuple, Self


class Kind(StrEnum):
    """Who works in a phase, its inner phases apart."""

    NATIVE = "native"  # our kernels
    TORCH = "torch"
    PYTHON = "Python"
    SIMULATOR = "simulator"
    SYNC = "sync"  # a collective: waiting for other ranks, and the exchange of data
    IDLE = "idle"  # waiting for another process


class Phase(NamedTuple):
    kind: Kind
    meaning: str
    is_container: bool = False  # its own time, outside its inner phases, has no name: it is what is not attributed


# Every phase that a process can be in.
PHASES: dict[str, Phase] = {
    "update": Phase(Kind.PYTHON, "one update", True),
    "rollout": Phase(Kind.PYTHON, "acting; with actors: waiting for their rollouts", True),
    "learn": Phase(Kind.PYTHON, "learning from the rollouts", True),
    "step": Phase(Kind.PYTHON, "one step of all environments; its own time: the loop over them"),
    "simulator": Phase(Kind.SIMULATOR, "the environments' step"),
    "copy": Phase(Kind.TORCH, "observations into the rollout; parameters from and to shared memory"),
    "act": Phase(Kind.TORCH, "the network's forward pass for acting and bootstrap values"),
    "sample": Phase(Kind.TORCH, "actions from logits, and their log-probabilities"),
    "episodes": Phase(Kind.PYTHON, "rewards, ends of episodes, random numbers"),
    "targets": Phase(Kind.TORCH, "rewards, advantages and returns"),
    "shuffle": Phase(Kind.TORCH, "the minibatches of an epoch"),
    "minibatch": Phase(Kind.TORCH, "one optimiser step; its own time: sums, gradients set to zero, memory given back"),
    "gather": Phase(Kind.TORCH, "the samples of a chunk"),
    "forward": Phase(Kind.TORCH, "the network's forward pass for learning"),
    "loss": Phase(Kind.TORCH, "the loss of a chunk, and its sums"),
    "backward": Phase(Kind.TORCH, "the backward pass; its own time: linear layers and loss"),
    "convolutions": Phase(Kind.NATIVE, "our kernels"),
    "torch convolutions": Phase(Kind.TORCH, "convolutions without our kernels"),
    "linear": Phase(Kind.TORCH, "linear layers, forward"),
    "optimiser": Phase(Kind.TORCH, "gradient norm, clipping and the optimiser's step"),
    "sync": Phase(Kind.SYNC, "a collective of all ranks"),
    "checks": Phase(Kind.PYTHON, "reports, hash of the parameters, memory, what all ranks agree on"),
    "commands": Phase(Kind.PYTHON, "commands to helpers, and their replies"),
    "log": Phase(Kind.PYTHON, "log and console"),
    "checkpoint": Phase(Kind.PYTHON, "checkpoints"),
    "wait": Phase(Kind.IDLE, "waiting for helpers; a helper: for its next command"),
}


class Recording:
    """The phases of one process since `begin`, in the order of their ends. Times are those of time.perf_counter."""

    def __init__(self) -> None:
        self.begin = time.perf_counter()
        self.end = self.begin
        self.paths: list[tuple[str, ...]] = [()]
        self.numbers = array("i")  # of each phase's path
        self.starts = array("d")
        self.ends = array("d")
        self.amounts = array("q")  # samples that it processed, 0 where that means nothing
        self._inner: list[dict[str, int]] = [{}]  # of each path: the paths below it, by name
        self._open: list[tuple[int, int, float]] = []  # path, amount, start

    def open(self, name: str, amount: int) -> Self:
        start = time.perf_counter()  # first, and the end is taken last: recording a phase is part of it
        inner = self._inner[self._open[-1][0] if self._open else 0]
        number = inner.get(name)
        if number is None:
            number = inner[name] = self._add(name)
        self._open.append((number, amount, start))
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        number, amount, start = self._open.pop()
        self.numbers.append(number)
        self.starts.append(start)
        self.amounts.append(amount)
        self.ends.append(time.perf_counter())

    def _add(self, name: str) -> int:
        if name not in PHASES:
            raise KeyError(f"{name}: no such phase; add it to PHASES")
        outer = self.paths[self._open[-1][0]] if self._open else ()
        self.paths.append((*outer, name))
        self._inner.append({})
        return len(self.paths) - 1


class _Nothing:
    """A phase while nothing is recorded."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


NOTHING = _Nothing()


class PhaseClock:
    """Records the phases of this process, while it is on."""

    def __init__(self) -> None:
        self._recording: Recording | None = None

    def __call__(self, name: str, amount: int = 0) -> Recording | _Nothing:
        """A context: the phase `name`, one of PHASES, in which `amount` samples are processed."""
        recording = self._recording
        return NOTHING if recording is None else recording.open(name, amount)

    def start(self) -> None:
        """No phase may be open."""
        self._recording = Recording()

    def stop(self) -> Recording:
        """Ends the recording, and returns it. No phase may be open."""
        recording, self._recording = self._recording, None
        assert recording is not None, "start comes first"
        recording.end = time.perf_counter()
        return recording


clock = PhaseClock()  # of this process
