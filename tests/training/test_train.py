"""Whole runs through the real command: their files, their end, their resumption."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from rlcluster.exchange.ranks import Ranks
from rlcluster.plan import Plan
from rlcluster.runs.checkpoint import load_checkpoint
from rlcluster.runs.fields import FIELDS
from rlcluster.runs.status import read_state
from rlcluster.settings.algorithms import ALGORITHMS
from rlcluster.settings.loading import load_settings
from rlcluster.system.errors import UserError
from rlcluster.system.signals import StopRequest
from rlcluster.training import planning
from rlcluster.training import train as train_module
from rlcluster.training.callbacks import Silent

from conftest import CARTPOLE, COINRUN, command, flags, metrics, rlcluster, start, train

ENDLESS = {"--total-updates": 100_000}
SUMMARY = [
    *("algorithm", "mode", "env", "network", "num_envs", "world_size", "num_workers", "num_threads", "num_cores"),
    *("duration_seconds", "total_timesteps", "total_updates", "total_episodes", "average_fps", "final_fps"),
    *("initial_reward", "final_reward", "best_reward", "peak_memory_gb", "timesteps_per_hour"),
    *("kernels", "background_load"),
]


def options_for(name: str, algorithm: str) -> dict[str, Any]:
    options = dict(CARTPOLE if name == "cartpole" else COINRUN)
    if name.endswith("impala"):
        options["--network"] = "impala"
    return {**options, "--n-minibatches": 2, "--n-epochs": 2} if algorithm == "ppo" else options


def final_parameters(run: Path, algorithm: str) -> dict[str, torch.Tensor]:
    return load_checkpoint(run / "checkpoints" / f"{algorithm}_sequential_final.pt").content["learner"]["parameters"]


def start_training(
    algorithm: str, run: Path, options: dict[str, Any], until: str, **streams: int
) -> subprocess.Popen[str]:
    return start(run, command("train", algorithm, "--output-dir", run, *flags(options)), until, **streams)


@pytest.mark.parametrize(
    ("algorithm", "mode"), [(name, mode) for name, record in ALGORITHMS.items() for mode in record.cells]
)
def test_every_cell_of_the_table_trains_and_leaves_the_promised_files(
    algorithm: str, mode: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    options = {**options_for("cartpole", algorithm), "--mode": mode, "--total-updates": 5, "--keep-checkpoints": 1}
    result = train(algorithm, run, options)
    assert result.returncode == 0, result.stderr
    assert "TRAINING SUMMARY" in result.stdout
    name, log_name = f"{algorithm}_{mode}", f"{algorithm.upper()}_{mode.capitalize()}"
    paths = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    # When the workers of A3C come to rest, one may have made an update more.
    files = {re.sub(r"_step_\d+", "_step_512", path) for path in paths} if algorithm == "a3c" else paths
    events = {name for name in files if "events.out.tfevents" in name}
    assert files - events == {
        "config.yaml",
        "machine.json",
        "plan.json",
        "run_state.json",
        "benchmark_metrics.json",
        f"checkpoints/{name}_step_{4 * 4 * 32}.pt",
        f"checkpoints/{name}_final.pt",
        f"logs/{log_name}/metrics.jsonl",
    }
    assert len(events) == 1
    records = [json.loads(line) for line in (run / "logs" / log_name / "metrics.jsonl").read_text().splitlines()]
    assert [record["update"] for record in records] == [1, 2, 3, 4, 5]
    helpers = ALGORITHMS[algorithm].helpers_in(mode)
    absent = {None: ("impala", "a3c"), "actors": ("a3c",), "workers": ("impala",)}[helpers]
    of_ranks = {"rank_fps_min", "rank_fps_max", "rank_slowest"} if records[0]["world_size"] == 1 else set()
    assert records[0].keys() == {field.name for field in FIELDS if field.producer not in absent} - of_ranks
    assert Plan.from_dict(json.loads((run / "plan.json").read_text())).mode == mode
    summary = json.loads((run / "benchmark_metrics.json").read_text())
    assert list(summary) == SUMMARY
    assert summary["total_updates"] == 5
    assert summary["total_timesteps"] == 5 * 4 * 32 or (algorithm == "a3c" and summary["total_timesteps"] > 5 * 4 * 32)


def test_the_resolved_config_runs_again_to_the_same_result(tmp_path: Path) -> None:
    train("ppo", tmp_path / "one", {**options_for("cartpole", "ppo"), "--total-updates": 3})
    config = yaml.safe_load((tmp_path / "one/config.yaml").read_text())
    assert config["policy"]["network"] == "mlp"
    result = rlcluster("train", "--config", tmp_path / "one/config.yaml", "--output-dir", tmp_path / "two")
    assert result.returncode == 0, result.stderr
    assert metrics(tmp_path / "one") == metrics(tmp_path / "two")


def test_rollouts_on_a_mapped_file_change_nothing_and_leave_nothing(tmp_path: Path) -> None:
    options = {**options_for("cartpole", "ppo"), "--total-updates": 3}
    (tmp_path / "large_disk").mkdir()
    for name, more in (("memory", {}), ("file", {"--rollout-dir": tmp_path / "large_disk"})):
        result = train("ppo", tmp_path / name, {**options, **more})
        assert result.returncode == 0, result.stderr
    assert metrics(tmp_path / "file") == metrics(tmp_path / "memory")
    assert not list((tmp_path / "large_disk").iterdir())
    refused = train("ppo", tmp_path / "refused", {**options, "--rollout-dir": tmp_path / "nowhere"})
    assert refused.returncode == 74
    assert "nowhere is not a writable folder; create it first" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "refused").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "algorithm"),
    [("cartpole", "ppo"), ("cartpole", "a2c"), ("coinrun", "ppo"), ("coinrun", "a2c"), ("coinrun impala", "ppo")],
)
def test_a_killed_and_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    name: str, algorithm: str, tmp_path: Path
) -> None:
    options = options_for(name, algorithm)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    process = start_training(algorithm, broken, {**options, **ENDLESS}, until="checkpoints/*_step_*.pt")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    resumed_from = max(int(path.stem.rsplit("_", 1)[1]) for path in broken.glob("checkpoints/*_step_*.pt"))
    rollout = options["--num-envs"] * options["--n-steps"]
    updates = 2 * resumed_from // rollout
    resumed = rlcluster("train", algorithm, "--resume", "--output-dir", broken, "--total-updates", str(updates))
    assert resumed.returncode == 0, resumed.stderr
    assert f"resuming at update {updates // 2}" in resumed.stdout
    assert train(algorithm, whole, {**options, "--total-updates": updates}).returncode == 0
    assert metrics(broken) == metrics(whole)
    ours, theirs = final_parameters(broken, algorithm), final_parameters(whole, algorithm)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_finishes_the_update_saves_and_says_how_to_resume(
    number: signal.Signals, exit_code: int, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    options = {**options_for("cartpole", "ppo"), **ENDLESS, "--checkpoint-updates": 1_000_000}
    process = start_training("ppo", run, options, until="logs/*/metrics.jsonl")
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == exit_code, stderr
    assert "TRAINING SUMMARY" in stdout
    assert "rlcluster train --resume --output-dir" in stdout
    state = read_state(run)
    assert state is not None
    assert (state.state, state.reason) == ("preempted", number.name)
    updates = json.loads((run / "benchmark_metrics.json").read_text())["total_updates"]
    assert len(metrics(run)) == updates
    resumed = rlcluster("train", "--resume", "--output-dir", run, "--total-updates", str(updates + 2))
    assert resumed.returncode == 0, resumed.stderr
    assert [record["update"] for record in metrics(run)] == list(range(1, updates + 3))


@pytest.mark.slow
def test_resuming_with_other_threads_notes_that_results_are_equal_to_rounding_only(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train("ppo", run, {**options_for("cartpole", "ppo"), "--total-updates": 1}).returncode == 0
    resume = ("train", "--resume", "--output-dir", run, "--total-updates")
    assert "note: " not in rlcluster(*resume, "2").stdout
    result = rlcluster(*resume, "3", "--num-threads", "2")
    assert result.returncode == 0, result.stderr
    assert (
        "note: this run had 1 rank with 1 thread and resumes with 1 rank with 2 threads: its course is the same up to "
        "rounding, not to the bit\n"
    ) in result.stdout
    assert len(metrics(run)) == 3


@pytest.mark.slow
def test_a_timed_run_ends_within_one_update_of_its_duration(tmp_path: Path) -> None:
    options = {**options_for("cartpole", "ppo"), "--duration": "3s"}
    assert train("ppo", tmp_path / "run", options).returncode == 0
    (file,) = tmp_path.glob("run/logs/*/metrics.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    summary = json.loads((tmp_path / "run" / "benchmark_metrics.json").read_text())
    assert summary["duration_seconds"] >= 3  # a record is written shortly before the run looks at the clock
    assert records[-2]["elapsed_seconds"] < 3


@pytest.mark.slow
def test_a_finished_run_resumes_when_its_budget_is_raised(tmp_path: Path) -> None:
    options = options_for("cartpole", "a2c")
    train("a2c", tmp_path / "whole", {**options, "--total-updates": 6})
    train("a2c", tmp_path / "run", {**options, "--total-updates": 3})
    result = rlcluster("train", "--resume", "--output-dir", tmp_path / "run", "--total-updates", "6")
    assert result.returncode == 0, result.stderr
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


def test_a_resumed_run_may_not_change_what_is_computed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train("ppo", run, {**options_for("cartpole", "ppo"), "--total-updates": 2})
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    result = rlcluster("train", "--resume", "--output-dir", run, "--gamma", "0.5", "--num-envs", "8")
    assert result.returncode == 2
    assert "env.num_envs=8 but the run has 4; training.gamma=0.5 but the run has 0.999" in result.stderr
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_an_environment_without_a_state_begins_new_episodes_on_resume_and_says_so(tmp_path: Path) -> None:
    module = tmp_path / "opaque.py"
    module.write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Opaque(CartPoleEnv):\n"
        "    def __init__(self, **options):\n"
        "        super().__init__(**options)\n"
        "        self.engine = object()\n"
        "gymnasium.register('Opaque-v0', Opaque, max_episode_steps=50)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    options = {**options_for("cartpole", "ppo"), "--env": "opaque:Opaque-v0"}
    run = tmp_path / "run"
    first = rlcluster("train", "--output-dir", run, *flags({**options, "--total-updates": 2}), env=environment)
    assert first.returncode == 0, first.stderr
    second = rlcluster("train", "--resume", "--output-dir", run, "--total-updates", "4", env=environment)
    assert second.returncode == 0, second.stderr
    assert "opaque:Opaque-v0 cannot save its state: new episodes begin" in second.stderr
    assert [record["update"] for record in metrics(run)] == [1, 2, 3, 4]


@pytest.mark.slow
def test_a_run_that_diverges_stops_with_its_last_checkpoint_intact(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = {**options_for("cartpole", "ppo"), **ENDLESS, "--learning-rate": 1e35, "--max-grad-norm": "null"}
    result = train("ppo", run, {**options, "--checkpoint-updates": 1})
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "training.learning_rate=1e+35" in result.stderr
    for path in run.glob("checkpoints/*.pt"):
        parameters = load_checkpoint(path).content["learner"]["parameters"]
        assert all(torch.isfinite(value).all() for value in parameters.values())


def test_every_shipped_config_loads() -> None:
    folder = Path(__file__).parents[2] / "configs"
    names = {path.name for path in folder.glob("*.yaml") if not path.name.startswith(("suite_", "site_"))}
    assert names >= {
        "ppo_sequential.yaml",
        "ppo_procgen.yaml",
        "a2c_sequential.yaml",
        "ppo_cartpole.yaml",
        "a2c_cartpole.yaml",
        "ppo_parallel.yaml",
        "ppo_cpu_cluster.yaml",
        "ppo_sequential_highend.yaml",
        "ppo_parallel_highend.yaml",
    }
    for name in names:
        settings = load_settings(file=folder / name)
        modes = {"parallel": "parallel", "cluster": "distributed"}
        mode = next((mode for word, mode in modes.items() if word in name), "sequential")
        assert (settings.algorithm, settings.mode) == (name.split("_")[0], mode)


def test_threads_are_limited_before_torch_and_numpy_are_loaded() -> None:
    code = (
        "import sys\n"
        "from rlcluster.system import cores\n"
        "from rlcluster.training import train\n"
        "from rlcluster.settings.loading import load_settings\n"
        "loaded = lambda: str({'torch', 'numpy'} & set(sys.modules))\n"
        "cores.limit_threads = lambda num_threads, is_final: sys.exit(loaded())\n"
        "train.train(load_settings(flags={'env.name': 'CartPole-v1'}))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.stderr.strip() == "set()"


@pytest.mark.slow
@pytest.mark.parametrize("redirection", [">&-", ">&- 2>&-", ">/dev/full", "2>/dev/full"])
def test_a_run_whose_output_cannot_be_written_finishes(redirection: str, tmp_path: Path) -> None:
    options = {**options_for("cartpole", "ppo"), "--total-updates": 3}
    words = command("train", "ppo", "--output-dir", tmp_path / "run", *flags(options))
    line = ["/bin/sh", "-c", f'exec "$@" {redirection}', "sh", *words]
    result = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert (result.returncode, result.stderr) == (0, "")
    state = read_state(tmp_path / "run")
    assert state is not None
    assert (state.state, state.update) == ("finished", 3)


@pytest.mark.slow
def test_a_run_whose_output_has_ascii_only_finishes(tmp_path: Path) -> None:
    options = {**options_for("cartpole", "ppo"), "--total-updates": 3}
    words = command("train", "ppo", "--output-dir", tmp_path / "±", *flags(options))
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    result = subprocess.run(words, capture_output=True, check=False, env=environment, timeout=300)
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.isascii()
    assert f"Results saved to: {tmp_path}/?".encode() in result.stdout
    state = read_state(tmp_path / "±")
    assert state is not None
    assert (state.state, state.update) == ("finished", 3)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sequential", "parallel"])
def test_a_run_whose_reader_has_gone_away_still_saves(mode: str, tmp_path: Path) -> None:
    """As in `rlcluster train | tee log`: Ctrl-C ends tee as well. Here it is gone before the first line."""
    run = tmp_path / "run"
    options = {**options_for("cartpole", "ppo"), **ENDLESS, "--mode": mode, "--checkpoint-updates": 1_000_000}
    reader, writer = os.pipe()
    os.close(reader)
    process = start_training("ppo", run, options, "logs/*/metrics.jsonl", stdout=writer, stderr=subprocess.STDOUT)
    os.close(writer)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert list(run.glob("checkpoints/*_step_*.pt"))
    assert (run / "benchmark_metrics.json").exists()


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--distribution-mode", "memory", "env.distribution_mode=memory: coinrun has no such mode"),
        ("--env", "NoSuch-v0", "env.name=NoSuch-v0"),
    ],
)
def test_what_cannot_be_is_refused_before_the_run_directory_exists(
    flag: str, value: str, message: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    result = rlcluster("train", "ppo", "--env", "coinrun", flag, value, "--output-dir", run)
    assert result.returncode == 2
    assert message in result.stderr
    assert not run.exists()


def test_impala_refuses_an_occupied_directory_before_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(planning, "measure", lambda settings, num_envs: pytest.fail("measured before the refusal"))
    settings = load_settings(
        "impala", "parallel", flags={"env.name": "CartPole-v1", "output.output_dir": str(tmp_path)}
    )
    with pytest.raises(UserError, match="exists; it is not a run"):
        train_module._train_on_rank(settings, train_module.Start(), Ranks(), StopRequest(), Silent())


def test_impala_is_refused_on_other_processors_before_the_run_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    run = tmp_path / "run"
    settings = load_settings("impala", "parallel", flags={"env.name": "CartPole-v1", "output.output_dir": str(run)})
    with pytest.raises(UserError, match="this processor is aarch64; use --mode sequential"):
        train_module._train_on_rank(settings, train_module.Start(), Ranks(), StopRequest(), Silent())
    assert not run.exists()
