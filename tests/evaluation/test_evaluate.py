"""Evaluation: every assigned episode counts, training and unseen levels, and the command's output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from rlcluster import environments
from rlcluster.cli import main
from rlcluster.evaluation.evaluate import (
    Episodes,
    chosen_levels,
    level_settings,
    load_agent,
    play,
    results_text,
    summarise,
)
from rlcluster.networks.policy import ActorCritic, make_policy
from rlcluster.reports.statistics import estimate, mean
from rlcluster.runs.checkpoint import CheckpointError, save_checkpoint
from rlcluster.runs.checkpoints import find_checkpoint
from rlcluster.settings.schema import EnvSettings, PolicySettings
from rlcluster.system.errors import UserError

from conftest import CARTPOLE, COINRUN, flags, rlcluster


@pytest.fixture(scope="module")
def coinrun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("coinrun") / "run"
    options = {**COINRUN, "--n-minibatches": 2, "--total-updates": 1}
    assert rlcluster("train", "ppo", "--output-dir", run, *flags(options)).returncode == 0
    return run


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("cartpole") / "run"
    options = {**CARTPOLE, "--n-minibatches": 2, "--total-updates": 3}
    assert rlcluster("train", "ppo", "--output-dir", run, *flags(options)).returncode == 0
    return run


def policy_for(env: EnvSettings) -> ActorCritic:
    return make_policy(PolicySettings(), environments.describe(env), seed=0)


def test_long_episodes_count_like_short_ones() -> None:
    """Each environment plays a fixed number of episodes, however long: always the first ones of its own stream."""
    env = EnvSettings(name="CartPole-v1", seed=3)
    policy = policy_for(env)
    few, many = play(policy, env, 64), play(policy, env, 128)
    assert len(few.rewards) == 64
    assert len(many.rewards) == 128
    assert np.array_equal(few.rewards, many.rewards[::2])  # environment k's first and second episode are neighbours
    assert np.array_equal(few.rewards, few.lengths)


def test_an_evaluation_is_reproducible_and_depends_on_its_seed() -> None:
    env = EnvSettings(name="CartPole-v1", seed=3)
    policy = policy_for(env)
    first, again = play(policy, env, 10), play(policy, env, 10)
    other = play(policy, env.model_copy(update={"seed": 4}), 10)
    assert np.array_equal(first.rewards, again.rewards)
    assert not np.array_equal(first.rewards, other.rewards)
    assert not np.array_equal(first.rewards, play(policy, env, 10, deterministic=True).rewards)


def test_completed_levels_are_those_in_which_the_coin_was_reached() -> None:
    env = EnvSettings(name="coinrun", seed=1)
    episodes = play(make_policy(PolicySettings(network="nature"), environments.describe(env), 0), env, 20)
    assert episodes.completed is not None
    assert 0 < episodes.completed.sum() < 20
    assert np.array_equal(episodes.completed, episodes.rewards == 10)


def test_test_levels_are_the_full_distribution_and_train_levels_those_of_the_run() -> None:
    env = EnvSettings(num_levels=200, start_level=50, seed=42)
    test, train = level_settings(env, "test", 1), level_settings(env, "train", 1)
    assert (test.num_levels, test.start_level, test.seed) == (0, 0, 1)
    assert (train.num_levels, train.start_level, train.seed) == (200, 50, 1)


def test_exploration_mode_has_no_unseen_levels() -> None:
    env = EnvSettings(distribution_mode="exploration")
    assert chosen_levels("train", env) == ("train",)
    with pytest.raises(UserError, match="only one level"):
        chosen_levels("both", env)


def test_the_summary_by_hand() -> None:
    summary = summarise(
        Episodes(np.array([0.0, 10.0, 10.0, 0.0]), np.array([2, 4, 6, 8]), np.array([0, 1, 1, 0], bool), 0.3)
    )
    assert summary["reward_mean"] == 5
    assert summary["reward_std"] == 5
    assert (summary["reward_min"], summary["reward_max"]) == (0, 10)
    assert (summary["length_mean"], summary["levels_completed"]) == (5, 0.5)


def interval_of(rewards: NDArray[np.float64]) -> tuple[float, float]:
    low, high = summarise(Episodes(rewards, np.ones(len(rewards), np.int64), None, 0.3))["reward_interval_95"]
    return low, high


def test_the_interval_of_the_mean_by_hand() -> None:
    """Resamples of ten episodes of 0 and ten of 10 have mean 10 k / 20, k binomial with n = 20 and p = 1/2:
    P(k <= 5) = 2.1 %, P(k <= 6) = 5.8 %. So the 2.5 and 97.5 percentiles are at k = 6 and k = 14.
    """
    assert interval_of(np.array([0.0, 10.0] * 10)) == pytest.approx((3, 7))


def test_a_few_episodes_have_no_interval_and_the_results_say_so() -> None:
    result = summarise(Episodes(np.array([3.0]), np.ones(1, np.int64), None, 0.3))
    assert result["reward_interval_95"] is None
    assert "95% Confidence Interval of the Mean: not shown below 20 episodes" in results_text(result, "")


def test_the_interval_is_shown_in_brackets_as_in_reports() -> None:
    result = summarise(Episodes(np.full(20, 3.0), np.ones(20, np.int64), None, 0.3))
    assert "95% Confidence Interval of the Mean: [3.00, 3.00]" in results_text(result, "")


def test_the_interval_of_the_mean_approaches_that_of_the_normal_distribution() -> None:
    values = np.random.default_rng(1).normal(3, 2, 2000)
    low, high = interval_of(values)
    half = 1.96 * values.std() / np.sqrt(2000)
    assert low == pytest.approx(values.mean() - half, abs=0.01)
    assert high == pytest.approx(values.mean() + half, abs=0.01)


def test_evaluations_and_comparisons_use_the_same_interval() -> None:
    rewards = np.random.default_rng(2).normal(3, 2, 50)
    draws = np.random.default_rng(0)
    means = [np.mean([rewards[draws.integers(0, 50)] for _ in range(50)]) for _ in range(10_000)]
    assert interval_of(rewards) == pytest.approx(tuple(np.percentile(means, [2.5, 97.5])), abs=0.02)
    assert interval_of(rewards) == estimate({"game": rewards}, mean)[1:]


def test_the_command_prints_the_results_and_writes_json(coinrun: Path, tmp_path: Path) -> None:
    file = tmp_path / "evaluation.json"
    result = rlcluster("evaluate", coinrun, "--num-episodes", "3", "--levels", "both", "--json", file)
    assert result.returncode == 0, result.stderr
    for line in (
        "Environment: coinrun",
        "Observation shape: (3, 64, 64)",
        "Number of actions: 15",
        "Evaluation Results",
        "Episodes: 3",
        "Mean Reward: ",
        "Min/Max Reward: ",
        "Mean Episode Length: ",
        "Levels Completed: ",
        "95% Confidence Interval of the Mean: ",
        "Levels: unseen (the full easy distribution)",
        "Levels: training (200 from 0, easy)",
    ):
        assert line in result.stdout
    written = json.loads(file.read_text())
    assert written["results"].keys() == {"train", "test"}
    assert written["results"]["test"]["episodes"] == 3
    train, test = (written["results"][levels]["reward_mean"] for levels in ("train", "test"))
    assert f"Generalisation Gap: {train - test:.2f} (mean reward on training levels less" in result.stdout


def test_a_video_shows_real_play(coinrun: Path, tmp_path: Path) -> None:
    video = tmp_path / "play.mp4"
    result = rlcluster("evaluate", "--checkpoint", coinrun, "--num-episodes", "1", "--video", video)
    assert result.returncode == 0, result.stderr
    with av.open(str(video)) as container:
        (stream,) = container.streams
        assert (stream.width, stream.height, stream.average_rate) == (512, 512, 15)
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    assert len(frames) > 5
    assert not np.array_equal(frames[0], frames[-1])


def test_rendering_without_a_terminal_is_refused(coinrun: Path) -> None:
    result = rlcluster("evaluate", "--checkpoint", coinrun, "--num-episodes", "1", "--render")
    assert result.returncode == 2
    assert "not a terminal" in result.stderr
    assert "--video" in result.stderr


def test_another_game_with_the_same_observations_can_be_played(coinrun: Path) -> None:
    checkpoint = find_checkpoint(coinrun)
    assert load_agent(checkpoint, "procgen-starpilot-v0").settings.env.name == "procgen-starpilot-v0"


def test_an_environment_that_does_not_fit_the_policy_is_refused(coinrun: Path, cartpole: Path) -> None:
    checkpoint = find_checkpoint(coinrun)
    with pytest.raises(UserError, match="needs images"):
        load_agent(checkpoint, "CartPole-v1")
    checkpoint = find_checkpoint(cartpole)
    with pytest.raises(UserError, match="does not fit Acrobot-v1"):
        load_agent(checkpoint, "Acrobot-v1")


def test_cartpole_has_no_levels(cartpole: Path) -> None:
    options = ("--num-episodes", "5", "--deterministic", "--levels", "both")
    result = rlcluster("evaluate", "--checkpoint", cartpole, *options)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Evaluation Results") == 1
    assert (
        'levels=both: CartPole-v1 has no levels; it is evaluated once, as it is, under the key "test"' in result.stderr
    )
    assert "Levels" not in result.stdout


def test_a_run_that_is_not_there_is_called_as_the_user_called_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, name in [(["nothing"], "evaluate nothing"), (["--checkpoint", "none"], "--checkpoint none")]:
        assert main(["evaluate", *arguments, "--num-threads", "1"]) == 2
        assert capsys.readouterr().err == f"rlcluster: error: {name}: there is no such file or run directory\n"


def test_a_run_and_a_checkpoint_are_not_both_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "a", "--checkpoint", "b"]) == 2
    assert capsys.readouterr().err == "rlcluster: error: evaluate: give RUN=a or --checkpoint b, not both\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda learner: next(iter(learner["parameters"].values())).fill_(float("nan")), "NaN or infinite"),
        (lambda learner: next(iter(learner["parameters"].values())).fill_(float("inf")), "NaN or infinite"),
        (lambda learner: learner.pop("parameters"), "another version"),
        (lambda learner: learner.update(parameters="none"), "another version"),
    ],
    ids=["NaN", "infinite", "none", "no tensors"],
)
def test_a_checkpoint_without_usable_parameters_is_refused_though_its_hash_is_right(
    cartpole: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    content = find_checkpoint(cartpole).content
    change(content["learner"])
    save_checkpoint(tmp_path / "changed.pt", content)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_agent(find_checkpoint(tmp_path / "changed.pt"))
    assert str(caught.value).isprintable()


FAULTY = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Faulty(CartPoleEnv):
    def step(self, action):
        observation, _, terminated, truncated, information = super().step(action)
        return observation, float("nan"), terminated, truncated, information

gymnasium.register("Faulty-v0", Faulty)
"""


def test_an_environment_with_nan_rewards_ends_the_command_in_one_line_without_a_file(
    cartpole: Path, tmp_path: Path
) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    arguments = ("evaluate", cartpole, "--env", "faulty:Faulty-v0", "--num-episodes", "2", "--json", "scores.json")
    result = rlcluster(*arguments, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr == (
        "rlcluster: error: env.name=faulty:Faulty-v0: environment 1000000 returned the reward nan in step 1 since the "
        "start; fix it\n"
    )
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["faulty.py"]
