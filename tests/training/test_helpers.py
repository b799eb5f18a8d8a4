"""Processes that execute commands: replies, memory, silence and bugs of real ones."""

from __future__ import annotations

import multiprocessing
import time
from contextlib import closing
from typing import Any

import pytest

from rlcluster.system import machine
from rlcluster.system.processes import RankFailedError
from rlcluster.system.signals import StopRequest
from rlcluster.training.helpers import Helpers, serve


def double(number: int, stop: StopRequest, setup: int, pipe: Any) -> None:
    """Answers with twice the command and its setup; 0 makes it hang, a negative one is a bug."""

    def handle(command: int) -> tuple[int, int]:
        if command == 0:
            time.sleep(1000)
        if command < 0:
            raise ValueError(f"{command} is negative")
        return 2 * command, setup

    serve(pipe, stop, handle)


def test_each_answers_its_own_orders_and_its_memory_counts() -> None:
    with closing(Helpers("helper", double, [10, 20], timeout=60)) as helpers:
        for number in range(2):
            helpers.send(number, number + 1)
        replies = []
        while helpers.num_open:
            replies += helpers.replies()
        assert sorted(replies) == [(0, (2, 10)), (1, (4, 20))]
        assert helpers.memory().memory_gb > machine.memory().memory_gb + 2 * 0.005  # an interpreter each, at least


def test_one_that_does_not_reply_is_named_while_the_other_replies() -> None:
    with closing(Helpers("helper", double, [0, 0], timeout=5)) as helpers:
        helpers.send(1, 0)
        with pytest.raises(RankFailedError, match=r"helper 1 failed: it did not answer for parallel.timeout_seconds=5"):
            while True:
                helpers.send(0, 1)
                helpers.replies()


def late(number: int, stop: StopRequest, setup: float, pipe: Any) -> None:
    time.sleep(setup)  # as making thousands of environments
    serve(pipe, stop, lambda command: command)


@pytest.mark.slow
def test_one_that_takes_longer_than_the_time_out_to_be_ready_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlcluster.system.heartbeat.START_SECONDS", 0.0)
    with closing(Helpers("helper", late, [12.0], timeout=10)) as helpers:
        helpers.send(0, 5)
        assert helpers.replies() == [(0, 5)]


def test_a_bug_is_reported_with_its_traceback_and_in_one_line() -> None:
    with closing(Helpers("helper", double, [0], timeout=60)) as helpers:
        helpers.send(0, -5)
        with pytest.raises(RankFailedError, match=r"(?s)helper 0 failed:.*Traceback.*-5 is negative") as error:
            helpers.replies()
    assert error.value.reason == "helper 0 failed: ValueError: -5 is negative"
    assert error.value.failed_rank is None  # a helper is no rank


@pytest.mark.parametrize("dies", ["before the first command", "during a command"])
def test_a_helper_whose_leader_has_died_exits_silently(dies: str) -> None:
    """It is killed a moment later; what it would print until then explains nothing."""
    leader, helper = multiprocessing.Pipe()
    leader.send("a command")
    if dies == "before the first command":
        leader.close()
    serve(helper, StopRequest(), lambda command: leader.close())
    assert leader.closed
