"""The clock of phases: nesting, amounts, and nothing while it is off."""

from __future__ import annotations

import pytest

from rlcluster.system.clock import PhaseTimer
from rlcluster.system.phases import NOTHING, PhaseClock, clock


def test_nothing_is_recorded_while_it_is_off() -> None:
    assert PhaseClock()("rollout") is NOTHING


def test_phases_nest_and_are_recorded_at_their_end_with_what_they_processed() -> None:
    own = PhaseClock()
    own.start()
    with own("rollout"):
        with own("simulator", 8):
            pass
        with own("simulator", 8):
            pass
    with own("simulator", 1):
        pass
    recording = own.stop()
    assert [recording.paths[k] for k in recording.numbers] == [
        ("rollout", "simulator"),
        ("rollout", "simulator"),
        ("rollout",),
        ("simulator",),
    ]
    assert list(recording.amounts) == [8, 8, 0, 1]
    assert recording.begin <= recording.starts[2] <= recording.starts[0] <= recording.ends[0] <= recording.ends[2]
    assert recording.ends[3] <= recording.end
    assert own("rollout") is NOTHING


def test_a_phase_that_raises_is_closed() -> None:
    own = PhaseClock()
    own.start()
    with pytest.raises(ValueError, match="wrong"), own("rollout"), own("act"):
        raise ValueError("wrong")
    with own("learn"):
        pass
    assert own.stop().paths[1:] == [("rollout",), ("rollout", "act"), ("learn",)]


def test_a_name_that_is_not_in_the_table_is_refused() -> None:
    own = PhaseClock()
    own.start()
    with pytest.raises(KeyError, match="lunch: no such phase"):
        own("lunch")


def test_the_timer_of_the_log_records_its_phases_too() -> None:
    timer = PhaseTimer()
    clock.start()
    with timer("learn"), timer("sync"):
        pass
    assert clock.stop().paths[1:] == [("learn",), ("learn", "sync")]
