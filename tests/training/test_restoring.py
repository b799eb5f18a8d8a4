"""A checkpoint that a run cannot be restored from is refused before anything of the run is changed."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlcluster import environments
from rlcluster.environments.procgen import check_states
from rlcluster.runs.checkpoint import Checkpoint, CheckpointError, save_checkpoint
from rlcluster.runs.checkpoints import find_checkpoint
from rlcluster.settings.schema import EnvSettings
from rlcluster.system.errors import UserError
from rlcluster.training.restoring import refuse_unrestorable

from conftest import rlcluster

RECORDED = Path(__file__).parents[1] / "runs" / "recorded"
OPTIONAL = ("settings", "pending", "unlogged")  # the first is checked by its own reader


@pytest.fixture(scope="module", params=["ppo_cartpole", "impala_cartpole", "a3c_cartpole"])
def checkpoint(request: pytest.FixtureRequest) -> Checkpoint:
    return find_checkpoint(RECORDED / request.param)


def try_to_restore(checkpoint: Checkpoint, content: dict[str, Any]) -> None:
    settings = checkpoint.settings
    refuse_unrestorable(checkpoint._replace(content=content), settings, environments.describe(settings.env))


def places(content: dict[str, Any], *outer: str) -> Iterator[tuple[str, ...]]:
    """The keys of a checkpoint, with those inside."""
    for key, value in content.items():
        if (*outer, key)[0] not in OPTIONAL:
            yield (*outer, key)
            if isinstance(value, dict):
                yield from places(value, *outer, key)


def inside(content: dict[str, Any], place: tuple[str, ...]) -> dict[str, Any]:
    for key in place[:-1]:
        content = content[key]
    return content


def test_a_checkpoint_of_its_own_run_is_accepted(checkpoint: Checkpoint) -> None:
    try_to_restore(checkpoint, checkpoint.content)


def test_a_checkpoint_that_lacks_any_part_is_refused_in_one_line(checkpoint: Checkpoint) -> None:
    for place in places(checkpoint.content):
        content = copy.deepcopy(checkpoint.content)
        del inside(content, place)[place[-1]]
        with pytest.raises(CheckpointError, match="was written by another version of rlcluster") as caught:
            try_to_restore(checkpoint, content)
        assert str(caught.value).isprintable(), place
        assert not caught.value.is_damaged, place


def test_a_checkpoint_with_a_tensor_of_another_shape_is_refused(checkpoint: Checkpoint) -> None:
    for place in places(checkpoint.content):
        content = copy.deepcopy(checkpoint.content)
        part = inside(content, place)
        before = part[place[-1]]
        if not isinstance(before, torch.Tensor) or place == ("episodes", "rewards"):  # as many as there were
            continue
        for shape in {(1,), (3, 7)} - {tuple(before.shape)}:
            part[place[-1]] = torch.ones(shape, dtype=before.dtype)
            with pytest.raises(CheckpointError):
                try_to_restore(checkpoint, content)
                pytest.fail(str(place))


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"{",
        b"[]",
        b"[1, 2]",
        b'[{"array": [0, 0], "dtype": "float32", "scalar": false}, []]',
        b"\xff\xfe",
        b"null",
    ],
)
def test_a_damaged_simulator_of_gymnasium_counts_as_a_damaged_file(checkpoint: Checkpoint, state: bytes) -> None:
    content = copy.deepcopy(checkpoint.content)
    content["actor"]["simulators"][1] = torch.from_numpy(np.frombuffer(state, np.uint8).copy())
    with pytest.raises(CheckpointError, match="the saved state of environment 1 is damaged") as caught:
        try_to_restore(checkpoint, content)
    assert caught.value.is_damaged


def test_a_damaged_simulator_of_procgen_is_named() -> None:
    vector = environments.make(EnvSettings(name="coinrun"), range(2))
    states = vector.save()
    assert states is not None
    check_states(states)
    damaged = bytearray(states[1])
    damaged[100] ^= 1
    for restore in (check_states, vector.restore):
        with pytest.raises(UserError, match="the saved state of environment 1 is damaged"):
            restore([states[0], bytes(damaged)])
    vector.close()


@pytest.mark.slow
def test_a_run_with_a_damaged_simulator_resumes_from_the_checkpoint_before(tmp_path: Path) -> None:
    run = Path(shutil.copytree(RECORDED / "ppo_cartpole", tmp_path / "run"))
    final = find_checkpoint(run)
    final.content["actor"]["simulators"][0] = torch.zeros(5, dtype=torch.uint8)
    save_checkpoint(final.path, final.content)
    result = rlcluster("train", "--resume", "--output-dir", run)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("Falling back to an earlier checkpoint") == 1
    assert "resuming at update 2, step 32" in result.stdout
    assert json.loads((run / "run_state.json").read_text())["state"] == "finished"
