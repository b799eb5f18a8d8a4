"""Our published results: what makes runs one method, the data that ships with the package, its size and round trip."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rlcluster.experiments.suite_plan import read_suite
from rlcluster.reports.curves import Slices
from rlcluster.reports.published import (
    POINTS,
    LevelsResult,
    PublishedMethod,
    PublishedRun,
    mean_score_curve,
    method_settings,
    method_text,
    ours_for,
    published_methods,
    read_method,
)
from rlcluster.settings.games import PROCGEN_GAMES
from rlcluster.settings.loading import load_settings
from rlcluster.settings.schema import Settings

from conftest import FAST_RECIPE, publish_runs

CONFIGS = Path(__file__).parents[2] / "configs"
MACHINE = {
    **{"cpu_model": "AMD EPYC 9R45 48-Core Processor", "cores": 2, "git_commit": "0123456789abcdef" * 2 + "01234567"},
    "versions": {"rlcluster": "0.1.0", "python": "3.11.7", "torch": "2.13.0+cpu"},
}


def run_of(seed: int = 1, steps: float = 1.5e6, load: float | None = 0.02, game: str = "coinrun") -> PublishedRun:
    """With numbers as long as those of real runs."""
    positions, noise = np.arange(1, POINTS + 1), np.random.default_rng(seed)
    curve = Slices(
        steps / POINTS * positions,
        1234.5 / POINTS * positions,
        noise.integers(200, 2000, POINTS).astype(float),
        noise.normal(7, 1, POINTS),
    )
    evaluation = {levels: LevelsResult(7.123456, 6.812345, 7.412345, 300) for levels in ("train", "test")}
    return PublishedRun(game, seed, "finished", 1_500_000, curve, evaluation, int(steps), MACHINE, load)


def settings_with(**flags: str) -> Settings:
    return load_settings(
        "ppo", flags={**FAST_RECIPE, **{key.replace("__", "."): value for key, value in flags.items()}}
    )


def test_a_method_survives_the_file_up_to_rounding(tmp_path):
    bare = run_of(2)._replace(evaluation={}, evaluated_steps=None, background_load=None, state="running")
    hole = run_of(3)
    hole.curve.rewards[5] = np.nan
    method = PublishedMethod("ppo_fast", settings_with(), [run_of(1), bare, hole])
    (tmp_path / "ppo_fast.json").write_text(method_text(method))
    (again,) = published_methods(tmp_path)
    assert again.name == "ppo_fast"
    assert method_settings(again.settings) == method_settings(method.settings)
    for read, written in zip(again.runs, method.runs, strict=True):
        assert read._replace(curve=None, evaluation=None) == written._replace(curve=None, evaluation=None)
        assert np.allclose(read.curve.rewards, written.curve.rewards, atol=5e-4, equal_nan=True)
        assert np.allclose(read.curve.seconds, written.curve.seconds, atol=0.5)
        assert read.curve.steps.tolist() == written.curve.steps.tolist()
    assert again.runs[0].evaluation["test"] == (7.123, 6.812, 7.412, 300)
    assert method_text(again) == method_text(method)


def test_sixty_runs_stay_below_150_kilobytes():
    pairs = [(game, seed) for game in PROCGEN_GAMES for seed in (1, 2, 3, 4)][:60]
    runs = [run_of(seed, game=game) for game, seed in pairs]
    texts = [method_text(PublishedMethod("ppo_fast", settings_with(), runs[k::5])) for k in range(5)]
    assert sum(map(len, texts)) < 150_000


def test_game_seed_mode_speed_and_budget_do_not_make_another_method_but_settings_do():
    own = method_settings(settings_with())
    assert method_settings(settings_with(env__name="maze", env__seed="7", training__total_timesteps="5e6")) == own
    assert method_settings(load_settings("ppo", "parallel", flags=FAST_RECIPE)) == own
    assert method_settings(settings_with(hardware__num_threads="3")) == own
    assert method_settings(settings_with(training__gamma="0.9")) != own
    modes = [method_settings(load_settings("impala", mode)) for mode in ("sequential", "parallel")]
    assert modes[0] != modes[1]
    annealed = [{"training__anneal_learning_rate": "yes", "training__total_timesteps": n} for n in ("1e6", "2e6")]
    assert method_settings(settings_with(**annealed[0])) != method_settings(settings_with(**annealed[1]))


def test_a_run_is_compared_with_its_own_method_or_else_with_all(tmp_path):
    publish_runs(tmp_path, "ppo_fast", {("coinrun", 1): 7.0, ("maze", 1): 5.0})
    publish_runs(tmp_path, "ppo_paper", {("coinrun", 1): 7.0, ("coinrun", 2): 7.0}, **{"training.n_epochs": "3"})
    methods = published_methods(tmp_path)
    assert [*ours_for(settings_with(), "coinrun", methods)] == ["ppo_fast"]
    assert [*ours_for(settings_with(training__gamma="0.9"), "coinrun", methods)] == ["ppo_fast", "ppo_paper"]
    assert [*ours_for(settings_with(training__n_epochs="3"), "maze", methods)] == ["ppo_fast"]
    assert ours_for(settings_with(), "heist", methods) == {}


def test_the_mean_curve_is_over_the_seeds_that_got_as_far_as_the_longest():
    rewards = np.full(POINTS, 6.0)
    one, two = (
        run._replace(curve=run.curve._replace(rewards=rewards + k)) for k, run in enumerate((run_of(1), run_of(2)))
    )
    curve = mean_score_curve([one, two, run_of(3, steps=0.7e6)])
    assert curve.num_seeds == 2
    assert (curve.steps[0], curve.steps[-1]) == (1e5, 1.5e6)
    assert (curve.mean[-1], curve.low[-1], curve.high[-1]) == pytest.approx((6.5, 6.0, 7.0))


def test_times_are_of_a_quiet_machine_if_the_load_was_low_and_the_speed_steady():
    quiet = run_of()
    assert quiet.is_quiet
    assert not quiet._replace(background_load=0.4).is_quiet
    assert not quiet._replace(background_load=None).is_quiet
    slow_at_first = quiet.curve.seconds + np.minimum(500, 40 * np.arange(1, POINTS + 1))
    assert not quiet._replace(curve=quiet.curve._replace(seconds=slow_at_first)).is_quiet


def test_what_is_published_is_what_the_shipped_suite_would_run():
    suite = read_suite(CONFIGS / "suite_procgen.yaml")
    recipes = {cell.method: method_settings(cell.settings) | {"policy.network": "impala"} for cell in suite.cells}
    for method in published_methods():
        assert method_settings(method.settings) == recipes[method.name], method.name
        assert len({(run.game, run.seed) for run in method.runs}) == len(method.runs)
        assert {run.game for run in method.runs} <= set(PROCGEN_GAMES)
        assert all(np.all(np.diff(run.curve.steps) > 0) for run in method.runs)


def test_a_file_of_an_earlier_version_is_completed_with_the_settings_it_lacks(tmp_path):
    publish_runs(tmp_path, "ppo_fast", {("coinrun", 1): 7.0})
    file = tmp_path / "ppo_fast.json"
    data = json.loads(file.read_text())
    del data["settings"]["training"]["target_kl"]
    file.write_text(json.dumps(data))
    assert method_settings(read_method(file).settings) == method_settings(settings_with())
