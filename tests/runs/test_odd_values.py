"""Whatever the JSON files of a run hold, whoever reads them gets a run or a refusal in one line: never a traceback."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlcluster.cli import main
from rlcluster.plan import forecast
from rlcluster.runs.machines import record_machine
from rlcluster.runs.plan_file import write_plan
from rlcluster.runs.reader import read_run
from rlcluster.settings.loading import load_settings
from rlcluster.system.cores import Core, Cores
from rlcluster.system.errors import UserError

from conftest import evaluation_of, write_run

FILES = ("plan.json", "run_state.json", "machine.json", "benchmark_metrics.json", "evaluation.json")
TOO_LARGE = 1e999  # JSON has no infinity, but this number
ODD = [None, "7", [], {}, -1, 1.5, TOO_LARGE]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """With a machine that it was resumed on, and a plan that has actors."""
    first, later = {"cpu_model": "a processor", "cores_allowed": 2, "memory_total_gb": 7.5}, {"from_update": 2}
    machine = {**first, "resumed_on": [{**later, **first, "cores_allowed": 4}]}
    path = write_run(tmp_path / "run", {"algorithm": "impala", "mode": "parallel"}, [1.0, 2.0], machine=machine)
    (path / "evaluation.json").write_text(json.dumps(evaluation_of(7.0, 8.5, steps=2_000)))
    flags = {"parallel.num_workers": 2, "hardware.num_threads": 2}
    plan = forecast(load_settings("impala", "parallel", flags=flags), Cores(4, tuple(Core(k, k) for k in range(4))))
    assert plan is not None
    write_plan(path, plan)
    return path


def places(value: Any, *outer: str | int) -> Iterator[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*outer, key)
        yield from places(one, *outer, key)


def with_odd_values(content: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The text of the file, each time with another odd value in another place."""
    for place in places(content):
        for odd in ODD:
            changed = copy.deepcopy(content)
            part = changed
            for key in place[:-1]:
                part = part[key]
            part[place[-1]] = odd
            yield place, json.dumps(changed).replace("Infinity", "1e999")


def read_by_everyone(run: Path) -> None:
    record_machine(run, {"cpu_model": "another"}, 5)
    assert main(["watch", str(run), "--once"]) in (0, 2)
    assert main(["status", str(run)]) in (0, 1)
    read_run(run)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_an_odd_value_in_a_file_of_a_run_is_never_a_traceback(
    name: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = {file: (run / file).read_text() for file in FILES}
    for place, text in with_odd_values(json.loads(others[name])):
        for file, content in others.items():
            (run / file).write_text(text if file == name else content)
        try:
            read_by_everyone(run)
        except UserError as error:
            assert str(error).isprintable()
        except Exception as error:  # noqa: BLE001 - which is the finding
            pytest.fail(f"{place} in {text}: {type(error).__name__}: {error}")
    capsys.readouterr()
