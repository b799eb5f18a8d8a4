"""The race of `rlcluster tune` on a simulated machine: runs whose speeds, starts and stops are given, by a clock of its
own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlcluster.experiments import tuning
from rlcluster.experiments.candidates import Candidate
from rlcluster.experiments.tuning import Race, Result, TuneRequest
from rlcluster.experiments.turns import Interrupted
from rlcluster.flags import flag_names
from rlcluster.settings.loading import load_settings
from rlcluster.settings.schema import Settings, setting_fields
from rlcluster.system.signals import StopRequest


class Machine:
    """Each candidate's chunk size is its number here."""

    def __init__(self, rates: Mapping[int, Sequence[float]], start: float = 1.0, turn: float = 1.0) -> None:
        """`rates` are those of the turns that count; the last one repeats. Seconds for a start and a turn."""
        self.rates, self.start_seconds, self.turn_seconds, self.stop_seconds = rates, start, turn, 0.0
        self.slow_after = float("inf")  # from this time on, turns take four times as long
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def seconds_of(self, turn: int) -> float:
        """Of a run's turn; the first one is its start."""
        if turn == 0:
            return self.start_seconds
        return self.turn_seconds * (4 if self.now >= self.slow_after else 1)


class StubRun:
    """Stands for a PausedRun."""

    def __init__(self, machine: Machine, number: int) -> None:
        self._machine, self._rates, self._turns, self._is_open = machine, machine.rates[number], 0, True
        self.turn_seconds = 0.0

    def turn(self, deadline: float) -> float:
        machine = self._machine
        self.turn_seconds = machine.seconds_of(self._turns)
        if machine.now + self.turn_seconds > deadline:
            machine.now = deadline
            raise Interrupted
        machine.now += self.turn_seconds
        self._turns += 1
        return self._rates[min(max(0, self._turns - 2), len(self._rates) - 1)]

    def close(self) -> None:
        self._machine.now += self._machine.stop_seconds * self._is_open
        self._is_open = False


def candidate(number: int) -> Candidate:
    flags = {"mode": "sequential", "hardware.num_threads": "1", "hardware.chunk_size": str(number)}
    return Candidate(f"candidate {number}", flags)


@pytest.fixture
def race_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A race on a simulated machine."""
    with StopRequest() as stop:

        def begin(machine: Machine, seconds: float, start: float = 0.0) -> Race:
            def run(_path: Path, settings: Settings, *_: object) -> StubRun:
                return StubRun(machine, settings.hardware.chunk_size or 0)

            monkeypatch.setattr(tuning, "LocalProcesses", lambda _: None)
            monkeypatch.setattr(tuning, "PausedRun", run)
            monkeypatch.setattr(tuning, "time", machine)
            names = {field.key: flag_names(field)[0] for field in setting_fields()}
            request = TuneRequest(
                algorithm="ppo",
                config=None,
                flags={},
                flag_names=names,
                minutes=seconds / 60,
                start=start,
                allow_algorithm_changes=False,
                output=tmp_path / "tuned.yaml",
                json=None,
            )
            return Race(request, load_settings("ppo", "parallel"), tmp_path, stop)

        yield begin


def row(race: Race, number: int) -> list[float]:
    """Its rates in the table; none if it has no row."""
    return next((one.rates for one in race.results if one.candidate == candidate(number)), [])


def test_the_best_is_replaced_after_whole_rounds_of_both(race_on: Any) -> None:
    race = race_on(Machine({1: [100.0], 2: [150.0]}), 100)
    best = Result(candidate(1), [99.0, 98.0, 97.0])
    found = race.refine(best, [candidate(2)])
    assert found.candidate == candidate(2)
    assert len(found.rates) > tuning.ROUNDS_PER_HALVING


def test_a_variant_with_a_single_update_does_not_win_and_the_best_keeps_its_earlier_row(race_on: Any) -> None:
    # Two starts of 1 s, two first updates of 1 s and four rounds take 12 s; the best and the variant start until 16 s.
    # The whole rounds would take 4 s more, but the machine becomes slow.
    machine = Machine({1: [100.0, 101.0, 102.0, 103.0, 104.0, 90.0], 2: [50.0], 3: [1000.0]})
    machine.slow_after = 16.0
    race = race_on(machine, 20)
    best = race.run([candidate(1), candidate(2)])
    earlier = list(best.rates)
    assert len(earlier) == 1 + tuning.FINAL_ROUNDS
    found = race.refine(best, [candidate(3)])
    assert (found.candidate, found.rates) == (candidate(1), earlier)
    assert row(race, 1) == earlier
    assert race.undecided == ["candidate 3"]


def test_the_best_that_was_restarted_alone_keeps_its_earlier_row(race_on: Any) -> None:
    machine = Machine({1: [100.0], 2: [50.0], 3: [1000.0]})
    machine.slow_after = 12.0
    race = race_on(machine, 20)
    best = race.run([candidate(1), candidate(2)])
    assert len(best.rates) == 1 + tuning.FINAL_ROUNDS
    assert race.refine(best, [candidate(3)]) == best
    assert len(row(race, 1)) == 1 + tuning.FINAL_ROUNDS


def test_every_halving_says_how_many_are_left_the_best_so_far_and_the_time_left(
    race_on: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    race = race_on(Machine({1: [1000.0], 2: [2000.0], 3: [3000.0], 4: [4000.0]}), 120)
    race.run([candidate(number) for number in (1, 2, 3, 4)])
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("starting")]
    assert lines == [  # 8 s of starts; then two rounds of four
        "4 candidates take turns; best so far: candidate 4, 4,000 steps/s; time left: 0:01:52",
        "2 candidates take turns; best so far: candidate 4, 4,000 steps/s; time left: 0:01:44",
    ]


def test_the_minutes_begin_with_the_command_not_with_the_race(race_on: Any) -> None:
    machine = Machine({1: [100.0], 2: [200.0]})
    machine.now = 4.0  # importing torch, say
    race_on(machine, 10, start=0.0).run([candidate(1), candidate(2)])
    assert machine.now == 10


def test_no_candidate_is_started_that_the_time_would_not_suffice_for(race_on: Any) -> None:
    machine = Machine({1: [100.0], 2: [200.0], 3: [300.0]}, start=5)
    race = race_on(machine, 14)  # a start with its first update takes 6 s
    assert race.run([candidate(1), candidate(2), candidate(3)]).candidate == candidate(2)
    assert race.untried == ["candidate 3"]
    assert machine.now == 14  # the rest was for a round of two


def test_no_variant_is_started_that_could_not_have_whole_rounds(race_on: Any) -> None:
    machine = Machine({number: [100.0 * number] for number in range(1, 6)})
    race = race_on(machine, 12 + 6 + 6)  # three starts of 2 s with their first updates, two rounds of three
    best = race.run([candidate(1), candidate(2)])
    assert machine.now == 12
    assert race.refine(best, [candidate(3), candidate(4), candidate(5)]).candidate == candidate(4)
    assert race.untried == ["candidate 5"]
    assert machine.now <= 24
    machine.now = 17.0  # less than two starts and their rounds: the best is not started again
    assert race.refine(best, [candidate(5)]) == best
    assert machine.now == 17


def test_the_time_that_runs_take_to_stop_is_reserved(race_on: Any) -> None:
    machine = Machine({number: [100.0 * number] for number in range(1, 5)})
    machine.stop_seconds = 2.0
    race = race_on(machine, 28)  # 8 s of starts, 8 s of rounds, 4 s to stop two, 4 s of rounds, 4 s to stop the others
    assert race.run([candidate(number) for number in range(1, 5)]).candidate == candidate(4)
    assert machine.now == 28
