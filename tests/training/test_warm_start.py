"""Warm start: a new run begins with the parameters of another one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import rlcluster
from rlcluster.runs.checkpoint import save_checkpoint
from rlcluster.runs.checkpoints import find_checkpoint

from conftest import metrics

SMALL: dict[str, Any] = {
    **{"env": "CartPole-v1", "num_envs": 4, "n_steps": 32, "num_threads": 1, "total_updates": 4},
    "checkpoint_updates": 2,
}


class FirstCheckpoint:
    """Ends the run after its first update; a learning rate of nearly 0 leaves the parameters almost as they began."""

    def on_update(self, record: dict[str, Any]) -> str:
        del record
        return "stop"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rlcluster.train("ppo", output_dir=tmp_path_factory.mktemp("first") / "run", **SMALL).path


def learner(run: Path) -> dict[str, Any]:
    state: dict[str, Any] = find_checkpoint(run).content["learner"]
    return state


def begin(first: Path, path: Path, **more: Any) -> dict[str, Any]:
    """The model after one update that hardly changes it."""
    given = {**SMALL, "learning_rate": 1e-30, "init_from": first, "callbacks": [FirstCheckpoint()], **more}
    rlcluster.train(given.pop("algorithm", "ppo"), output_dir=path, **given)
    return learner(path)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "impala"])
def test_a_run_begins_with_the_parameters_of_another_and_fresh_counters(
    tmp_path: Path, first: Path, algorithm: str
) -> None:
    before, after = learner(first), begin(first, tmp_path / "run", algorithm=algorithm)
    for name, value in before["parameters"].items():
        torch.testing.assert_close(after["parameters"][name], value)
    assert (after["updates"], after["steps_global"]) == (1, 128)


def test_on_request_it_takes_over_the_whole_model(tmp_path: Path, first: Path) -> None:
    before, after = learner(first), begin(first, tmp_path / "run", init_with="model", total_updates=9)
    assert (after["updates"], after["steps_global"]) == (5, 640)
    assert after["reward_normalizer"]["moments"][0] == before["reward_normalizer"]["moments"][0] + 128
    steps = {name: int(value) for name, value in before["optimizer"].items() if not value.dim()}
    assert steps
    assert all(int(after["optimizer"][name]) > value > 0 for name, value in steps.items())


def test_it_is_recorded_and_a_resumed_run_equals_an_uninterrupted_one_without_the_first(
    tmp_path: Path, first: Path
) -> None:
    class Broken:
        def on_update(self, record: dict[str, Any]) -> None:
            if record["update"] == 3:
                raise ZeroDivisionError

    source = tmp_path / "source.pt"
    source.write_bytes(find_checkpoint(first).path.read_bytes())
    whole = rlcluster.train("ppo", output_dir=tmp_path / "whole", init_from=source, **SMALL)
    assert yaml.safe_load((whole.path / "config.yaml").read_text())["policy"]["init_from"] == str(source)
    with pytest.raises(ZeroDivisionError):
        rlcluster.train("ppo", output_dir=tmp_path / "two", init_from=source, callbacks=[Broken()], **SMALL)
    source.unlink()
    rlcluster.train(resume=True, output_dir=tmp_path / "two")
    assert metrics(tmp_path / "two") == metrics(whole.path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parameters", "model"])
def test_a_run_begins_with_the_parameters_of_another_procgen_game(tmp_path: Path, name: str) -> None:
    procgen = {**SMALL, "network": "nature", "n_steps": 16, "total_updates": 1}
    other = rlcluster.train("ppo", output_dir=tmp_path / "other", **{**procgen, "env": "coinrun"}).path
    more = {**procgen, "env": "starpilot", "init_with": name, "total_updates": 2}
    after, before = begin(other, tmp_path / "run", **more), learner(other)
    assert len(before["parameters"]) > 4
    for key, value in before["parameters"].items():
        torch.testing.assert_close(after["parameters"][key], value)
    assert (after["updates"], after["steps_global"]) == ((1, 64) if name == "parameters" else (2, 128))
    assert rlcluster.read(tmp_path / "run")[0].settings["env"]["name"] == "starpilot"


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "mode"), [("ppo", "parallel"), ("impala", "parallel"), ("a3c", "parallel")])
def test_every_loop_begins_with_them(tmp_path: Path, first: Path, algorithm: str, mode: str) -> None:
    more = {"algorithm": algorithm, "mode": mode, "num_workers": 2}
    after = begin(first, tmp_path / "run", **more)
    for name, value in learner(first)["parameters"].items():
        torch.testing.assert_close(after["parameters"][name], value)


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"hidden_sizes": (8, 8)}, ["policy_head.weight is [2, 64] in the checkpoint and [2, 8] here", "6 more"]),
        ({"env": "Acrobot-v1"}, ["has a mlp network for CartPole-v1; it does not fit the mlp network for Acrobot-v1"]),
        ({"init_with": "model", "optimizer": "rmsprop"}, ["has the statistics of adam, this run uses rmsprop"]),
        ({"init_from": "nowhere"}, ["policy.init_from nowhere: there is no such file or run directory"]),
        ({"init_from": None, "init_with": "model"}, ["policy.init_with=model needs policy.init_from"]),
    ],
)
def test_what_does_not_fit_is_refused_by_name_before_the_run_exists(
    tmp_path: Path, first: Path, given: dict[str, Any], parts: list[str]
) -> None:
    with pytest.raises(rlcluster.UserError) as error:
        rlcluster.train("ppo", output_dir=tmp_path / "run", **{**SMALL, "init_from": first, **given})
    assert all(part in str(error.value) for part in parts), error.value
    assert not (tmp_path / "run").exists()


def alone(content: dict[str, Any]) -> None:
    for name in ("optimizer", "reward_normalizer"):
        del content["learner"][name]


def without_moments(content: dict[str, Any]) -> None:
    content["learner"]["reward_normalizer"] = {"moments": torch.full((3,), float("nan"), dtype=torch.float64)}


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (alone, ": has the parameters alone, as agents and the best checkpoint have; use --init-with parameters"),
        (without_moments, "reward_normalizer.moments is "),
        (lambda content: content["learner"].update(optimizer=3), "(TypeError: "),
        (lambda content: content["learner"]["optimizer"].popitem(), "(KeyError: "),
        (lambda content: content["learner"].update(steps_global="x"), "steps_global is 'x'"),
        (lambda content: content["learner"].update(updates=-1), "updates is -1"),
    ],
)
def test_a_model_that_cannot_be_taken_over_is_refused_in_one_line(
    tmp_path: Path, first: Path, change: Callable[[dict[str, Any]], Any], part: str
) -> None:
    content = copy.deepcopy(find_checkpoint(first).content)
    change(content)
    save_checkpoint(tmp_path / "odd.pt", content)
    with pytest.raises(rlcluster.UserError) as error:
        begin(tmp_path / "odd.pt", tmp_path / "run", init_with="model")
    assert str(error.value).startswith(f"{tmp_path / 'odd.pt'}: ")
    assert part in str(error.value)
    assert str(error.value).isprintable()
    assert not (tmp_path / "run").exists()
    begin(tmp_path / "odd.pt", tmp_path / "run")  # the parameters alone are whole
