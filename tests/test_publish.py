"""scripts/publish.py and scripts/results.py: from run directories to published data, a picture and tables."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from rlcluster.reports.published import published_methods
from rlcluster.runs.reader import read_run
from rlcluster.runs.status import RunState

from conftest import FAST_RECIPE, evaluation_of, publish_runs, rlcluster, write_run

SCRIPTS = Path(__file__).parents[1] / "scripts"
REWARDS = [k / 150 for k in range(1500)]  # 1.5 million steps, up to 10


def script(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


publish, results = script("publish"), script("results")


def run_at(path: Path, steps: int = 1_500_000, **flags: str) -> Path:
    chosen = {**FAST_RECIPE, "mode": "parallel", **{key.replace("__", "."): value for key, value in flags.items()}}
    evaluation = evaluation_of(8.0, 9.0, episodes=300, steps=steps)
    return write_run(path, chosen, REWARDS[: steps // 1000], evaluation=evaluation)


def test_a_run_is_published_under_the_name_of_its_recipe(tmp_path, capsys):
    run, folder = run_at(tmp_path / "run", env__seed="3"), tmp_path / "published"
    assert publish.main([str(run), "--folder", str(folder)]) == 0
    assert "ppo_fast coinrun seed 3: 1,500,000 steps, finished, evaluated, times of a quiet" in capsys.readouterr().out
    (method,) = published_methods(folder)
    (entry,) = method.runs
    assert (method.name, entry.game, entry.seed, entry.steps) == ("ppo_fast", "coinrun", 3, 1_500_000)
    assert entry.is_complete
    assert len(entry.curve.steps) == 60
    assert entry.curve.episodes.sum() == 10 * 1500
    assert entry.score_at(1.5e6) == pytest.approx(sum(REWARDS[-100:]) / 100, abs=1e-3)
    assert entry.evaluation == {"train": (9.0, 8.5, 9.5, 300), "test": (8.0, 7.5, 8.5, 300)}
    assert entry.machine == {"cpu_model": "a processor", "cores": 2, "versions": {"torch": "2"}, "git_commit": "abc"}
    assert read_run(run).warnings == []  # and the run is as it was


def test_a_run_replaces_the_published_one_of_the_same_game_and_seed(tmp_path, capsys):
    folder = tmp_path / "published"
    short = write_run(
        tmp_path / "short",
        {**FAST_RECIPE, "env.seed": "1"},
        REWARDS[:900],
        state=RunState("preempted", 900_000, 900, "SIGTERM")._asdict(),
        summary=None,
    )
    others = [run_at(tmp_path / "two", env__seed="2"), run_at(tmp_path / "maze", env__name="maze", env__seed="1")]
    assert publish.main([str(short), *map(str, others), "--folder", str(folder)]) == 0
    (method,) = published_methods(folder)
    unfinished = method.of_game("coinrun")[0]
    assert (unfinished.state, unfinished.is_complete, unfinished.is_quiet) == ("preempted", False, False)
    assert unfinished.evaluation == {}
    capsys.readouterr()
    assert publish.main([str(run_at(tmp_path / "long", env__seed="1")), "--folder", str(folder)]) == 0
    assert capsys.readouterr().out.endswith("replaces 900,000 steps\n")
    (method,) = published_methods(folder)
    assert [(run.game, run.seed, run.steps) for run in method.runs] == [
        ("coinrun", 1, 1_500_000),
        ("coinrun", 2, 1_500_000),
        ("maze", 1, 1_500_000),
    ]


def test_runs_that_cannot_be_published_are_refused_in_one_line_each_and_nothing_is_written(tmp_path, capsys):
    runs = [
        run_at(tmp_path / "good"),
        run_at(tmp_path / "hard", env__distribution_mode="hard"),
        run_at(tmp_path / "other", training__gamma="0.9", training__n_epochs="2"),
        run_at(tmp_path / "small", policy__network="nature"),
        write_run(tmp_path / "cartpole", {"env.name": "CartPole-v1"}, REWARDS[:5]),
        write_run(tmp_path / "empty", {**FAST_RECIPE}, [None] * 5),
        tmp_path / "nowhere",
    ]
    assert publish.main([*map(str, runs), "--folder", str(tmp_path / "published")]) == 2
    hard, other, small, cartpole, empty, nowhere, last = capsys.readouterr().err.splitlines()
    assert "hard: coinrun (distribution_mode=hard) is not published" in hard
    assert "differs from the nearest, ppo_fast, in training.n_epochs=2 instead of 1, training.gamma=0.9 " in other
    assert "policy.network=nature instead of impala" in small
    assert "CartPole-v1 is not published" in cartpole
    assert "no episode has finished yet" in empty
    assert "there is no such run directory" in nowhere
    assert last == "nothing was published"
    assert not (tmp_path / "published").exists()


def test_a_recipe_that_has_changed_since_is_refused(tmp_path, capsys):
    folder = tmp_path / "published"
    publish_runs(folder, "ppo_fast", {("coinrun", 1): 7.0}, **{"training.gamma": "0.99"})
    before = (folder / "ppo_fast.json").read_bytes()
    assert publish.main([str(run_at(tmp_path / "run")), "--folder", str(folder)]) == 2
    assert "ppo_fast is published with other settings: training.gamma=0.999 instead of 0.99" in capsys.readouterr().err
    assert (folder / "ppo_fast.json").read_bytes() == before


def test_the_tables_show_scores_minutes_and_what_is_missing(tmp_path, capsys):
    folder, picture = tmp_path / "published", tmp_path / "learning.png"
    publish_runs(folder, "ppo_fast", {("coinrun", 1): 6.0, ("coinrun", 2): 8.0, ("coinrun", 3): 7.6, ("maze", 1): 6.0})
    publish_runs(folder, "ppo_paper", {("coinrun", 1): 6.0}, **{"training.n_epochs": "3"})
    half = run_at(tmp_path / "half", 780_000, env__name="starpilot")
    assert publish.main([str(half), "--folder", str(folder)]) == 0
    capsys.readouterr()
    assert results.main(["--folder", str(folder), "--picture", str(picture)]) == 0
    out = capsys.readouterr().out
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in reversed(out.splitlines()) if line[:2] == "| "}
    # Scores at the end are of slices 57 to 60 of 60: times 58.5 / 60. 1.5 M steps at 1,000 per second are 25 minutes.
    assert "| ppo_fast | 7.02 (5.85 to 7.80), 25 min | unfinished: 4.86 at 0.78 M steps, 13 min | missing |" in out
    assert "| ppo_paper | 5.85 (1 of 3 seeds), 25 min | missing | missing |" in out
    assert "| ppo_fast | 6.20 (5.00 to 7.00) | missing | missing |" in out  # on unseen levels
    assert "| impala | missing | missing | missing |" in out
    assert rows["maze"] == "| maze | 5.85, 25 min | 5.44 | 5.00 | 5.22 |"
    assert rows["heist"] == "| heist | missing | 3.63 | missing | 2.60 |"
    assert "2 cores of a processor" in out
    assert "In parentheses: lowest to highest seed." in out  # brackets are for intervals
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_times_of_a_busy_machine_are_marked_and_quiet_ones_are_preferred(tmp_path, capsys):
    folder = tmp_path / "published"
    publish_runs(folder, "ppo_fast", {("coinrun", 1): 6.0})
    busy = json.loads((run_at(tmp_path / "x") / "benchmark_metrics.json").read_text()) | {"background_load": 0.5}
    for seed, name in (("2", "coinrun"), ("1", "fruitbot")):
        flags = {**FAST_RECIPE, "mode": "parallel", "env.seed": seed, "env.name": name}
        run = write_run(tmp_path / f"{name}{seed}", flags, REWARDS, fps=500.0, summary=busy)
        assert publish.main([str(run), "--folder", str(folder)]) == 0
    capsys.readouterr()
    assert results.main(["--folder", str(folder), "--picture", str(tmp_path / "learning.svg")]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| ppo_fast"))
    assert row.split(" | ")[1].endswith("(5.85 to 9.66, 2 of 3 seeds), 25 min")
    assert row.endswith(r"50 min \* |")


def test_a_picture_of_a_game_without_runs_is_refused(tmp_path, capsys):
    arguments = ["--folder", str(tmp_path), "--game", "maze", "--picture", str(tmp_path / "learning.png")]
    assert results.main(arguments) == 2
    assert "--game maze: nothing is published for it" in capsys.readouterr().err


@pytest.mark.slow
def test_the_run_of_a_real_suite_can_be_published(tmp_path):
    plan = {
        **{"recipes": {"tiny": {"algorithm": "ppo"}}, "modes": ["sequential"], "games": ["starpilot"], "seeds": [1]},
        **{"budget": {"total_timesteps": 4096}, "evaluation": {"num_episodes": 2}},
        "settings": {
            "env": {"num_envs": 8},
            "training": {"n_steps": 64, "n_minibatches": 2, "n_epochs": 1},
            "policy": {"network": "nature"},
            "hardware": {"num_threads": 1},
        },
    }
    suite, folder = tmp_path / "suite.yaml", tmp_path / "published"
    suite.write_text(yaml.safe_dump(plan))
    done = rlcluster("suite", suite, "--output-dir", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "out" / "runs").iterdir()
    assert publish.main([str(path), "--folder", str(folder), "--suite", str(suite)]) == 0
    (method,) = published_methods(folder)
    (entry,), recorded = method.runs, read_run(path)
    assert (method.name, entry.game, entry.seed, entry.steps) == ("tiny", "starpilot", 1, 4096)
    assert entry.state == "finished"
    assert entry.curve.episodes.sum() == recorded.metrics["episode_count"].sum()
    assert entry.evaluation["test"].mean == pytest.approx(recorded.evaluation.results["test"]["reward_mean"], abs=1e-3)
    assert entry.machine["git_commit"] == recorded.machine["git_commit"]
