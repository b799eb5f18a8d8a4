"""Resuming: which settings a run keeps, which it may change, and which its launcher decides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlcluster.settings.loading import load_settings
from rlcluster.settings.resume import resume_differences, resumed_settings
from rlcluster.settings.schema import Settings
from rlcluster.system.errors import UserError

CONFIGS = Path(__file__).parents[2] / "configs"
RUN_CONFIGS = sorted(file for file in CONFIGS.glob("*.yaml") if not file.name.startswith(("suite_", "site_")))


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Settings]:
    """Loads the text of a settings file."""

    def load_text(text: str, **layers: Any) -> Settings:
        file = tmp_path / "settings.yaml"
        file.write_text(text, encoding="utf-8")
        return load_settings(file=file, **layers)

    return load_text


def resumed(settings: Settings, algorithm: str | None = None, mode: str | None = None, **flags: str) -> Settings:
    """Resumes a run of `settings` with these flags; "section__name" for "section.name"."""
    given = {"output.output_dir": "run", **{key.replace("__", "."): value for key, value in flags.items()}}
    return resumed_settings(
        algorithm, mode, None, given, lambda _: yaml.load(settings.to_yaml(), Loader=yaml.BaseLoader)
    )


def launch(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    """Sets the variables of torchrun."""
    variables = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world_size}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


# The difference of two settings


def test_a_resumed_run_may_change_its_length_threads_and_storage(load):
    old = load_settings()
    text = """
        training: {duration: 90s}
        hardware: {num_threads: 1}
        output: {output_dir: a, checkpoint_seconds: 1, checkpoint_updates: 2, keep_checkpoints: 1}
        """
    assert resume_differences(old, load(text)) == []


def test_a_resumed_run_may_not_change_what_is_computed(load):
    new = load("algorithm: ppo\nenv: {seed: 1}\ntraining: {learning_rate: 1e-3, batch_size: 512}")
    assert resume_differences(load_settings(), new) == [
        "env.seed=1 but the run has 42",
        "training.batch_size=512 but the run has 1024",
        "training.learning_rate=0.001 but the run has 0.0005",
    ]


def test_a_resumed_run_may_not_change_its_algorithm():
    differences = resume_differences(load_settings("ppo"), load_settings("a2c"))
    assert "algorithm=a2c but the run has ppo" in differences


def test_the_same_batch_size_in_another_notation_is_no_difference(load):
    assert resume_differences(load("training: {n_minibatches: 4}"), load("training: {batch_size: 1024}")) == []


def test_a_budget_flag_replaces_the_budgets_of_the_run_that_is_resumed():
    base = load_settings(flags={"training.total_timesteps": "4096"}).to_dict()
    training = load_settings(flags={"training.total_updates": "9"}, base=base).training
    assert (training.total_timesteps, training.total_updates) == (None, 9)


@pytest.mark.parametrize("file", RUN_CONFIGS, ids=lambda file: file.name)
def test_a_run_resumes_with_the_file_it_was_started_with(file):
    first = load_settings(file=file)
    resumed = load_settings(file=file, base=yaml.load(first.to_yaml(), Loader=yaml.BaseLoader))
    assert resume_differences(first, resumed) == []


def test_a_run_that_chose_its_network_resumes_with_a_file_that_leaves_the_choice_open(load):
    text = "env: {name: CartPole-v1}\npolicy: {network: null}"
    started = load(text, flags={"policy.network": "mlp"})  # what train() writes into the run
    resumed = load(text, base=yaml.load(started.to_yaml(), Loader=yaml.BaseLoader))
    assert resume_differences(started, resumed) == []


# The settings of a resumed run


def test_a_run_resumes_with_its_own_settings_and_the_flags_that_it_may_change() -> None:
    old = load_settings("a2c", flags={"env.seed": "3", "training.total_updates": "5"})
    settings = resumed(old, training__total_updates="9", hardware__num_threads="1")
    assert (settings.algorithm, settings.env.seed, settings.output.output_dir) == ("a2c", 3, "run")
    assert (settings.training.total_updates, settings.hardware.num_threads) == (9, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "a2c"}, "--resume: run is a run of ppo, not a2c; leave a2c out"),
        ({"training__gamma": "0.5"}, "leave these out: training.gamma=0.5 but the run has 0.999"),
        ({"output__output_dir": None}, "--resume: give the run to continue with --output-dir DIR"),
    ],
)
def test_what_a_run_may_not_change_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        resumed(load_settings(), **changes)


def test_a_new_budget_with_an_annealed_learning_rate_warns(capsys: pytest.CaptureFixture[str]) -> None:
    annealed = load_settings(flags={"training.anneal_learning_rate": "true", "training.total_updates": "5"})
    resumed(annealed)
    resumed(load_settings(), training__total_updates="9")
    assert capsys.readouterr().err == ""
    resumed(annealed, training__total_updates="9")
    assert "the new budget rescales the annealed learning rate" in capsys.readouterr().err


def test_a_launcher_decides_the_number_of_ranks_and_of_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"cluster.num_workers": "4", "parallel.num_workers": "4", "parallel.max_restarts": "2"}
    old = load_settings("ppo", "distributed", flags=given)
    assert resumed(old).given_processes == 4
    launch(monkeypatch, rank=0, world_size=2)
    settings = resumed(old)
    assert settings.given_processes is None
    assert settings.parallel.max_restarts == 0


def test_only_rank_0_reads_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> dict[str, Any]:
        raise AssertionError(f"{path} need not be seen on this machine")

    launch(monkeypatch, rank=1, world_size=2)
    assert resumed_settings(None, None, None, {}, refuse).mode == "distributed"


@pytest.mark.parametrize(("algorithm", "num_workers"), [("impala", None), ("ppo", 4)])
def test_workers_of_a_rank_do_not_become_ranks_in_another_mode(algorithm: str, num_workers: int | None) -> None:
    old = load_settings(algorithm, "parallel", flags={"parallel.num_workers": "4"})
    assert resumed(old).parallel.num_workers == 4
    assert resumed(old, mode="distributed").parallel.num_workers == num_workers
