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
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rlcluster import environments
from rlcluster.environments.procgen import check_states
from rlcluster.runs.checkpoint import Checkpoint, CheckpointError, checkpoint_bytes, load_checkpoint, save_checkpoint
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


# What a checkpoint may hold instead of a value, mostly not, although its hash is right.
NAN, INFINITE, LARGE = float("nan"), float("inf"), 2**70
ODD = [
    None,
    "7",
    "",
    [],
    {},
    ["7"],
    [NAN],
    [-1],
    [1.5],
    [3],
    [LARGE],
    True,
    -1,
    7,
    1.5,
    NAN,
    INFINITE,
    -INFINITE,
    LARGE,
]
ODD_TENSORS = ["nan", "infinite", "other dtype", "more", "scalar", "negative"]

# By hand: what each number may also be. A tensor may be nothing but one of its own shape and type.
ALSO: dict[tuple[str, ...], list[Any]] = {
    **{("learner", name): [7] for name in ("updates", "steps_global")},
    ("actor", "simulators"): [None],
    ("episodes", "total"): [7],
    **{("episodes", name): [None, -1, 7, 1.5] for name in ("initial_reward", "best_reward")},
    ("episodes", "rewards"): [[], [-1], [1.5], [3], "negative", "more", "other dtype"],
    **{(name,): [7, 1.5] for name in ("elapsed_seconds", "peak_memory_gb")},
    ("recent_seconds",): [[], [1.5], [3]],
    ("recent_steps",): [[], [3]],
}
NEGATIVE_ALLOWED = ("parameters", "optimizer", "reward_normalizer", "episode_rewards", "rewards")


def odd_tensor(kind: str, before: torch.Tensor) -> torch.Tensor:
    if kind == "more":
        return torch.cat([before.reshape(-1), before.reshape(-1)])
    if kind == "other dtype":
        return before.to(torch.float16 if before.dtype != torch.float16 else torch.int32)
    if kind == "scalar":
        return torch.tensor(1)
    odd = before.clone()
    odd.view(-1)[0] = -3 if kind == "negative" else NAN if kind == "nan" else INFINITE
    return odd


def is_allowed(place: tuple[str, ...], value: Any, odd: Any) -> bool:
    if any(type(one) is type(odd) and one == odd for one in ALSO.get(place, [])):
        return True
    return isinstance(value, torch.Tensor) and odd == "negative" and set(place) & set(NEGATIVE_ALLOWED) != set()


@hypothesis_settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_whole_checkpoint_with_an_odd_value_is_refused_in_one_line_or_harmless(
    checkpoint: Checkpoint, data: st.DataObject
) -> None:
    content = copy.deepcopy(checkpoint.content)
    place = data.draw(st.sampled_from(list(places(content))))
    part = inside(content, place)
    before = part[place[-1]]
    odd = data.draw(st.sampled_from(ODD))
    if isinstance(before, torch.Tensor):
        is_floating = before.dtype.is_floating_point
        odd = data.draw(st.sampled_from(ODD_TENSORS if is_floating else ODD_TENSORS[2:]))
    part[place[-1]] = odd_tensor(odd, before) if isinstance(before, torch.Tensor) else odd
    saved = load_checkpoint(checkpoint.path, bytes(checkpoint_bytes(content)))
    if is_allowed(place, before, odd):
        try_to_restore(checkpoint, saved.content)
        return
    with pytest.raises(CheckpointError) as caught:
        try_to_restore(checkpoint, saved.content)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("steps", [-1, LARGE, NAN, INFINITE, "7", None, True])
def test_a_checkpoint_whose_counters_are_no_numbers_is_refused_by_every_reader(
    checkpoint: Checkpoint, steps: Any
) -> None:
    content = copy.deepcopy(checkpoint.content)
    content["learner"]["steps_global"] = content["learner"]["updates"] = steps
    other = checkpoint._replace(content=content)
    for read in (lambda: other.steps_global, lambda: other.updates):
        with pytest.raises(CheckpointError, match=r"learner\.(steps_global|updates) is "):
            read()


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
