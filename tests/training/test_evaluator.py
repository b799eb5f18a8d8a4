"""Evaluation during training: logged at the step of its parameters, the best one kept, the training unchanged."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import rlcluster
from rlcluster.runs.status import read_state
from rlcluster.settings.values import Interval, parse_interval
from rlcluster.system.errors import UserError
from rlcluster.training.evaluator import LOWEST_PRIORITY

from conftest import CARTPOLE, background, command, flags, metrics
from conftest import rlcluster as rlcluster_command

SMALL: dict[str, Any] = {
    **{"env": "CartPole-v1", "num_envs": 4, "n_steps": 32, "num_threads": 1, "total_updates": 4},
    "checkpoint_updates": 2,
}


def evaluations(run: Path) -> list[dict[str, Any]]:
    (file,) = run.glob("logs/*/evaluations.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Without and with evaluations, of which the first is due after two updates."""
    folder = tmp_path_factory.mktemp("evaluator")
    plain = rlcluster.train("ppo", output_dir=folder / "plain", **SMALL)
    more = rlcluster.train("ppo", output_dir=folder / "more", eval_interval=256, eval_episodes=3, **SMALL)
    return plain.path, more.path


def test_evaluations_leave_the_training_as_it_is(runs: tuple[Path, Path]) -> None:
    assert metrics(runs[0]) == metrics(runs[1])


def test_an_evaluation_is_that_of_the_command_with_the_parameters_of_its_step(runs: tuple[Path, Path]) -> None:
    first = evaluations(runs[1])[0]
    assert (first["update"], first["steps_global"], first["episodes"]) == (2, 256, 3)
    best = max(evaluations(runs[1]), key=lambda one: one["reward_mean"])
    file = runs[1] / "checkpoints" / "ppo_sequential_best.pt"
    again = rlcluster.evaluate(file, num_episodes=3, num_threads=1)
    assert (again.steps_global, again.results["test"]["reward_mean"]) == (best["steps_global"], best["reward_mean"])


def test_the_best_checkpoint_is_not_the_one_that_a_run_means(runs: tuple[Path, Path]) -> None:
    assert rlcluster.load(runs[1]).checkpoint.name == "ppo_sequential_final.pt"


def test_loggers_have_the_scores_as_scalars(runs: tuple[Path, Path]) -> None:
    scalars = EventAccumulator(str(runs[1])).Reload().Scalars("eval/mean_reward")
    assert [(one.step, pytest.approx(one.value)) for one in scalars] == [
        (one["steps_global"], one["reward_mean"]) for one in evaluations(runs[1])
    ]


def test_a_resumed_run_knows_its_earlier_evaluations(runs: tuple[Path, Path]) -> None:
    before = evaluations(runs[1])
    rlcluster.train(resume=True, output_dir=runs[1], total_updates=6)
    after = evaluations(runs[1])
    assert after[: len(before)] == before
    assert after[len(before)]["steps_global"] > before[-1]["steps_global"]
    best = 0.0
    for one in after:
        assert one["is_best"] is (one["reward_mean"] > best)
        best = max(best, one["reward_mean"])


def test_an_evaluation_process_that_dies_is_reported_and_the_run_goes_on(
    tmp_path: Path, runs: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    class Killer:
        def on_update(self, record: dict[str, Any]) -> None:
            if record["update"] == 1:
                for child in psutil.Process().children():
                    if "spawn_main" in " ".join(child.cmdline()):
                        os.kill(child.pid, signal.SIGKILL)

    run = rlcluster.train("ppo", output_dir=tmp_path / "run", eval_interval=256, callbacks=[Killer()], **SMALL)
    assert "no further evaluations in this run: evaluation 0 failed: " in capfd.readouterr().err
    assert run.status == "finished"
    assert metrics(run.path) == metrics(runs[0])


@pytest.mark.slow
def test_an_evaluation_process_that_is_stopped_holds_nothing_up(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With parameters that no pipe holds."""

    class Stopper:
        stopped_at: int | None = None

        def on_update(self, record: dict[str, Any]) -> str | None:
            if self.stopped_at is None and list(tmp_path.glob("run/logs/*/evaluations.jsonl")):
                self.stopped_at = record["update"]
                for child in psutil.Process().children(recursive=True):
                    if child.nice() == LOWEST_PRIORITY:
                        child.suspend()
            return "stop" if self.stopped_at is not None and record["update"] == self.stopped_at + 10 else None

    stopper = Stopper()
    large = {"hidden_sizes": "512,512", "eval_interval": 256, "eval_episodes": 1, "total_updates": 1_000_000}
    large |= {"mode": "parallel", "num_workers": 1, "timeout_seconds": 15}
    run = rlcluster.train("ppo", output_dir=tmp_path / "run", callbacks=[stopper], **{**SMALL, **large})
    assert run.summary["total_updates"] == stopper.stopped_at + 10
    assert run.status == "finished"
    assert "no further evaluations in this run: evaluation 0 failed: it did not answer for " in capfd.readouterr().err


SLOW = """
import os, time
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Slow(CartPoleEnv):
    def reset(self, **arguments):
        if os.nice(0) == 19:  # in the evaluation
            time.sleep(0.05)
        return super().reset(**arguments)

gymnasium.register("Slow-v0", Slow, max_episode_steps=20)
"""
PARALLEL = {"--mode": "parallel", "--num-workers": 2, "--timeout-seconds": 5}
LAST_ONLY = {**CARTPOLE, "--env": "slow:Slow-v0", "--total-updates": 2, "--eval-interval": 256}


@pytest.mark.slow
@pytest.mark.parametrize("mode", [{}, PARALLEL], ids=["sequential", "parallel"])
def test_the_last_evaluation_may_take_longer_than_the_time_out(tmp_path: Path, mode: dict[str, Any]) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    options = {**LAST_ONLY, **mode, "--eval-episodes": 150}
    result = rlcluster_command("train", "ppo", "--output-dir", "run", *flags(options), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert [one["episodes"] for one in evaluations(tmp_path / "run")] == [150]
    assert (tmp_path / "run" / "checkpoints" / f"ppo_{mode.get('--mode', 'sequential')}_best.pt").exists()


@pytest.mark.slow
@pytest.mark.parametrize("mode", [{}, PARALLEL], ids=["sequential", "parallel"])
def test_a_signal_ends_the_last_evaluation_and_the_run_is_finished(tmp_path: Path, mode: dict[str, Any]) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    options = {**LAST_ONLY, **mode, "--eval-episodes": 1_000_000}
    process = background(command("train", "ppo", "--output-dir", "run", *flags(options)), cwd=tmp_path)
    while not (tmp_path / "run" / "benchmark_metrics.json").exists():
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    state = read_state(tmp_path / "run")
    assert state is not None
    assert state.state == "finished"


@pytest.mark.parametrize(
    ("text", "interval"),
    [("1e6", Interval(1_000_000, 0.0)), ("90s", Interval(None, 90.0)), ("2h", Interval(None, 7200.0))],
)
def test_an_interval_is_in_steps_or_in_time(text: str, interval: Interval) -> None:
    assert parse_interval(text) == interval


@pytest.mark.parametrize("text", ["0", "0.5", "soon", "-1s", "0s"])
def test_an_invalid_interval_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=rf"training.eval_interval={text}: should be "):
        rlcluster.train("ppo", eval_interval=text)
