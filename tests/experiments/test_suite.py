"""`rlcluster suite`: the plan, refused input, and real cells: finished, interrupted, failed, retried."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlcluster.experiments.side_by_side import partition_cores, run_side_by_side
from rlcluster.experiments.suite import Part, suite_command
from rlcluster.experiments.suite_outcomes import Share, sharing_notes
from rlcluster.experiments.suite_plan import planned_cores, read_suite
from rlcluster.runs.status import acquire_lock
from rlcluster.settings.loading import load_settings
from rlcluster.settings.resume import resume_differences
from rlcluster.system import cores
from rlcluster.system.cores import Core, Cores
from rlcluster.system.errors import UserError

from conftest import command, rlcluster, start, write_run

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


CONFIGS = Path(__file__).parents[2] / "configs"
EIGHT_CORES = Cores(8, tuple(Core(k, k) for k in range(8)))


def plan_file(folder: Path, **changes: Any) -> Path:
    file = folder / "tiny.yaml"
    file.write_text(yaml.safe_dump({key: value for key, value in {**TINY, **changes}.items() if value is not None}))
    return file


def refusal(folder: Path, **changes: Any) -> str:
    with pytest.raises(UserError) as caught:
        read_suite(plan_file(folder, **changes))
    return str(caught.value)


# The report of tasks


def outcome(folder: Path, name: str, state: str = "finished", **share: int) -> None:
    content = {"name": name, "state": state, "train_seconds": 1.0, "evaluate_seconds": 0.0, "error": None, **share}
    (folder / "cells" / f"{name}.json").write_text(json.dumps(content))


def test_a_report_is_written_while_tasks_run_and_again_if_one_ends_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, (first, second) = (
        tmp_path / "suite",
        ["ppo_sequential_CartPole-v1_seed1", "a2c_sequential_CartPole-v1_seed1"],
    )
    (folder / "cells").mkdir(parents=True)
    write_run(folder / "runs" / first, {"env.name": "CartPole-v1"}, [1.0, 2.0])
    outcome(folder, first)
    reported = []

    def write(comparison: Any, *_: object) -> None:
        """In the time that the first report takes, the second cell ends."""
        reported.append([run.path.name for run in comparison.runs])
        if len(reported) == 1:
            write_run(folder / "runs" / second, {"env.name": "CartPole-v1", "algorithm": "a2c"}, [1.0, 2.0])
            outcome(folder, second)

    monkeypatch.setattr("rlcluster.experiments.suite_report.write", write)
    task = acquire_lock(folder, shared=True)
    assert suite_command(plan_file(tmp_path), folder, Part(report_only=True)) == 0
    os.close(task)
    assert reported == [[first], [first, second]]
    assert {cell["name"] for cell in json.loads((folder / "suite.json").read_text())["cells"]} == {first, second}


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
    assert planned_cores(one.settings, EIGHT_CORES) == 1
    assert planned_cores(four.settings, EIGHT_CORES) == 4
    assert one.settings.training.duration == pytest.approx(1800)
    assert four.settings.training.duration == pytest.approx(450)


def test_planned_cores_include_the_threads_that_training_will_choose(tmp_path, monkeypatch):
    monkeypatch.setattr(cores, "observe", lambda: EIGHT_CORES)
    changes = {
        **{"algorithms": ["ppo"], "modes": ["parallel"], "budget": {"core_hours": 1}},
        "settings": {"env": {"num_envs": 8}, "training": {"n_steps": 16}, "parallel": {"num_workers": 4}},
    }
    (cell,) = read_suite(plan_file(tmp_path, **changes)).cells
    assert planned_cores(cell.settings, EIGHT_CORES) == 4 * 2


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
    names = [cell.name for cell in read_suite(plan_file(tmp_path, games=["gymnasium.envs:CartPole-v1"])).cells]
    assert names[0] == "ppo_sequential_gymnasium.envs-CartPole-v1_seed1"


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
    assert "colour: unknown; known here: algorithms, recipes, modes, games, seeds, budget," in text


def test_an_invalid_value_in_a_list_is_one_problem(tmp_path):
    assert "problems" not in refusal(tmp_path, seeds=["a"])


def test_a_setting_without_effect_is_reported_with_its_algorithm_and_mode(tmp_path):
    text = refusal(tmp_path, settings={"training": {"n_epochs": 2, "n_steps": 16}, "env": {"num_envs": 4}})
    assert text.endswith("a2c sequential: training.n_epochs=2 has no effect with a2c; remove it")
    assert "\n" not in text


def test_cells_that_would_fail_are_all_named_before_the_first_one_starts(tmp_path):
    changes = {
        "games": ["CartPole-v1", "coinrun", "NoSuchGame-v0"],
        "seeds": [1, 2],
        "algorithm_settings": {"a2c": {"policy": {"network": "nature"}}, "ppo": {"training": {"batch_size": 32}}},
    }
    text = refusal(tmp_path, **changes)
    assert "a2c sequential CartPole-v1: policy.network=nature needs images" in text
    assert "ppo sequential NoSuchGame-v0: " in text
    assert "sequential coinrun" not in text  # it would run
    assert text.count("CartPole-v1: ") == 1  # once, not for each seed


def test_a_budget_may_be_a_score_with_a_limit(tmp_path):
    (cell,) = read_suite(plan_file(tmp_path, algorithms=["ppo"], budget={"score": 475, "duration": "5s"})).cells
    assert (cell.settings.training.target_reward, cell.settings.training.duration) == (475.0, 5.0)
    assert "budget: give one of total_timesteps, duration, core_hours as the limit; it has none" in refusal(
        tmp_path, budget={"score": 475}
    )


# Side by side


def test_cores_are_partitioned_by_physical_cores():
    threads = tuple(Core(k, k % 4) for k in (0, 1, 2, 3, 4, 5, 6, 7))  # 4 physical cores with two threads each
    first, second = partition_cores(Cores(8, threads), 2)
    assert (sorted(first.numbers), sorted(second.numbers)) == ([0, 1, 4, 5], [2, 3, 6, 7])
    assert first.numbers[:2] == (0, 1)  # first threads first
    assert partition_cores(EIGHT_CORES, 1) == [EIGHT_CORES]
    assert [lane.allowed for lane in partition_cores(EIGHT_CORES, 3)] == [2, 3, 3]


def test_more_jobs_than_physical_cores_are_refused():
    with pytest.raises(UserError, match=r"--jobs 9: this process may use 8 physical cores.*use --jobs 8"):
        partition_cores(EIGHT_CORES, 9)


def test_a_quota_limits_the_cores_that_are_partitioned():
    quota = Cores(2, EIGHT_CORES.affinity)
    assert [lane.numbers for lane in partition_cores(quota, 2)] == [(0,), (1,)]


def test_every_item_is_worked_on_once_by_threads_with_cores_of_their_own():
    own = cores.observe()
    lanes = partition_cores(own, min(2, own.physical))
    seen: list[tuple[int, frozenset[int]]] = []
    run_side_by_side(
        range(20), lanes, lambda item: seen.append((item, frozenset(os.sched_getaffinity(0)))), lambda: None
    )
    assert sorted(item for item, _ in seen) == list(range(20))
    assert {used for _, used in seen} <= {frozenset(lane.numbers) for lane in lanes}
    assert frozenset(os.sched_getaffinity(0)) == frozenset(own.numbers)  # the thread that waits keeps its own


def test_an_error_in_a_lane_reaches_the_caller():
    def fail(item: int) -> None:
        raise OSError(f"disk full at {item}")

    with pytest.raises(OSError, match="disk full at 0"):
        run_side_by_side(range(3), [EIGHT_CORES], fail, lambda: None)


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


# Recipes

TWO_PPOS: dict[str, Any] = {
    "algorithms": None,
    "algorithm_settings": None,
    "recipes": {
        "ppo_fast": {"algorithm": "ppo", "config": "fast.yaml"},
        "ppo_slow": {"algorithm": "ppo", "settings": {"training": {"n_epochs": 3, "n_minibatches": 2}}},
    },
}
FAST = {
    "env": {"name": "maze", "seed": 7},
    "training": {"total_timesteps": 25e6, "n_epochs": 1, "n_minibatches": 8, "gamma": 0.9},
}


def with_config(folder: Path, content: dict[str, Any]) -> Path:
    (folder / "fast.yaml").write_text(yaml.safe_dump(content))
    return folder


def test_a_suite_holds_several_recipes_of_one_algorithm(tmp_path):
    cells = read_suite(plan_file(with_config(tmp_path, FAST), **TWO_PPOS, seeds=[1, 2])).cells
    assert [cell.name for cell in cells[:3]] == [
        "ppo_fast_sequential_CartPole-v1_seed1",
        "ppo_slow_sequential_CartPole-v1_seed1",
        "ppo_fast_sequential_CartPole-v1_seed2",
    ]
    assert [cell.method for cell in cells] == ["ppo_fast", "ppo_slow"] * 2
    fast, slow = (cell.settings for cell in cells[:2])
    assert (fast.n_epochs, fast.num_minibatches, fast.training.gamma) == (1, 8, 0.9)
    assert (slow.n_epochs, slow.num_minibatches, slow.training.gamma) == (3, 2, 0.999)


def test_games_seeds_and_budget_of_the_plan_replace_those_of_a_recipes_file(tmp_path):
    settings = read_suite(plan_file(with_config(tmp_path, FAST), **TWO_PPOS)).cells[0].settings
    assert (settings.env.name, settings.env.seed, settings.training.total_timesteps) == ("CartPole-v1", 1, 512)


def test_what_the_suite_says_overrides_a_recipes_file_and_the_more_specific_wins(tmp_path):
    recipe = {"algorithm": "ppo", "config": "fast.yaml", "settings": {"training": {"gae_lambda": 0.5}}}
    changes = {
        **TWO_PPOS,
        "recipes": {"fast": recipe},
        "settings": {"env": {"num_envs": 4}, "training": {"n_steps": 16, "gamma": 0.8, "gae_lambda": 0.7}},
        "algorithm_settings": {"ppo": {"training": {"gae_lambda": 0.6, "n_epochs": 2}}},
    }
    (cell,) = read_suite(plan_file(with_config(tmp_path, FAST), **changes)).cells
    training = cell.settings.training
    assert (training.gamma, training.n_epochs, training.gae_lambda) == (0.8, 2, 0.5)


def test_a_recipe_may_have_modes_of_its_own_and_methods_then_name_them(tmp_path):
    changes = {"algorithms": ["ppo"], "recipes": {"a2c": {"modes": ["sequential", "parallel"]}}}
    suite = read_suite(plan_file(tmp_path, **changes))
    assert suite.methods == ["ppo_sequential", "a2c_sequential", "a2c_parallel"]
    assert [cell.name for cell in suite.cells] == [f"{method}_CartPole-v1_seed1" for method in suite.methods]


def test_the_algorithm_of_a_recipe_comes_from_its_file_or_its_name(tmp_path):
    changes = {**TWO_PPOS, "recipes": {"plain": {"config": "fast.yaml"}, "a2c": {}}}
    suite = read_suite(plan_file(with_config(tmp_path, {"algorithm": "a2c", "mode": "parallel"}), **changes))
    assert [cell.settings.run_name for cell in suite.cells] == ["a2c_sequential", "a2c_sequential"]


def test_a_recipe_may_be_a_name_alone(tmp_path):
    file = tmp_path / "suite.yaml"
    file.write_text("recipes:\n  a2c:\n  a3c: null\nmodes: parallel\ngames: maze\nbudget: {total_timesteps: 1e3}\n")
    assert read_suite(file).methods == ["a2c", "a3c"]


def test_all_problems_of_recipes_are_reported_at_once(tmp_path):
    recipes = {
        "nameless": {"settings": {"training": {"gamma": 0.9}}},
        "impala": {"algorithm": "ppo"},
        "missing": {"algorithm": "ppo", "config": "fats.yaml"},
        "a b": {"algorithm": "ppo"},
        "stored": {"algorithm": "ppo", "config": "stored.yaml"},
        "seeded": {"algorithm": "ppo", "settings": {"env": {"seed": 3}}},
        "ppo": {},
        "wrong": {"algorithm": "ppo", "settings": {"training": {"gama": 0.9}}},
    }
    (tmp_path / "stored.yaml").write_text("output: {log_dir: x}")
    text = refusal(with_config(tmp_path, FAST), algorithms=["ppo"], recipes=recipes)
    assert "8 problems:" in text
    assert "algorithms and recipes: ppo is listed twice" in text
    assert "recipes.nameless.algorithm: give one of ppo, a2c, impala, a3c" in text
    assert "recipes.impala: which algorithm? recipes.impala.algorithm says ppo, its name says impala" in text
    assert "fats.yaml: there is no such file; did you mean fast.yaml?" in text
    assert "recipes.a b: the name becomes part of file names" in text
    assert "recipes.stored.config=stored.yaml: has output.log_dir" in text
    assert "recipes.seeded.settings.env.seed: set by seeds; leave it out" in text
    assert "wrong sequential: training.gama: unknown setting; did you mean training.gamma?" in text


def test_an_unknown_key_of_a_recipe_is_refused_with_a_suggestion(tmp_path):
    text = refusal(tmp_path, recipes={"fast": {"algoritm": "ppo"}, "slow": "ppo"})
    assert "recipes.fast.algoritm: unknown; did you mean recipes.fast.algorithm?" in text
    assert "recipes.slow=ppo: should be a block with one or more of algorithm, config, settings, modes" in text


def test_a_pattern_chooses_cells_and_one_without_a_match_lists_them(tmp_path):
    suite = read_suite(plan_file(tmp_path, seeds=[1, 2, 3]))
    assert [cell.name for cell in suite.matching("ppo.*seed[13]")] == [
        "ppo_sequential_CartPole-v1_seed1",
        "ppo_sequential_CartPole-v1_seed3",
    ]
    assert suite.matching(None) == suite.cells
    with pytest.raises(
        UserError, match=r"--only maze: matches none of the cells:\n  ppo_sequential_CartPole-v1_seed1\n"
    ):
        suite.matching("maze")
    with pytest.raises(UserError, match=r"--only \(: not a regular expression"):
        suite.matching("(")


def test_the_published_suites_are_the_shipped_recipes():
    suite = read_suite(CONFIGS / "suite_procgen.yaml")
    assert suite.methods == ["ppo_fast", "ppo_paper", "impala", "a2c", "a3c"]
    assert len(suite.cells) == 5 * 3 * 3
    assert {cell.settings.env.seed for cell in suite.cells[:15]} == {1}  # every method and game with seed 1 comes first
    assert {cell.settings.training.total_timesteps for cell in suite.cells} == {1_500_000}
    everywhere = read_suite(CONFIGS / "suite_procgen16.yaml")
    assert (len(everywhere.cells), everywhere.methods) == (16, ["ppo_fast"])
    for file, method in (("ppo_procgen_fast", "ppo_fast"), ("ppo_procgen", "ppo_paper"), ("a3c_parallel", "a3c")):
        alone = load_settings(file=CONFIGS / f"{file}.yaml", flags={"env.name": "coinrun", "env.seed": "1"})
        cell = next(cell for cell in suite.cells if cell.method == method)
        assert resume_differences(alone, cell.settings) == []


# Real cells


@pytest.mark.slow
def test_a_suite_of_recipes_can_be_run_in_parts_and_its_report_calls_methods_by_their_names(tmp_path):
    out = tmp_path / "out"
    arguments = ("suite", plan_file(with_config(tmp_path, FAST), **TWO_PPOS), "--output-dir", out)
    first = rlcluster(*arguments, "--only", "ppo_slow")
    assert first.returncode == 0, first.stderr
    assert "ppo_fast ppo_slow × CartPole-v1 × 1 seed = 2 cells; of these 1, 0 done" in first.stdout
    assert "missing" not in first.stderr
    assert rlcluster(*arguments).returncode == 0
    data = json.loads((out / "comparison.json").read_text())
    assert [run["method"] for run in data["runs"]] == ["ppo_fast", "ppo_slow"]
    assert set(data["scores"]["methods"]) == {"ppo_fast", "ppo_slow"}


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
    nowhere = {"hardware": {"rollout_dir": str(tmp_path / "nowhere")}}
    changes = {"ppo": {"training": {"batch_size": 32}, **nowhere}}
    done = rlcluster("suite", plan_file(tmp_path, algorithm_settings=changes), "--output-dir", out)
    assert done.returncode == 1
    failed, finished = json.loads((out / "suite.json").read_text())["cells"]
    assert (failed["state"], finished["state"]) == ("failed", "finished")
    assert "rollout_dir" in failed["error"]
    assert (out / "comparison.html").read_text().count("is not a writable folder") == 1  # named once
    assert "rollout_dir" in (out / "logs" / "ppo_sequential_CartPole-v1_seed1.log").read_text()


@pytest.mark.slow
def test_cells_side_by_side_finish_and_are_marked_as_such(tmp_path):
    if cores.observe().physical < 2:
        pytest.skip("needs two physical cores")
    out = tmp_path / "out"
    done = rlcluster("suite", plan_file(tmp_path, seeds=[1, 2]), "--output-dir", out, "--jobs", 2, "--watch")
    assert done.returncode == 0, done.stderr
    state = json.loads((out / "suite.json").read_text())
    assert (state["jobs"], [cell["state"] for cell in state["cells"]]) == (2, ["finished"] * 4)
    note = "all cells ran as 2 cells side by side, each on"
    assert note in (out / "comparison.html").read_text()
    machines = [json.loads(file.read_text())["cores_allowed"] for file in out.glob("runs/*/machine.json")]
    assert max(machines) <= cores.observe().allowed // 2
    assert (out / "comparison.tex").exists()
    (out / "comparison.html").unlink()
    plan = tmp_path / "tiny.yaml"
    for arguments in (["--report-only"], []):  # also where nothing is left to do
        assert rlcluster("suite", plan, "--output-dir", out, *arguments).returncode == 0
        assert note in (out / "comparison.html").read_text()
        assert json.loads((out / "suite.json").read_text())["jobs"] == 2


def test_cells_that_ran_side_by_side_are_marked_by_every_later_report(tmp_path, capsys):
    folder = tmp_path / "suite"
    (folder / "cells").mkdir(parents=True)
    for name in ("ppo", "a2c"):
        cell = f"{name}_sequential_CartPole-v1_seed1"
        write_run(folder / "runs" / cell, {"env.name": "CartPole-v1", "algorithm": name}, [1.0, 2.0])
        outcome(folder, cell, **({"num_jobs": 2, "num_cores": 1} if name == "ppo" else {}))
    assert suite_command(plan_file(tmp_path), folder, Part(report_only=True)) == 0
    note = "ppo_sequential_CartPole-v1_seed1 ran as 2 cells side by side, each on 1 core of its own"
    assert note in capsys.readouterr().err
    assert note in (folder / "comparison.html").read_text()
    assert json.loads((folder / "suite.json").read_text())["jobs"] == 2


def test_notes_name_the_cells_that_shared_a_machine_in_the_same_way():
    shares = {"a": Share(2, 1), "b": Share(2, 1), "c": Share(1, 2), "d": Share(4, None)}
    first, second = sharing_notes(shares, 4)
    assert first.startswith("a, b ran as 2 cells side by side, each on 1 core of its own: ")
    assert second.startswith("d ran as 4 cells side by side, each on cores of its own: ")
    assert sharing_notes({"a": Share(2, 3)}, 1)[0].startswith("all cells ran as 2 cells side by side, each on 3 cores")
    (many,) = sharing_notes({f"{k}": Share(2, 1) for k in range(6)}, 7)
    assert many.startswith("0 and 5 other cells ran as")


@pytest.mark.slow
def test_a_cell_ends_when_it_reaches_its_score(tmp_path):
    out = tmp_path / "out"
    budget = {"score": 15, "total_timesteps": 100_000}  # a random policy balances for 20 steps
    plan = plan_file(tmp_path, algorithms=["ppo"], budget=budget, evaluation={"num_episodes": 0})
    assert rlcluster("suite", plan, "--output-dir", out).returncode == 0
    summary = json.loads((out / "runs" / "ppo_sequential_CartPole-v1_seed1" / "benchmark_metrics.json").read_text())
    assert summary["final_reward"] >= 15
    assert summary["total_timesteps"] < 20_000


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
