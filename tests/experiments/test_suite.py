"""`rlcluster suite`: the plan, refused input, and real cells: finished, interrupted, failed, retried."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlcluster.experiments.suite_plan import planned_cores, read_suite
from rlcluster.system import cores
from rlcluster.system.cores import Core, Cores
from rlcluster.system.errors import UserError

from conftest import command, rlcluster, start

TINY: dict[str, Any] = {
    "algorithms": ["ppo", "a2c"],
    "modes": ["sequential"],
    "games": ["CartPole-v1"],
    "seeds": [1],
    "budget": {"total_timesteps": 512},
    "evaluation": {"num_episodes": 2},
    "settings": {"env": {"num_envs": 4}, "training": {"n_steps": 16}, "hardware": {"num_threads": 1}},
    "algorithm_settings": {"ppo": {"training": {"batch_size": 32}}},
}


EIGHT_CORES = Cores(8, tuple(Core(k, k) for k in range(8)))


def plan_file(folder: Path, **changes: Any) -> Path:
    file = folder / "tiny.yaml"
    file.write_text(yaml.safe_dump({key: value for key, value in {**TINY, **changes}.items() if value is not None}))
    return file


def refusal(folder: Path, **changes: Any) -> str:
    with pytest.raises(UserError) as caught:
        read_suite(plan_file(folder, **changes))
    return str(caught.value)


# The plan


def test_every_combination_is_a_cell_and_seeds_vary_slowest(tmp_path):
    changes = {"modes": ["sequential", "parallel"], "games": ["coinrun", "maze"], "seeds": [1, 2]}
    names = [cell.name for cell in read_suite(plan_file(tmp_path, **changes)).cells]
    assert len(names) == len(set(names)) == 16
    assert names[:3] == ["ppo_sequential_coinrun_seed1", "a2c_sequential_coinrun_seed1", "ppo_parallel_coinrun_seed1"]
    assert names[8] == "ppo_sequential_coinrun_seed2"  # all methods with seed 1 come first


def test_a_cell_merges_common_algorithm_and_mode_settings(tmp_path):
    changes = {"modes": ["parallel"], "mode_settings": {"parallel": {"parallel": {"num_workers": 2}}}}
    ppo, a2c = (cell.settings for cell in read_suite(plan_file(tmp_path, **changes)).cells)
    assert (ppo.batch_size, ppo.training.n_steps, ppo.env.num_envs, ppo.given_processes) == (32, 16, 4, 2)
    assert (a2c.algorithm, a2c.training.n_steps, a2c.env.seed) == ("a2c", 16, 1)
    assert ppo.training.total_timesteps == a2c.training.total_timesteps == 512
    assert ppo.training.duration is None


def test_core_hours_are_divided_by_the_cores_of_the_cell(tmp_path, monkeypatch):
    monkeypatch.setattr(cores, "observe", lambda: EIGHT_CORES)
    changes = {
        "algorithms": ["ppo"],
        "modes": ["sequential", "parallel"],
        "budget": {"core_hours": 0.5},
        "mode_settings": {"parallel": {"parallel": {"num_workers": 4}}},
    }
    one, four = read_suite(plan_file(tmp_path, **changes)).cells
    assert planned_cores(one.settings) == 1
    assert planned_cores(four.settings) == 4
    assert one.settings.training.duration == pytest.approx(1800)
    assert four.settings.training.duration == pytest.approx(450)


def test_planned_cores_include_the_threads_that_training_will_choose(tmp_path, monkeypatch):
    monkeypatch.setattr(cores, "observe", lambda: EIGHT_CORES)
    changes = {
        **{"algorithms": ["ppo"], "modes": ["parallel"], "budget": {"core_hours": 1}},
        "settings": {"env": {"num_envs": 8}, "training": {"n_steps": 16}, "parallel": {"num_workers": 4}},
    }
    (cell,) = read_suite(plan_file(tmp_path, **changes)).cells
    assert planned_cores(cell.settings) == 4 * 2


def test_settings_that_other_keys_set_are_refused(tmp_path):
    text = refusal(tmp_path, settings={"env": {"seed": 3}, "training": {"duration": "5s"}, "output": {"log_dir": "x"}})
    assert "settings.env.seed: set by seeds; leave it out" in text
    assert "settings.training.duration: set by budget; leave it out" in text
    assert "settings.output.log_dir: each cell keeps its files in its own directory; leave it out" in text


def test_an_algorithms_minibatch_setting_replaces_the_common_one(tmp_path):
    changes = {
        **{"algorithms": ["ppo"], "algorithm_settings": {"ppo": {"training": {"n_minibatches": 4}}}},
        "settings": {"env": {"num_envs": 4}, "training": {"n_steps": 16, "batch_size": 32}},
    }
    assert read_suite(plan_file(tmp_path, **changes)).cells[0].settings.num_minibatches == 4


def test_the_name_of_a_cell_is_a_valid_file_name(tmp_path):
    names = [cell.name for cell in read_suite(plan_file(tmp_path, games=["ALE/Pong-v5"])).cells]
    assert names[0] == "ppo_sequential_ALE-Pong-v5_seed1"


def test_the_quick_suite_plans_all_algorithms_in_a_quarter_of_an_hour():
    suite = read_suite(Path("configs/suite_quick.yaml"))
    assert len(suite.cells) == 16
    assert sum(cell.settings.training.duration for cell in suite.cells) <= 10 * 60  # the rest is for evaluation


def test_all_problems_of_a_plan_are_reported_at_once(tmp_path):
    text = refusal(
        tmp_path,
        seeds=[1, 1],
        budget={"duration": "5s", "total_timesteps": 5},
        settings={"env": {"num_envs": 4, "flavour": 1}, "training": {"n_steps": 16}},
        score_ranges={"maze": [5, 1]},
    )
    assert "budget: give one of total_timesteps, duration, core_hours; it has total_timesteps and duration" in text
    assert "seeds: 1 is listed twice" in text
    assert "score_ranges.maze=[5, 1]" in text
    assert "ppo sequential: env.flavour: unknown setting" in text


def test_an_unknown_key_of_a_plan_is_refused_with_a_suggestion(tmp_path):
    changes = {"game": ["coinrun"], "budget": {"durations": "5s"}, "algorithm_settings": {"impla": {}}}
    text = refusal(tmp_path, **changes, colour="red")
    assert "4 problems:" in text
    assert "algorithm_settings.impla: unknown; did you mean algorithm_settings.impala?" in text
    assert "budget.durations: unknown; did you mean budget.duration?" in text
    assert "game: unknown; did you mean games?" in text
    assert "colour: unknown; known here: algorithms, modes, games, seeds, budget," in text


def test_an_invalid_value_in_a_list_is_one_problem(tmp_path):
    assert "problems" not in refusal(tmp_path, seeds=["a"])


def test_a_setting_without_effect_is_reported_with_its_algorithm_and_mode(tmp_path):
    text = refusal(tmp_path, settings={"training": {"n_epochs": 2, "n_steps": 16}, "env": {"num_envs": 4}})
    assert text.endswith("a2c sequential: training.n_epochs=2 has no effect with a2c; remove it")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "ppo"}, "algorithm: unknown; did you mean algorithms?"),
        ({"algorithms": ["dqn"]}, "algorithms.0=dqn"),
        ({"budget": "5s"}, "budget=5s: should be a block with one or more of total_timesteps, duration, core_hours"),
        ({"seeds": []}, "seeds"),
        ({"budget": None}, "budget: give one of total_timesteps, duration, core_hours; it has none"),
    ],
)
def test_an_invalid_plan_is_refused(tmp_path, changes, message):
    assert message in refusal(tmp_path, **changes)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"suite .*nowhere\.yaml: No such file"):
        read_suite(tmp_path / "nowhere.yaml")


# Real cells


@pytest.mark.slow
def test_a_suite_runs_every_cell_reports_and_does_nothing_the_second_time(tmp_path):
    out = tmp_path / "out"
    arguments = ("suite", plan_file(tmp_path), "--output-dir", out)
    first = rlcluster(*arguments)
    assert first.returncode == 0, first.stderr
    assert "planned wall-clock: known after the first cell" in first.stdout
    assert "cell 2 of 2: a2c_sequential_CartPole-v1_seed1 ..." in first.stdout
    assert "Not enough runs to tell" in first.stdout
    for name in ("ppo", "a2c"):
        run = out / "runs" / f"{name}_sequential_CartPole-v1_seed1"
        assert json.loads((run / "run_state.json").read_text())["state"] == "finished"
        assert json.loads((run / "evaluation.json").read_text())["results"]["test"]["episodes"] == 2
    page = (out / "comparison.html").read_text()
    assert "Suite tiny" in page
    assert "2 episodes" in page
    assert [cell["state"] for cell in json.loads((out / "suite.json").read_text())["cells"]] == ["finished"] * 2
    before = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*")}
    again = rlcluster(*arguments)
    assert again.returncode == 0
    assert "2 cells, 2 done" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*")} == before
    other = rlcluster("suite", plan_file(tmp_path, budget={"total_timesteps": 1024}), "--output-dir", out)
    assert other.returncode == 2
    assert "was made with settings that differ from the plan: budget" in other.stderr
    more = rlcluster("suite", plan_file(tmp_path, evaluation={"num_episodes": 3}), "--output-dir", out)
    assert more.returncode == 0  # only the evaluation is repeated
    run = out / "runs" / "ppo_sequential_CartPole-v1_seed1"
    assert json.loads((run / "evaluation.json").read_text())["results"]["test"]["episodes"] == 3


@pytest.mark.slow
def test_an_interrupted_suite_resumes(tmp_path):
    out = tmp_path / "out"
    plan = plan_file(tmp_path, algorithms=["ppo"], budget={"duration": "6s"}, evaluation={"num_episodes": 0})
    run = out / "runs" / "ppo_sequential_CartPole-v1_seed1"
    process = start(run, command("suite", plan, "--output-dir", out), until="logs/*/metrics.jsonl")
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"stopped by a signal; to resume: rlcluster suite {plan} --output-dir {out}" in stdout
    assert json.loads((run / "run_state.json").read_text())["state"] == "preempted"
    seconds = json.loads((run / "benchmark_metrics.json").read_text())["duration_seconds"]
    assert seconds < 6
    again = rlcluster("suite", plan, "--output-dir", out)
    assert again.returncode == 0, again.stderr
    summary = json.loads((run / "benchmark_metrics.json").read_text())
    assert 6 <= summary["duration_seconds"] < 12  # it resumed rather than started again


@pytest.mark.slow
def test_a_failing_cell_is_recorded_and_the_suite_continues(tmp_path):
    out = tmp_path / "out"
    plan = plan_file(tmp_path, algorithms=["ppo"], games=["NoSuchGame-v0", "CartPole-v1"])
    done = rlcluster("suite", plan, "--output-dir", out)
    assert done.returncode == 1
    failed, finished = json.loads((out / "suite.json").read_text())["cells"]
    assert (failed["state"], finished["state"]) == ("failed", "finished")
    assert "NoSuchGame" in failed["error"]
    assert "NoSuchGame" in (out / "comparison.html").read_text()
    assert "NoSuchGame" in (out / "logs" / "ppo_sequential_NoSuchGame-v0_seed1.log").read_text()


@pytest.mark.slow
def test_two_suites_cannot_share_a_folder(tmp_path):
    out = tmp_path / "out"
    plan = plan_file(tmp_path, budget={"duration": "60s"})
    process = start(out, command("suite", plan, "--output-dir", out), until="runs/*/config.yaml")
    try:
        second = rlcluster("suite", plan, "--output-dir", out)
        assert second.returncode == 2
        assert "is being written by another process" in second.stderr
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
