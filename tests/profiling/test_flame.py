"""The flame graph of one rank: which stacks it takes, how wide it draws them, and py-spy itself."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rlcluster.experiments.flame import find_py_spy, record_flame, sampled_settings
from rlcluster.profiling.flame import Stack, flame_graph, read_stacks, training_of
from rlcluster.settings.loading import load_settings
from rlcluster.system.errors import UserError

from conftest import CARTPOLE, flags, rlcluster

COMMAND, RANK = "python -m rlcluster train", "python -c from multiprocessing.spawn import spawn_main; spawn_main(x=1)"
LOOP = "_train (rlcluster/training/train.py);run (rlcluster/training/loop.py)"
RAW = f"""process 7:"{COMMAND}";main (rlcluster/cli.py) 5
process 7:"{COMMAND}";process 9:"{RANK}";{LOOP};Training.update (rlcluster/training/loop.py);mul (torch/a.py) 6
process 7:"{COMMAND}";process 9:"{RANK}";{LOOP};Training.update (rlcluster/training/loop.py) 2
process 7:"{COMMAND}";process 9:"{RANK}";{LOOP};_construct (rlcluster/training/loop.py);make (gym/b.py) 50
process 7:"{COMMAND}";process 9:"{RANK}";<module> (torch/__init__.py) 30
process 7:"{COMMAND}";process 11:"{RANK}";{LOOP};Training.update (rlcluster/training/loop.py) 40
process 7:"{COMMAND}";process 9:"{RANK}";process 12:"{RANK}";serve (rlcluster/training/helpers.py) 3
"""


def test_only_the_loop_of_the_first_process_at_its_depth_is_drawn() -> None:
    run, update = "run (rlcluster/training/loop.py)", "Training.update (rlcluster/training/loop.py)"
    stacks = read_stacks(RAW)
    assert training_of(stacks, 2) == [
        Stack((7, 9), (run, update, "mul (torch/a.py)"), 6),
        Stack((7, 9), (run, update), 2),
    ]
    assert training_of(stacks, 3) == [Stack((7, 9, 12), ("serve (rlcluster/training/helpers.py)",), 3)]
    assert training_of(stacks, 1) == []


def test_widths_are_in_proportion_to_samples_and_names_are_escaped() -> None:
    stacks = [Stack((1,), ("run (x)", "<lambda> (torch/a.py)"), 3), Stack((1,), ("run (x)", "b (rlcluster/b.py)"), 1)]
    root = ElementTree.fromstring(flame_graph(stacks, "a & b", 25))
    rectangles = root.findall(".//{http://www.w3.org/2000/svg}rect")
    assert [float(one.attrib["width"]) for one in rectangles] == [1180.0, 885.0, 295.0]
    assert [float(one.attrib["x"]) for one in rectangles] == [10.0, 10.0, 895.0]
    assert [one.attrib["class"] for one in rectangles] == ["other", "torch", "ours"]
    titles = [one.text for one in root.findall(".//{http://www.w3.org/2000/svg}title")]
    assert titles[1] == "<lambda> (torch/a.py): 3 samples, 75.0%"


def test_the_sampled_run_reports_to_nobody_and_writes_nowhere_else(tmp_path: Path) -> None:
    given = {"output.checkpoint_dir": str(tmp_path), "output.loggers": "tensorboard", "output.profile": "3"}
    sampled = sampled_settings(load_settings("ppo", "parallel", None, {**given, "training.total_updates": "9"}))
    assert (sampled.training.total_updates, sampled.training.duration) == (None, 20.0)
    assert (sampled.output.checkpoint_dir, sampled.output.loggers, sampled.output.profile) == (None, (), None)


def test_a_missing_py_spy_and_a_launcher_are_one_line_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"^--flame needs py-spy: pip install 'rl-cluster-benchmark\[flame\]'"):
        find_py_spy()
    for name, value in {"RANK": 0, "WORLD_SIZE": 4, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 4}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(UserError, match="a launcher has started 4 ranks; leave it out"):
        find_py_spy()


@pytest.fixture
def py_spy() -> Path:
    try:
        return find_py_spy()
    except UserError as error:
        assert "CI" not in os.environ, f"py-spy is missing in CI: {error}"
        pytest.skip(str(error))


@pytest.mark.slow
def test_a_profile_with_a_flame_graph_shows_what_rank_0_did_in_python(py_spy: Path, tmp_path: Path) -> None:
    options = {key: value for key, value in CARTPOLE.items() if key != "--checkpoint-updates"}
    more = ("--mode", "parallel", "--num-workers", "2", "--updates", "2", "--flame")
    result = rlcluster("profile", "ppo", *flags(options), *more, "--output", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    graph = (tmp_path / "run" / "flame.svg").read_text()
    assert "ppo on CartPole-v1, parallel: Python in rank 0" in graph
    assert "Learner.learn (rlcluster/learning/learner.py)" in graph
    assert "Synchronous.update" in graph
    assert "_construct" not in graph
    (samples,) = re.findall(r"(\d+) samples, 25 a second", graph)
    assert int(samples) > 20
    assert (tmp_path / "run" / "profile.html").exists()


def test_a_sampled_run_that_fails_is_one_line(py_spy: Path, tmp_path: Path) -> None:
    settings = load_settings("ppo", "sequential", None, {"env.name": "CartPole-v1"})
    broken = settings.model_copy(update={"env": settings.env.model_copy(update={"name": "Nowhere-v0"})})
    with pytest.raises(UserError, match=r"--flame: the sampled run failed: .*Nowhere"):
        record_flame(tmp_path, broken, py_spy)
