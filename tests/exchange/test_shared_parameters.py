"""Parameters in shared memory: complete versions, in order, without a lock."""

from __future__ import annotations

import multiprocessing
import platform
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcluster.exchange.shared_parameters import (
    HogwildParameters,
    HogwildShape,
    SharedParameters,
    hogwild_file,
    parameters_file,
)
from rlcluster.system.errors import UserError

SIZE = 200_000
VERSIONS = 100  # that the reader is to see


@pytest.fixture
def path() -> Any:
    with parameters_file(SIZE) as file:
        yield file.path


def take_many(path: Path, taken: Any) -> None:
    """An actor that copies as fast as it can; reports the versions it saw, or the first torn one."""
    shared, own = SharedParameters(path, SIZE), torch.zeros(SIZE)
    versions = [0]
    while len(versions) <= VERSIONS:
        version = shared.take(own)
        if not bool((own == float(version)).all()):
            taken.send(f"version {version} holds {own.unique().tolist()}")
            return
        if version != versions[-1]:
            versions.append(version)
    taken.send(versions)


def test_a_reader_never_sees_a_torn_version(path: Path) -> None:
    """Every element of version v is v. They are written until the reader has seen enough."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    reader = context.Process(target=take_many, args=(path, sender))
    reader.start()
    shared = SharedParameters(path, SIZE)
    version = 0
    while not receiver.poll():
        assert reader.is_alive() or receiver.poll()
        version += 1
        shared.publish(torch.full((SIZE,), float(version)), version)
    result = receiver.recv()
    reader.join()
    assert isinstance(result, list), result
    assert result == sorted(result), "a version went back"
    assert result[-1] <= version


def test_the_version_is_0_before_the_first(path: Path) -> None:
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
            for newer in (2, 3):
                self._learner.publish(torch.full((SIZE,), float(newer)), newer)
        return version


def test_a_copy_that_was_overwritten_is_read_again(path: Path) -> None:
    learner = SharedParameters(path, SIZE)
    learner.publish(torch.full((SIZE,), 1.0), 1)
    own = torch.zeros(SIZE)
    assert Overtaken(path, learner).take(own) == 3
    assert (own == 3.0).all()


def test_only_the_two_newest_versions_can_be_read(path: Path) -> None:
    shared, own = SharedParameters(path, SIZE), torch.zeros(SIZE)
    for version in (5, 6):
        shared.publish(torch.full((SIZE,), float(version)), version)
    assert shared.take(own, 5) == 5
    assert (own == 5.0).all()
    assert shared.take(own, 6) == shared.take(own) == 6
    with pytest.raises(ValueError, match="version 4 is overwritten: 6 has begun"):
        shared.take(own, 4)


@pytest.mark.parametrize("processor", ["aarch64", "arm64", "riscv64", "ppc64le"])
def test_a_processor_that_may_reorder_stores_is_refused(
    processor: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: processor)
    with pytest.raises(UserError, match=rf"store order of x86-64.* {processor}; use --mode sequential$"):
        SharedParameters(path, SIZE)


@pytest.mark.parametrize("processor", ["x86_64", "AMD64"])
def test_x86_64_is_accepted_under_both_of_its_names(
    processor: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: processor)
    assert SharedParameters(path, SIZE).version == 0


def test_hogwild_parameters_need_no_store_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    shape = HogwildShape(SIZE, 2, ("square_avg",))
    with hogwild_file(shape) as file:
        assert HogwildParameters(file.path, shape).steps.tolist() == [0, 0]


def test_hogwild_parameters_and_the_optimisers_state_are_the_same_in_every_view() -> None:
    shape = HogwildShape(SIZE, 3, ("exp_avg", "exp_avg_sq"))
    with hogwild_file(shape) as file:
        one, other = HogwildParameters(file.path, shape), HogwildParameters(file.path, shape)
        one.parameters.fill_(1.0)
        one.optimizer_state["step"] += 7
        one.optimizer_state["exp_avg"].fill_(2.0)
        one.optimizer_state["exp_avg_sq"].fill_(3.0)
        one.steps[2] = 5
    assert other.steps.tolist() == [0, 0, 5]
    assert other.parameters.tolist() == [1.0] * SIZE
    assert {name: value.unique().tolist() for name, value in other.optimizer_state.items()} == {
        "step": [7.0],
        "exp_avg": [2.0],
        "exp_avg_sq": [3.0],
    }
