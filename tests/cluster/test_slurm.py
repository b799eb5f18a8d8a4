"""Jobs on a real Slurm of four hosts, made of namespaces on this machine (`hosts.py`)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from hosts import PATIENCE_SECONDS, Hosts, missing_parts, processes_with, until

from rlcluster.cluster.schedulers import _pbs_state
from rlcluster.runs.status import read_state
from rlcluster.system.console import say
from rlcluster.system.slurm_step import port_of

from conftest import CARTPOLE, background, command, flags, metrics

pytestmark = pytest.mark.slow
OPTIONS: dict[str, Any] = {**CARTPOLE, "--n-minibatches": 2, "--n-epochs": 2}
ON_N1_AND_N2 = "--scheduler-arg=--nodelist=n[1-2]"  # also where these are not free yet
LEFT_SECONDS = 30.0  # 10 s are promised; three times as long where other tests load the machine
ROOM_FOR_LOGS = 4 * 4096  # pages: too little for a checkpoint, enough for the last line of each log
CUT_SECONDS = 120.0  # Slurm asks a node that was cut off to end its tasks when it next pings it
ENDLESS = {**OPTIONS, "--total-updates": 1_000_000, "--checkpoint-updates": 1}


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    reason = missing_parts()
    if reason is not None:
        assert "CI" not in os.environ, f"the tests on a real Slurm must run in CI: {reason}"
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="rlc-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with Hosts(folder, 4) as ours:
            yield ours
        nothing_is_left = until(lambda: not list(processes_with(name)))  # a killed process may take a moment
    assert nothing_is_left, "daemons or jobs were left"


def rlcluster_on_hub(hosts: Hosts, *arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return hosts.run("hub", *command(*arguments), check=False, cwd=cwd)


def submit(hosts: Hosts, run: Path, job: str, options: dict[str, Any]) -> str:
    """Returns the id of the job, submitted in the folder of its run directory."""
    training = ["train", "ppo", "--output-dir", str(run), *flags(options)]
    result = rlcluster_on_hub(hosts, "submit", *job.split(), "--", *training, cwd=run.parent)
    assert result.returncode == 0, result.stderr
    found = re.match(r"submitted job (\d+)", result.stdout)
    assert found is not None
    return found[1]


def history(run: Path) -> str:
    return "".join(file.read_text() for file in sorted(run.glob("jobs/*/history.txt")))


def rank_log(run: Path, job: str, rank: int = 0) -> str:
    file = run / "jobs" / job / f"rank-{rank:04}.log"
    return file.read_text() if file.exists() else ""


def state_of(hosts: Hosts, job: str) -> str:
    return hosts.run("hub", "squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").stdout.strip()


def wait(condition: Any, run: Path) -> None:
    if not until(condition):
        logs = "".join(log.read_text() for log in sorted(run.glob("jobs/**/*.log")))
        raise AssertionError(f"not within {PATIENCE_SECONDS:g} s\n{history(run)}{logs}")


def refuse_what_is_left(path: Path, since: float, seconds: float = LEFT_SECONDS) -> None:
    """`since` is when the processes of this run were told to end."""
    if not until(lambda: not list(processes_with(str(path))), since + seconds - time.monotonic()):
        left = [" ".join(process.cmdline()) for process in processes_with(str(path))]
        raise AssertionError(f"left {seconds:g} s after the end: {left}")
    say(f"nothing was left {time.monotonic() - since:.1f} s after the end of {path.name}")


def seconds_to_first_update(run: Path, since: float) -> float:
    wait(lambda: list(run.glob("logs/*/metrics.jsonl")) and metrics(run), run)
    return time.monotonic() - since


def resume_now(hosts: Hosts, run: Path, job: str) -> None:
    """Slurm lets a requeued job wait for two minutes; an administrator may shorten that, but not to nothing: slurmd
    compares whole seconds, and refuses a start in the second of the job's last end ("already killed").
    """
    wait(lambda: state_of(hosts, job) == "PENDING", run)  # squeue calls it COMPLETING until all hosts have ended it
    ended, starts = int(time.time()), history(run).count(" started on ")
    wait(lambda: time.time() >= ended + 2, run)

    def has_started() -> bool:
        """Asks again: Slurm may set the time or hold the job anew."""
        if state_of(hosts, job) == "PENDING":
            for request in (("release", job), ("update", f"JobId={job}", "StartTime=now")):
                hosts.run("hub", "scontrol", *request, check=False)
        return history(run).count(" started on ") > starts

    wait(has_started, run)


def set_limit_of_now(hosts: Hosts, job: str, submitted: float) -> None:
    """One or two minutes are left to save, so the signal before the limit, three minutes, comes now."""
    minutes = int((time.monotonic() - submitted) / 60) + 2
    hosts.run("hub", "scontrol", "update", f"JobId={job}", f"TimeLimit={minutes}")


def status(hosts: Hosts, folder: Path) -> tuple[int, list[dict[str, Any]]]:
    result = rlcluster_on_hub(hosts, "status", folder, "--json")
    return result.returncode, json.loads(result.stdout)


def ranks_of_job(run: Path) -> list[psutil.Process]:
    """The Python processes of the run's ranks, in order."""
    found = {}
    for process in processes_with(str(run)):
        if "python" in process.name() and "SLURM_STEP_ID" in process.environ():
            found[int(process.environ()["SLURM_PROCID"])] = process
    return [found[rank] for rank in sorted(found)]


def is_free(hosts: Hosts, host: str, port: int) -> bool:
    code = f"import socket; socket.create_connection(('{host}', {port}))"
    return hosts.run(host, sys.executable, "-c", code, check=False).returncode != 0


def test_a_submitted_run_equals_a_local_one_and_is_refused_a_second_time(
    hosts: Hosts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, local, options = tmp_path / "it's 50% of a run", tmp_path / "local", {**OPTIONS, "--total-updates": 4}
    begun = time.monotonic()
    job = submit(hosts, run, f"--nodes 2 --time 10m {ON_N1_AND_N2}", options)
    submitted_seconds = seconds_to_first_update(run, begun)
    wait(lambda: state_of(hosts, job) == "COMPLETED", run)
    more = {"--mode": "parallel", "--num-workers": 2, "--output-dir": local}
    begun = time.monotonic()
    alone = background(command("train", "ppo", *flags({**options, **more})))
    local_seconds = seconds_to_first_update(local, begun)
    with capsys.disabled():
        say(f"\nto the first update: {submitted_seconds:.1f} s from submit, {local_seconds:.1f} s without a scheduler")
    _, errors = alone.communicate(timeout=PATIENCE_SECONDS)
    assert alone.returncode == 0, errors
    assert metrics(run) == metrics(local)
    assert "rank 0 on n1: cores" in rank_log(run, job)
    assert "rank 1 on n2: cores" in rank_log(run, job, 1)
    code, (row,) = status(hosts, run)
    assert (code, row["state"], row["steps"], row["hosts"]) == (0, "finished", 512, "n[1-2]")
    assert "TRAINING SUMMARY" in rlcluster_on_hub(hosts, "logs", run).stdout
    again = rlcluster_on_hub(hosts, "submit", "--", "train", "ppo", "--output-dir", run, *flags(options))
    assert again.returncode == 2
    assert "is finished; to extend it, give a larger budget" in again.stderr


def test_a_time_limit_requeues_and_resumes_and_a_cancelled_job_leaves_nothing(hosts: Hosts, tmp_path: Path) -> None:
    run = tmp_path / "run"
    begun = time.monotonic()
    job = submit(hosts, run, f"--nodes 2 --time 1h {ON_N1_AND_N2}", ENDLESS)
    seconds_to_first_update(run, begun)
    set_limit_of_now(hosts, job, begun)
    wait(lambda: " requeued 1 of 20: saved before the time limit" in history(run), run)
    saved = read_state(run)
    assert saved is not None
    assert (saved.state, saved.reason) == ("preempted", "SIGUSR1")
    assert len(metrics(run)) == saved.update > 0, "not even the update under way was lost"
    code, (row,) = status(hosts, run)
    assert (code, row["state"], row["requeues"]) == (0, "pending", 1)
    hosts.run("hub", "scontrol", "update", f"JobId={job}", "TimeLimit=60")
    resume_now(hosts, run, job)
    wait(lambda: f"resuming at update {saved.update}," in rank_log(run, job), run)
    wait(lambda: len(metrics(run)) > saved.update, run)
    assert not is_free(hosts, "n1", port_of(int(job)))
    begun = time.monotonic()
    cancelled = rlcluster_on_hub(hosts, "cancel", run)
    assert f"cancelled job {job}" in cancelled.stdout
    refuse_what_is_left(run, begun)
    wait(lambda: state_of(hosts, job) == "CANCELLED", run)
    after = read_state(run)
    assert after is not None
    assert (after.state, after.reason) == ("preempted", "SIGTERM")
    assert history(run).count("requeued") == 1
    assert is_free(hosts, "n1", port_of(int(job)))
    code, (row,) = status(hosts, run)
    assert (code, row["state"]) == (0, "cancelled")


def test_a_killed_rank_restarts_in_its_job_and_a_preempted_job_resumes(hosts: Hosts, tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = submit(hosts, run, f"--nodes 2 --time 10m {ON_N1_AND_N2}", ENDLESS)
    wait(lambda: list(run.glob("checkpoints/*_step_*.pt")), run)
    first, second = ranks_of_job(run)
    assert (first.environ()["SLURMD_NODENAME"], second.environ()["SLURMD_NODENAME"]) == ("n1", "n2")
    second.kill()
    wait(lambda: " restart 1 of 1 after exit code 137" in history(run), run)
    wait(lambda: "resuming at update" in rank_log(run, job), run)
    resumed = len(metrics(run))
    wait(lambda: len(metrics(run)) > resumed, run)
    urgent = ["sbatch", "--partition=high", "--nodelist=n[1-2]", "--nodes=2", "--exclusive", "--output=/dev/null"]
    hosts.run("hub", *urgent, "--wrap=true")
    wait(lambda: "preempted, requeued" in history(run), run)
    saved = read_state(run)
    assert saved is not None
    assert (saved.state, saved.reason, saved.update) == ("preempted", "SIGTERM", len(metrics(run)))
    resume_now(hosts, run, job)
    wait(lambda: f"resuming at update {saved.update}," in rank_log(run, job), run)
    _, (row,) = status(hosts, run)
    assert (row["state"], row["requeues"], row["restarts"]) == ("running", 1, 1)
    begun = time.monotonic()
    hosts.run("hub", "scancel", job)
    refuse_what_is_left(run, begun)
    wait(lambda: state_of(hosts, job) == "CANCELLED", run)
    assert history(run).count("requeued") == 1


def test_a_trainer_that_fails_at_once_is_not_requeued_and_its_error_is_its_status(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Broken(CartPoleEnv):\n"
        "    def step(self, action):\n        raise RuntimeError('the simulator is broken')\n"
        "gymnasium.register('Broken-v0', Broken)\n"
    )
    crashing, refused = tmp_path / "crashing", tmp_path / "refused"
    jobs = {
        crashing: submit(hosts, crashing, "--time 10m", {**OPTIONS, "--env": "broken:Broken-v0"}),
        refused: submit(hosts, refused, "--time 10m", {**OPTIONS, "--rollout-dir": "/nowhere"}),
    }
    for run, job in jobs.items():
        wait(lambda job=job: state_of(hosts, job) == "FAILED", run)
    assert [line[20:].partition(":")[0] for line in history(crashing).splitlines()][1:] == [
        "restart 1 of 1 after exit code 1",
        "failed with exit code 1",
    ]
    assert history(refused).endswith("failed with exit code 74: starting it again would not help\n")
    result = rlcluster_on_hub(hosts, "status", "--json", crashing, refused)
    rows = json.loads(result.stdout)
    assert (result.returncode, {row["state"] for row in rows}) == (1, {"failed"})
    assert [(row["requeues"], row["restarts"]) for row in rows] == [(0, 1), (0, 0)]
    assert "the simulator is broken" in rows[0]["note"]
    assert "hardware.rollout_dir=/nowhere" in rows[1]["note"]


def test_a_disk_that_fills_up_ends_the_job_and_its_error_is_its_status(hosts: Hosts, tmp_path: Path) -> None:
    run = hosts.small_disk / "run"
    job = submit(hosts, run, "--time 10m", ENDLESS)
    wait(lambda: list(run.glob("checkpoints/*_step_*.pt")), run)
    with (hosts.small_disk / "other").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))
    os.truncate(file.name, Path(file.name).stat().st_size - ROOM_FOR_LOGS)
    wait(lambda: state_of(hosts, job) == "FAILED", run)
    code, (row,) = status(hosts, run)
    assert (code, row["state"], row["requeues"], row["restarts"]) == (1, "failed", 0, 0)
    assert "No space left on device" in row["note"]
    (hosts.small_disk / "other").unlink()
    saved = len(metrics(run))
    again = submit(hosts, run, "--time 10m", {**ENDLESS, "--total-updates": saved + 2})
    wait(lambda: state_of(hosts, again) == "COMPLETED", run)
    assert "resuming at update" in rank_log(run, again)


def test_a_cut_cable_ends_the_ranks_and_slurm_requeues_the_job(hosts: Hosts, tmp_path: Path) -> None:
    run, options = tmp_path / "run", {**ENDLESS, "--timeout-seconds": 12}
    job = submit(hosts, run, "--nodes 2 --time 10m --scheduler-arg=--nodelist=n[3-4]", options)
    wait(lambda: list(run.glob("checkpoints/*_step_*.pt")), run)
    hosts.cable("n4", "down")
    try:
        wait(lambda: "rank 1 did not answer for" in f"{read_state(run)}", run)  # before Slurm misses the node
        state = read_state(run)
        assert state is not None
        assert (state.state, state.failed_rank) == ("failed", 1)
        wait(lambda: state_of(hosts, job) == "PENDING", run)
        hosts.run("hub", "scancel", job)
    finally:
        hosts.cable("n4", "up")
    refuse_what_is_left(run, time.monotonic(), CUT_SECONDS)


def test_a_suite_is_an_array_whose_failed_cell_stops_no_other_and_a_report(hosts: Hosts, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "algorithms: [ppo, a2c]\nmodes: [sequential]\ngames: [CartPole-v1]\nseeds: [1, 2]\n"
        "budget: {total_timesteps: 1e6, score: 5}\nevaluation: {num_episodes: 2}\n"  # long, as far as is known
        "settings: {env: {num_envs: 4}, training: {n_steps: 32}, hardware: {num_threads: 1}}\n"
        "algorithm_settings: {ppo: {training: {n_minibatches: 2}}, a2c: {hardware: {rollout_dir: /nowhere}}}\n"
    )
    folder = tmp_path / "suite"
    submitting = ["submit", "--time", "10m", "--max-running", "3", "--", "suite", plan, "--output-dir", folder]
    result = rlcluster_on_hub(hosts, *submitting)
    assert result.returncode == 0, result.stderr
    assert "submitted 4 cells in 4 tasks" in result.stdout, "an array of three and one of one: MaxArraySize is 3"
    report = re.search(r"job (\d+) writes the report", result.stdout)
    assert report is not None
    assert "has a job already" in rlcluster_on_hub(hosts, *submitting).stderr
    wait(lambda: state_of(hosts, report[1]) == "FAILED", folder)
    code, rows = status(hosts, folder)
    states = {row["name"]: row["state"] for row in rows}
    cells = [f"ppo_sequential_CartPole-v1_seed{seed}" for seed in (1, 2)]
    assert [states[cell] for cell in cells] == ["finished"] * 2
    failed = [row for row in rows if row["state"] == "failed"]
    assert (code, len(failed)) == (1, 2)
    assert "rollout_dir=/nowhere" in failed[0]["note"]
    text = (folder / "comparison_report.txt").read_text()
    assert all(cell in text for cell in cells)
    assert "a2c_sequential_CartPole-v1_seed1" in text
    assert {cell["state"] for cell in json.loads((folder / "suite.json").read_text())["cells"]} == {
        "finished",
        "failed",
    }


def test_a_task_of_a_suite_requeues_itself_and_not_the_whole_array(hosts: Hosts, tmp_path: Path) -> None:
    plan, folder = tmp_path / "plan.yaml", tmp_path / "suite"
    plan.write_text(
        "modes: [sequential]\ngames: [CartPole-v1]\nseeds: [1, 2]\nbudget: {duration: 1h}\n"
        "settings: {env: {num_envs: 4}, training: {n_steps: 32, n_minibatches: 2}, hardware: {num_threads: 1}}\n"
    )
    begun = time.monotonic()
    result = rlcluster_on_hub(hosts, "submit", "--time", "1h", "--", "suite", plan, "--output-dir", folder)
    found = re.match(r"submitted 2 cells in 2 tasks: job (\d+)", result.stdout)
    assert found is not None, result.stderr
    wait(lambda: len(list(folder.glob("runs/*/logs/*/metrics.jsonl"))) == 2, folder)
    set_limit_of_now(hosts, f"{found[1]}_0", begun)
    wait(lambda: " requeued 1 of 20: saved before the time limit" in history(folder), folder)
    wait(lambda: state_of(hosts, f"{found[1]}_0") == "PENDING", folder)
    assert state_of(hosts, f"{found[1]}_1") == "RUNNING"
    code, (array, report, *cells) = status(hosts, folder)
    assert (code, array["state"], array["note"], array["requeues"]) == (0, "running", "1 pending, 1 running", 1)
    assert report["state"] == "pending", "it waits for the task that was requeued"
    assert [cell["state"] for cell in cells] == ["stopped", "running"]
    begun = time.monotonic()
    assert f"cancelled job {found[1]} " in rlcluster_on_hub(hosts, "cancel", folder).stdout
    refuse_what_is_left(folder, begun)


def test_slurms_own_qsub_accepts_the_script_for_torque(hosts: Hosts, tmp_path: Path) -> None:
    """The nearest to a PBS server that can be installed here (package slurm-wlm-torque)."""
    if shutil.which("qsub") is None:
        assert "CI" not in os.environ, "slurm-wlm-torque is missing in CI"
        pytest.skip("not installed: slurm-wlm-torque")
    job = ["submit", "--scheduler", "torque", "--dry-run", "--nodes", "2", "--ranks-per-node", "2", "--time", "90m"]
    script = tmp_path / "job.sh"
    script.write_text(rlcluster_on_hub(hosts, *job, "--", "train", "ppo", "--output-dir", tmp_path / "run").stdout)
    number = hosts.run("hub", "qsub", "-h", script, cwd=tmp_path).stdout.strip()
    facts = hosts.run("hub", "scontrol", "show", "job", number).stdout
    listed = [_pbs_state(line) for line in hosts.run("hub", "qstat").stdout.splitlines()]
    hosts.run("hub", "scancel", number)
    assert all(fact in facts for fact in ("JobName=run", "TimeLimit=01:30:00", "NumNodes=2", "NumTasks=4"))
    assert (number, "pending") in [(state.id, state.phase) for state in listed if state is not None]


def test_srun_alone_starts_ranks_that_differ_in_number_and_keep_the_cores_slurm_gave_them(
    hosts: Hosts, tmp_path: Path
) -> None:
    run, options = tmp_path / "run", {**OPTIONS, "--total-updates": 2, "--num-envs": 6, "--mode": "distributed"}
    del options["--num-threads"]
    training = [sys.executable, "-m", "rlcluster", "train", "ppo", "--output-dir", str(run), *flags(options)]
    srun = ["srun", "--nodes=2", "--nodelist=n[1-2]", "--ntasks=3", "--cpus-per-task=1", "--label"]
    result = hosts.run("hub", *srun, *training)
    plan = json.loads((run / "plan.json").read_text())
    assert [(rank["threads"], rank["num_peers"]) for rank in plan["ranks"]] == [(1, 1)] * 3, "no core is shared"
    assert {record["world_size"] for record in metrics(run)} == {3}
    lines = dict(re.findall(r"rank (\d on n\d): cores (\d)$", result.stdout, re.MULTILINE))
    assert set(lines) == {"0 on n1", "1 on n1", "2 on n2"}
    assert lines["0 on n1"] != lines["1 on n1"]


def test_plan_probes_the_network_between_the_hosts_of_an_allocation(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file, options = tmp_path / "forecast.json", {key: OPTIONS[key] for key in ("--env", "--num-envs", "--n-steps")}
    more = ("--mode", "distributed", "--seconds", "3", "--nodes", "1,2", "--json", str(file))
    plan = [sys.executable, "-m", "rlcluster", "plan", "ppo", *flags(options), *more]
    result = hosts.run("hub", "srun", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2", *plan, check=False)
    assert result.returncode == 0, result.stderr
    assert "probing gloo between 2 hosts for 10 s" in result.stdout
    assert "between nodes: measured between the hosts" in result.stdout
    figures = json.loads(file.read_text())
    assert figures["interconnect"] == "measured between the hosts"
    assert figures["interconnect_latency_seconds"] != figures["latency_seconds"]
    assert figures["nodes_2_network_share"] > 0
    refused = hosts.run("hub", "srun", "--nodes=2", "--ntasks-per-node=2", *plan, check=False)
    assert refused.returncode == 2
    assert "has started 2 ranks on a host; start one on each" in refused.stderr


def test_tune_starts_runs_over_the_hosts_of_an_allocation_and_leaves_none(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # so the command lines of its runs have this path
    file, tuned = tmp_path / "figures.json", tmp_path / "tuned.yaml"
    options = {key: OPTIONS[key] for key in ("--env", "--num-envs", "--n-steps")}
    more = ("--minutes", "3", "--output", str(tuned), "--json", str(file))  # it ends when all is decided
    tune = [sys.executable, "-m", "rlcluster", "tune", "ppo", *flags(options), *more]
    result = hosts.run("hub", "srun", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2", *tune, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    found, written = json.loads(file.read_text()), yaml.safe_load(tuned.read_text())
    assert found["best"].startswith("2 hosts, on each")
    assert found["2_hosts_on_each_1_rank_2_threads_each_steps_per_second"] > 0
    assert written["mode"] == "distributed"
    assert written["cluster"]["num_workers"] in (2, 4)
    refuse_what_is_left(tmp_path, time.monotonic())
    refused = hosts.run("hub", "srun", "--nodes=2", "--ntasks-per-node=2", *tune, check=False)
    assert refused.returncode == 2
    assert "has started 2 processes on a host; start one on each, as: srun" in refused.stderr
