"""The machines of a run: the first is kept, those it was resumed on are added, and readers are warned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlcluster.runs.reader import read_run
from rlcluster.runs.writer import RunDirectory
from rlcluster.settings.loading import load_settings
from rlcluster.settings.schema import Settings

from conftest import write_run

FIRST = {"cpu_model": "a processor", "cores_allowed": 2, "num_threads": 2, "versions": {"torch": "2"}}
SECOND = {**FIRST, "cpu_model": "another", "cores_allowed": 8, "num_threads": 8}
REWARDS: list[float | None] = [1.0] * 20


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(flags={"env.name": "CartPole-v1", "output.output_dir": str(tmp_path / "run")})


def part(settings: Settings, facts: dict[str, Any], saved_at: int | None, is_first: bool = False) -> Any:
    """A part of a run on a machine, with a checkpoint at its end or none; what machine.json holds then."""
    with RunDirectory.create(settings) if is_first else RunDirectory.resume(settings) as run:
        run.write_machine_facts(facts)
        if saved_at is not None:
            counters = {"updates": saved_at, "steps_global": 10 * saved_at}
            run.save({"settings": settings.to_yaml(), "learner": counters})
    return json.loads((run.path / "machine.json").read_text())


def test_the_first_machine_is_kept_and_another_is_added(settings: Settings) -> None:
    part(settings, FIRST, saved_at=5, is_first=True)
    assert part(settings, SECOND, saved_at=9) == {**FIRST, "resumed_on": [{"from_update": 5, **SECOND}]}
    later = [{"from_update": 5, **SECOND}, {"from_update": 9, **FIRST}]
    assert part(settings, FIRST, saved_at=None) == {**FIRST, "resumed_on": later}


def test_the_same_machine_is_not_added_again(settings: Settings) -> None:
    part(settings, FIRST, saved_at=5, is_first=True)
    assert part(settings, FIRST, saved_at=9) == FIRST
    once = {**FIRST, "resumed_on": [{"from_update": 9, **SECOND}]}
    assert part(settings, SECOND, saved_at=12) == part(settings, SECOND, saved_at=15) == once


def test_a_machine_of_which_no_update_is_kept_is_dropped(settings: Settings) -> None:
    part(settings, FIRST, saved_at=5, is_first=True)
    part(settings, SECOND, saved_at=None)  # killed before its first checkpoint
    assert part(settings, FIRST, saved_at=9) == FIRST


def test_a_run_that_begins_again_is_of_its_last_machine_alone(settings: Settings) -> None:
    part(settings, FIRST, saved_at=None, is_first=True)
    with RunDirectory.restart(settings, restarts=1) as run:
        run.write_machine_facts(SECOND)
    assert json.loads((run.path / "machine.json").read_text()) == SECOND


@pytest.mark.parametrize("content", ["", "[]", '{"resumed_on": 3}', '{"resumed_on": [3, {"cpu_model": "x"}]}'])
def test_a_run_whose_facts_are_not_readable_is_resumed(settings: Settings, content: str) -> None:
    part(settings, FIRST, saved_at=5, is_first=True)
    (Path(str(settings.output.output_dir)) / "machine.json").write_text(content)
    facts = part(settings, SECOND, saved_at=9)
    assert facts == SECOND or facts["resumed_on"] == [{"from_update": 5, **SECOND}]


def test_a_reader_is_warned_of_another_processor_and_counts_the_cores_of_the_last_part(tmp_path: Path) -> None:
    machine = {**FIRST, "resumed_on": [{"from_update": 5, **SECOND}]}
    run = read_run(write_run(tmp_path / "run", {}, REWARDS, machine=machine, summary=None))
    assert run.machine == FIRST
    assert run.cores == 8
    assert list(run.warnings) == [
        "it was resumed on another machine at update 5, so its speeds are of two: a processor, 2 cores allowed, then "
        "another, 8 cores allowed"
    ]


def test_another_version_on_the_same_machine_is_no_other_machine(tmp_path: Path) -> None:
    later = {"from_update": 5, **FIRST, "versions": {"torch": "3"}}
    run = read_run(write_run(tmp_path / "run", {}, REWARDS, machine={**FIRST, "resumed_on": [later]}))
    assert list(run.warnings) == []
    assert [machine["versions"]["torch"] for machine in run.machines] == ["2", "3"]
