"""What is refused before a job is submitted, how cells become tasks, and how a status is put together."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rlcluster.cli import main
from rlcluster.cluster.schedulers import JobState, _pbs_state, _slurm_state
from rlcluster.cluster.settings import load_job_settings
from rlcluster.cluster.status import Row, rows_of, table
from rlcluster.cluster.submit import packed
from rlcluster.experiments.suite import PendingCell, pending_cells
from rlcluster.experiments.suite_outcomes import Outcome, record_outcome
from rlcluster.experiments.suite_plan import read_suite
from rlcluster.runs.jobs import (
    JobRecord,
    history_of,
    job_folder,
    jobs_of,
    num_requeues,
    record_cancelled,
    record_job,
)
from rlcluster.system.errors import UserError

from conftest import write_run

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(autouse=True)
def _no_site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RLCLUSTER_SITE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nothing"))


# Settings of a job


def test_flags_override_the_site_file_wherever_it_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "rlcluster" / "site.yaml"
    site.parent.mkdir()
    site.write_text("scheduler: slurm\npartition: short\naccount: physics\nmodules: gcc/12\ntime: 30m\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    job = load_job_settings(None, {"partition": "long", "nodes": "2", "time": None})
    assert (job.partition, job.account, job.modules, job.nodes, job.time) == ("long", "physics", ("gcc/12",), 2, 1800)
    other = tmp_path / "other.yaml"
    other.write_text("account: chemistry\n")
    monkeypatch.setenv("RLCLUSTER_SITE", str(other))
    assert load_job_settings(None, {}).account == "chemistry"
    assert load_job_settings(str(site), {}).account == "physics"


def test_all_problems_of_a_job_are_reported_at_once(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("partiton: short\nmodules: ['gcc 12']\ncontainer: \"a\\nb\"\n")
    with pytest.raises(UserError) as error:
        load_job_settings(str(site), {"time": "4 days", "memory": "8", "scheduler_args": ["constraint"], "nodes": "0"})
    text = str(error.value)
    for part in (
        "submit: 7 problems:",
        f"{site}: partiton: unknown; did you mean partition?",
        "gcc 12",
        "--time='4 days'",
        "--memory='8': should be a number with M or G, as 8G",
        "--scheduler-arg='constraint': should be a flag of the scheduler",
        "--nodes='0'",
        "one line of text without #SBATCH or #PBS",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("time", "save_before", "expected"), [("4h", None, 14400 - 180), ("2m", None, 60), ("1m", "5s", 55)]
)
def test_a_run_saves_three_minutes_before_its_limit_or_halfway(time: str, save_before: Any, expected: int) -> None:
    assert load_job_settings(None, {"time": time, "save_before": save_before}).save_after_seconds == expected


@pytest.mark.parametrize("name", ["site_slurm.yaml", "site_pbs.yaml"])
def test_the_shipped_site_files_are_valid_and_name_every_setting(name: str) -> None:
    job = load_job_settings(str(CONFIGS / name), {})
    assert job.scheduler == name.removeprefix("site_").removesuffix(".yaml")
    text = (CONFIGS / name).read_text()
    for key in (
        "partition",
        "account",
        "modules",
        "environment",
        "container",
        "binds",
        "interface",
        "scratch",
        "lines",
    ):
        assert f"{key}:" in text


# The command


def submit(*arguments: str) -> int:
    return main(["submit", "--scheduler", "slurm", "--dry-run", *arguments])


def stub(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """A command of the scheduler that runs this line of bash."""
    folder.mkdir()
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "2"], "give the command after --"),
        (["--nodes", "2", "--", "train", "ppo", "--mode", "parallel"], "2 ranks but --mode parallel"),
        (["--nodes", "2", "--", "train", "ppo", "--num-workers", "3"], "num_workers=3 but --nodes 2"),
        (["--nodes", "2", "--", "train", "ppo", "--num-envs", "1", "--n-steps", "32"], "every process needs an env"),
        (["--nodes", "2", "--", "suite", str(CONFIGS / "suite_quick.yaml")], "a cell of a suite runs on one node"),
        (["--", "train", "ppo", "--learning-rate", "fast"], "training.learning_rate=fast"),
        (["--", "train", "--resume", "--output-dir", "nowhere"], "nowhere has no checkpoint"),
        (["--", "suite", str(CONFIGS / "suite_quick.yaml"), "--jobs", "2"], "only --output-dir and --only; for cells"),
        (["--", "suite", str(CONFIGS / "suite_quick.yaml"), "--only", "nosuch"], "--only nosuch"),
        (["--", "evaluate"], "give the command after --"),
        (["--after", "7:8", "--", "train", "ppo"], "--after='7:8': should be the id of a job of slurm, as 12 or"),
        (["--after", "12[3]", "--", "train", "ppo"], "--after='12[3]': should be the id of a job of slurm"),
        (["--after", "", "--", "train", "ppo"], "--after='': should be the id of a job of slurm"),
        (["--after", "7\n8", "--", "suite", str(CONFIGS / "suite_quick.yaml")], "--after='7\\n8': should be"),
    ],
)
def test_what_cannot_work_is_refused_before_it_is_submitted(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit(*arguments) == 2
    assert message in capsys.readouterr().err


def test_a_dry_run_prints_the_script_and_the_command_and_does_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    more = ["--scheduler-arg=--constraint=avx512", "--after", "7", "--account", "physics", "--mail", "a@b.org"]
    training = ["train", "ppo", "--env", "starpilot", "--output-dir", str(run)]
    assert submit("--nodes", "2", "--ranks-per-node", "8", "--time", "4h", *more, "--", *training) == 0
    output = capsys.readouterr().out
    for line in ("--nodes=2", "--ntasks-per-node=8", "--time=4:00:00", "--signal=B:USR1@180", "--constraint=avx512"):
        assert f"#SBATCH {line}\n" in output
    assert "srun --ntasks=16 --cpus-per-task=1 " in output
    assert f"train ppo --env starpilot --output-dir {run} --mode distributed --in-job --output-dir {run} &" in output
    assert f"# sbatch --parsable --dependency=afterany:7 {run}/jobs/next-train.sh" in output
    assert not run.exists()


def test_a_task_of_an_array_can_be_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert submit("--after", "12_3", "--", "train", "ppo", "--output-dir", str(tmp_path / "run")) == 0
    assert "# sbatch --parsable --dependency=afterany:12_3 " in capsys.readouterr().out


def test_a_dry_run_of_a_suite_shows_what_the_report_waits_for_and_which_cells_are_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stub(tmp_path / "bin", monkeypatch, "scontrol", "echo 'MaxArraySize            = 1001'")
    suite = ["suite", str(CONFIGS / "suite_quick.yaml"), "--output-dir", str(tmp_path / "suite"), "--only", "^ppo_"]
    assert submit("--max-running", "2", *["--after", "7", "--", *suite]) == 0
    commands = [line for line in capsys.readouterr().out.splitlines() if line.startswith("# sbatch")]
    cells = pending_cells(read_suite(CONFIGS / "suite_quick.yaml"), tmp_path, "^ppo_")
    assert {cell.name.partition("_")[0] for cell in cells} == {"ppo"}
    last = len(packed(cells)) - 1
    assert commands == [
        f"# sbatch --parsable --array=0-{last}%2 --dependency=afterany:7 {tmp_path}/suite/jobs/next-suite.sh",
        f"# sbatch --parsable --dependency=afterany:ID-OF-SUITE {tmp_path}/suite/jobs/next-report.sh",
    ]
    assert not (tmp_path / "suite").exists()


def test_a_dry_run_of_a_suite_needs_no_scheduler_but_a_submission_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    suite = ["--", "suite", str(CONFIGS / "suite_quick.yaml"), "--output-dir", str(tmp_path / "suite")]
    assert submit(*suite) == 0
    shown = capsys.readouterr()
    assert "# sbatch --parsable --array=0-" in shown.out
    assert "scontrol is not on the path of this machine: MaxArraySize=1000 is assumed" in shown.err
    assert main(["submit", "--scheduler", "slurm", *suite]) == 1
    assert "scontrol is not on the path of this machine" in capsys.readouterr().err
    assert not (tmp_path / "suite").exists()


@pytest.mark.parametrize("max_running", [None, 2])
def test_a_limit_of_running_tasks_holds_over_the_arrays_of_a_split_suite(
    max_running: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The scheduler counts each array alone, so each waits for the one before."""
    stub(tmp_path / "bin", monkeypatch, "scontrol", "echo 'MaxArraySize            = 3'")
    plan, jobs = tmp_path / "plan.yaml", tmp_path / "suite" / "jobs"
    plan.write_text("seeds: [1, 2, 3, 4, 5, 6, 7]\nbudget: {duration: 1h}\n")
    limit = [] if max_running is None else ["--max-running", str(max_running)]
    suite = ["suite", str(plan), "--output-dir", str(tmp_path / "suite")]
    assert submit(*limit, "--after", "7", "--", *suite) == 0
    *arrays, report = [line for line in capsys.readouterr().out.splitlines() if line.startswith("# sbatch")]
    waits = ["7"] * 3 if max_running is None else ["7", "ID-OF-SUITE", "ID-OF-SUITE-2"]
    shown = "" if max_running is None else "%2"
    assert arrays == [
        f"# sbatch --parsable --array=0-{last}{shown} --dependency=afterany:{first} {jobs}/next-suite.sh"
        for last, first in zip([2, 2, 0], waits, strict=True)
    ]
    ids = "ID-OF-SUITE:ID-OF-SUITE-2:ID-OF-SUITE-3"
    assert report == f"# sbatch --parsable --dependency=afterany:{ids} {jobs}/next-report.sh"


def test_a_submission_that_the_scheduler_refuses_leaves_no_script_and_does_not_disturb_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stub(tmp_path / "bin", monkeypatch, "sbatch", "echo 'Invalid partition name specified' >&2; exit 1")
    monkeypatch.chdir(tmp_path)
    assert main(["submit", "--partition", "nosuch", "--", "train", "ppo", "--output-dir", "runs/refused"]) == 1
    assert capsys.readouterr().err == "rlcluster: error: sbatch: Invalid partition name specified\n"
    assert not [path for path in Path("runs").rglob("*") if path.is_file()]
    run_with_job(Path("runs/other"), "finished")
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["status"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["runs/other", "finished"]


# Suites


def test_a_suite_that_is_submitted_again_skips_finished_cells_and_does_failed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stub(tmp_path / "bin", monkeypatch, "sbatch", 'echo "$*" >> "$0.calls"; wc -l < "$0.calls"')
    for name in ("scontrol", "squeue"):
        (tmp_path / "bin" / name).write_text("#!/bin/bash\n")
        (tmp_path / "bin" / name).chmod(0o755)
    plan, folder = tmp_path / "plan.yaml", tmp_path / "suite"
    plan.write_text(
        "modes: [sequential]\ngames: [CartPole-v1]\nseeds: [1, 2, 3]\nbudget: {total_timesteps: 400000}\n"
        "evaluation: {num_episodes: 0}\n"
    )
    submitting = ["submit", "--scheduler", "slurm", "--", "suite", str(plan), "--output-dir", str(folder)]
    assert main(submitting) == 0
    assert "submitted 3 cells in 3 tasks: job 1\njob 2 writes the report" in capsys.readouterr().out
    names = [f"ppo_sequential_CartPole-v1_seed{seed}" for seed in (1, 2, 3)]
    assert (folder / "jobs" / "tasks-1.txt").read_text().split() == names
    for name, state in zip(names, ("finished", "failed"), strict=False):
        ended = {"state": state, "steps_global": 4000, "update": 1}
        write_run(folder / "runs" / name, dict(CARTPOLE), [1.0], state=ended)
    assert main(submitting) == 0
    assert "submitted 2 cells in 2 tasks: job 3\njob 4 writes the report" in capsys.readouterr().out
    assert (folder / "jobs" / "tasks-2.txt").read_text().split() == names[1:]
    for name in names[1:]:
        (folder / "runs" / name).mkdir(exist_ok=True)
        (folder / "runs" / name / "run_state.json").write_text(json.dumps({**ended, "state": "finished"}))
    assert main(submitting) == 0
    assert "submitted 0 cells in 0 tasks: job -\njob 5 writes the report" in capsys.readouterr().out


def test_short_cells_share_a_task() -> None:
    short = [PendingCell(f"short{k}", 120.0) for k in range(5)]
    assert packed(short) == [["short0", "short1", "short2"], ["short3", "short4"]]
    assert packed([PendingCell("long", 900.0), *short[:2]]) == [["long"], ["short0", "short1"]]


@pytest.mark.parametrize(
    ("game", "network", "steps", "training", "num_tasks"),
    [
        ("CartPole-v1", None, 100_000, 100.0, 2),  # 100,000 / 1,000 steps/s; three of 114 s fill five minutes
        ("coinrun", None, 5_000, 100.0, 2),  # impala: 50 steps/s
        ("coinrun", "nature", 40_000, 100.0, 2),  # 400 steps/s
        ("coinrun", None, 1_000_000, 20_000.0, 4),
    ],
)
def test_cells_in_steps_of_a_suite_that_was_never_started_are_packed_by_an_assumed_speed(
    game: str, network: str | None, steps: int, training: float, num_tasks: int, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.yaml"
    chosen = "" if network is None else f"settings: {{policy: {{network: {network}}}}}\n"
    plan.write_text(
        f"modes: [sequential]\ngames: [{game}]\nseeds: [1, 2, 3, 4]\nbudget: {{total_timesteps: {steps}}}\n{chosen}"
    )
    cells = pending_cells(read_suite(plan), tmp_path)
    assert [cell.seconds for cell in cells] == [training + 4 + 10] * 4, "with its start and its evaluation"
    assert len(packed(cells)) == num_tasks


def test_a_recorded_cell_replaces_the_assumed_speed(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("modes: [sequential]\ngames: [CartPole-v1]\nseeds: [1, 2]\nbudget: {total_timesteps: 1e6}\n")
    suite = read_suite(plan)
    (tmp_path / "suite" / "cells").mkdir(parents=True)
    record_outcome(tmp_path / "suite", Outcome(suite.cells[0].name, "finished", 80.0, 2.0))
    assert pending_cells(suite, tmp_path / "suite", "seed2")[0].seconds == 82.0


# Status

RECORD = JobRecord("17", "slurm", "train", "2026-01-31T12:00:00", ["train"])
CARTPOLE = {"env.name": "CartPole-v1", "training.total_timesteps": 4000}


def run_with_job(path: Path, state: str, history: str = "", reason: str | None = None) -> Path:
    status = {"state": state, "steps_global": 1000, "update": 1, "reason": reason, "failed_rank": None}
    write_run(path, dict(CARTPOLE), [1.0, 2.0], state={**status, "restarts": 0, "parent": 1})
    record_job(path, RECORD, "#!/bin/bash\n")
    (job_folder(path) / "17" / "history.txt").write_text(history)
    return path


@pytest.mark.parametrize(
    ("state", "word", "expected"),
    [
        ("preempted", "PENDING", "pending"),
        ("preempted", "RUNNING", "running"),
        ("finished", "COMPLETED", "finished"),
        ("failed", "FAILED", "failed"),
        ("preempted", "CANCELLED", "cancelled"),
        ("preempted", "FAILED", "stopped"),
        ("preempted", None, "stopped"),  # too long ago: the scheduler has forgotten it
    ],
)
def test_a_status_joins_the_scheduler_and_the_run(state: str, word: str | None, expected: str, tmp_path: Path) -> None:
    run = run_with_job(tmp_path / "run", state, "2026-01-31 12:00:01 started on n[1-2]\n")
    (row,) = rows_of(run, [] if word is None else [_slurm_state(f"17|{word}|n[1-2]|None")])
    assert (row.state, row.steps, row.hosts) == (expected, 2000, "n[1-2]")


def test_a_run_that_may_not_be_requeued_any_more_says_so(tmp_path: Path) -> None:
    used_up = "not started again: --max-requeues 1 is used up (saved before the time limit)"
    run = run_with_job(tmp_path / "run", "preempted", f"2026-01-31 12:00:01 {used_up}\n", reason="SIGUSR1")
    (row,) = rows_of(run, [_slurm_state("17|FAILED|n1|NonZeroExitCode")])
    assert (row.state, row.note) == ("stopped", f"{used_up}; submit it again to resume")


def test_without_the_scheduler_a_status_is_the_runs_own(tmp_path: Path) -> None:
    run = run_with_job(tmp_path / "run", "failed", reason="rank 1 did not answer")
    (row,) = rows_of(run, None)
    assert (row.state, row.note) == ("failed", "rank 1 did not answer")


def test_a_job_that_was_cancelled_long_ago_is_not_a_failure(tmp_path: Path) -> None:
    record_job(tmp_path, RECORD, "")
    record_cancelled(tmp_path, ["17"])
    (row,) = rows_of(tmp_path, [])
    assert (row.state, row.note) == ("cancelled", "")


@pytest.mark.parametrize(
    ("state", "word", "failed_at", "expected"),
    [
        ("running", "RUNNING", None, "running"),  # on another machine: its lock is not seen here
        ("running", "RUNNING", 1, "running"),  # it had failed before
        ("running", "RUNNING", 4e9, "failed"),  # it has failed since, without a last word of its own
        ("running", "COMPLETED", None, "failed"),  # nobody runs it any more
        ("failed", "RUNNING", None, "failed"),
    ],
)
def test_a_cell_that_runs_on_another_machine_is_not_a_failure(
    state: str, word: str, failed_at: float | None, expected: str, tmp_path: Path
) -> None:
    record_job(tmp_path, RECORD._replace(kind="suite"), "")
    cell = tmp_path / "runs" / "cell"
    write_run(cell, dict(CARTPOLE), [1.0], state={"state": state, "steps_global": 0, "update": 0})
    if failed_at is not None:
        outcome = tmp_path / "cells" / "cell.json"
        outcome.parent.mkdir()
        outcome.write_text(json.dumps(Outcome("cell", "failed", 1.0, 0.0, "once")._asdict()))
        os.utime(outcome, (failed_at, failed_at))
    rows = rows_of(tmp_path, [_slurm_state(f"17_0|{word}|n1|None")])
    assert [(row.name, row.state) for row in rows[1:]] == [("cell", expected)]


def test_a_job_that_failed_before_its_run_began_shows_its_last_error(tmp_path: Path) -> None:
    record_job(tmp_path, RECORD, "")
    failed = [_slurm_state("17|FAILED|n1|NonZeroExitCode")]
    (row,) = rows_of(tmp_path, failed)
    assert (row.state, row.note) == ("failed", f"the job has written nothing; is {tmp_path}/jobs visible on the nodes?")
    (tmp_path / "jobs" / "17" / "rank-0000.log").write_text("...\nrlcluster: error: rank 0: env.name=x: no such game\n")
    (row,) = rows_of(tmp_path, failed)
    assert row.note == "rank 0: env.name=x: no such game"
    assert table([row]).splitlines()[1].split()[1:3] == ["failed", "17"]


def test_a_run_that_could_not_write_its_error_shows_the_one_of_its_log(tmp_path: Path) -> None:
    """As after a full disk: it still says `running`, and nobody writes it."""
    run = run_with_job(tmp_path / "run", "running")
    failed = [_slurm_state("17|FAILED|n1|NonZeroExitCode")]
    (row,) = rows_of(run, failed)
    assert (row.state, row.note) == ("failed", "its process ended without reporting an error")
    (run / "jobs" / "17" / "rank-0000.log").write_text("...\nrlcluster: error: rank 0: No space left on device\n")
    (row,) = rows_of(run, failed)
    assert (row.state, row.note) == ("failed", "rank 0: No space left on device")


def test_requeues_are_counted_over_the_tasks_of_an_array(tmp_path: Path) -> None:
    record_job(tmp_path, RECORD, "")
    refused = "requeued 1 of 20: saved\n2026-01-31 12:00:09 not started again: scontrol does not work on n1"
    ends = ["requeued 1 of 20: saved", "preempted, requeued", refused, "failed, so it is not requeued"]
    for task, text in enumerate(ends):
        folder = job_folder(tmp_path) / f"17_{task}"
        folder.mkdir()
        (folder / "history.txt").write_text(f"2026-01-31 12:00:0{task} {text}\n")
    assert len(history_of(tmp_path, "17")) == 5
    assert num_requeues(tmp_path, jobs_of(tmp_path)) == 2


def test_the_words_of_the_schedulers_are_read() -> None:
    assert _slurm_state("12_3|COMPLETING|n1|None") == JobState("12_3", "running", "COMPLETING", "n1", "")
    assert _slurm_state("12|PENDING||Resources").reason == "Resources"
    assert _pbs_state("17[3].server   name  user  00:00:01 R workq") == JobState("17[3]", "running", "R")
    assert _pbs_state("17[].server   name  user  0 B workq") == JobState("17[]", "running", "B")
    assert _pbs_state("Job id   Name   User  Time Use S Queue") is None


def test_a_table_aligns_its_columns() -> None:
    lines = table([Row("a", "running", "1", 1000, 99.6, 3661.0, 1, 0, "n1", ""), Row("bbb", "failed", note="why")])
    assert lines.splitlines()[1].split() == ["a", "running", "1", "1,000", "100", "1:01:01", "1", "0", "n1"]
    assert lines.splitlines()[2].split() == ["bbb", "failed", "-", "-", "-", "-", "0", "0", "-", "why"]
