"""Parameters that go to other processes: whole versions, in order, without a lock."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcluster.shared_parameters import SharedParameters, reserve_parameters

SIZE = 200_000
VERSIONS = 400


@pytest.fixture
def path() -> Any:
    path = reserve_parameters(SIZE)
    yield path
    path.unlink()


def take_until_the_last(path: Path, taken: Any) -> None:
    """An actor that copies as fast as it can; reports how many versions it saw, or the first torn one."""
    shared, own = SharedParameters(path, SIZE), torch.zeros(SIZE)
    versions, version = [], 0
    while version < VERSIONS:
        version = shared.take(own)
        if not bool((own == float(version)).all()):
            taken.send(f"version {version} holds {own.unique().tolist()}")
            return
        versions.append(version)
    taken.send(sorted(set(versions)) if versions == sorted(versions) else "a version went back")


def test_a_reader_never_sees_half_a_version_while_the_writer_writes(path: Path) -> None:
    """Version v holds v in every place."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    reader = context.Process(target=take_until_the_last, args=(path, sender))
    reader.start()
    shared = SharedParameters(path, SIZE)
    for version in range(1, VERSIONS + 1):
        assert shared.publish(torch.full((SIZE,), float(version))) == version
    assert receiver.poll(60)
    result = receiver.recv()
    reader.join()
    assert isinstance(result, list), result
    assert result[-1] == VERSIONS


def test_before_the_first_version_there_is_version_0(path: Path) -> None:
    shared = SharedParameters(path, SIZE)
    own = torch.ones(SIZE)
    assert shared.version == 0
    assert shared.take(own) == 0
    assert not own.any()


class Overtaken(SharedParameters):
    """A learner that publishes two more versions while an actor is copying."""

    def __init__(self, path: Path, learner: SharedParameters) -> None:
        super().__init__(path, SIZE)
        self._learner, self._asked = learner, 0

    @property
    def version(self) -> int:
        version = super().version
        self._asked += 1
        if self._asked == 1:
            for _ in range(2):
                self._learner.publish(torch.full((SIZE,), float(self._learner.version + 1)))
        return version


def test_a_copy_that_was_overtaken_is_taken_anew(path: Path) -> None:
    learner = SharedParameters(path, SIZE)
    learner.publish(torch.full((SIZE,), 1.0))
    own = torch.zeros(SIZE)
    assert Overtaken(path, learner).take(own) == 3
    assert (own == 3.0).all()
