"""PBS: the whole flow on this machine, with stubs of qsub and pbsdsh. No real PBS can be installed here; pbsdsh's stub
passes no environment, as the real one does not.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from hosts import PATIENCE_SECONDS, processes_with, until

from rlcluster.cli import main
from rlcluster.cluster.host import rank_variables
from rlcluster.cluster.schedulers import SCHEDULERS, Array
from rlcluster.cluster.script import FINAL_CODES_OF_A_TASK, Work, make_script
from rlcluster.cluster.settings import JobSettings
from rlcluster.runs.jobs import JobRecord, jobs_of, record_job
from rlcluster.runs.status import read_state

from conftest import CARTPOLE, command, flags, metrics, start, train

OPTIONS = {**CARTPOLE, "--n-minibatches": 2, "--n-epochs": 2, "--total-updates": 4}

QSUB = """#!/bin/bash
# Writes down how it was called, and gives the next number.
number=$(($(cat "$STUBS/number") + 1)); echo $number > "$STUBS/number"
echo "qsub $*" >> "$STUBS/calls"
case " $* " in *" -J "* | *" -t "*) echo "$number[].server.cluster" ;; *) echo "$number.server.cluster" ;; esac
"""
PBSDSH = """#!/bin/bash
# pbsdsh -n LINE PROGRAM ...: on the host of that line of the node file, all of which are this machine. What runs there
# does not end with this process.
echo "pbsdsh $1 $2" >> "$STUBS/calls"
shift 2
if [ -e "$STUBS/late" ]; then set -- setsid --fork "$@"; fi    # what the host writes comes after pbsdsh has ended
exec setsid --fork --wait env -i PATH=/usr/bin:/bin STUBS="$STUBS" PBS_JOBID="$PBS_JOBID" "$@"
"""
SSH = """#!/bin/bash
# ssh -o BatchMode=yes HOST COMMAND: in a new session of that host, which is this machine, by the user's shell. What
# runs there does not end with this process.
echo "ssh $1 $2 $3" >> "$STUBS/calls"
shift 3
cd / && exec setsid --fork --wait env -i PATH=/usr/bin:/bin STUBS="$STUBS" bash -c "$*"
"""
QDEL = """#!/bin/bash
echo "qdel $*" >> "$STUBS/calls"
"""
QSTAT = """#!/bin/bash
[ "$1" = --version ] && echo 'pbs_version = 23.06.06' && exit
cat "$STUBS/qstat"
"""


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stubs and of what they write; two hosts, which are both this machine."""
    folder = tmp_path / "stubs"
    (folder / "bin").mkdir(parents=True)
    for name, text in {"qsub": QSUB, "pbsdsh": PBSDSH, "ssh": SSH, "qstat": QSTAT, "qdel": QDEL}.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    (folder / "number").write_text("40")
    (folder / "qstat").write_text("")
    (folder / "nodes").write_text("localhost\nlocalhost\n127.0.0.1\n127.0.0.1\n")
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("STUBS", str(folder))
    return folder


def rlcluster(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=120, check=False)


def submit(run: Path, job: str, options: dict[str, object], site_lines: str = "") -> str:
    """Returns what it says."""
    training = ["train", "ppo", "--output-dir", str(run), *flags(options)]
    site = run.parent / "site.yaml"
    site.write_text(f"scheduler: pbs\ninterface: lo\n{site_lines}")
    result = rlcluster("submit", "--site", site, *job.split(), "--", *training)
    assert result.returncode == 0, result.stderr
    return result.stdout


def run_job(run: Path, stubs: Path, number: int, **variables: str) -> int:
    """What PBS does with the script of a job."""
    environment = {**job_environment(stubs, number), **variables}
    return subprocess.run(["bash", job_script(run, number)], env=environment, timeout=200, check=False).returncode


def job_script(run: Path, number: int) -> Path:
    return run / "jobs" / str(number) / "job.sh"


def job_environment(stubs: Path, number: int) -> dict[str, str]:
    return {**os.environ, "PBS_JOBID": f"{number}.server", "PBS_NODEFILE": str(stubs / "nodes")}


def calls(stubs: Path) -> list[str]:
    return (stubs / "calls").read_text().splitlines()


@pytest.mark.slow
def test_a_job_of_two_hosts_equals_a_local_run(stubs: Path, tmp_path: Path) -> None:
    run = tmp_path / "it's a run"
    submit(run, "--nodes 2 --time 10m --memory 2G", OPTIONS)
    script = (run / "jobs" / "41" / "job.sh").read_text()
    assert "#PBS -l select=2:ncpus=1:mpiprocs=1:mem=2GB\n#PBS -l place=scatter\n#PBS -l walltime=0:10:00" in script
    assert run_job(run, stubs, 41) == 0
    assert sorted(line for line in calls(stubs) if "pbsdsh" in line) == ["pbsdsh -n 0", "pbsdsh -n 2"]
    local = train("ppo", tmp_path / "local", {**OPTIONS, "--mode": "parallel", "--num-workers": 2})
    assert local.returncode == 0, local.stderr
    assert metrics(run) == metrics(tmp_path / "local")
    assert sorted(log.name for log in run.glob("jobs/41/rank-*.log")) == ["rank-0000.log", "rank-0001.log"]
    assert (run / "jobs" / "41" / "environment.sh").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_where_the_site_says_so_the_hosts_are_reached_by_ssh(stubs: Path, tmp_path: Path) -> None:
    """ssh gives its words to a shell, so that those of a hostile name are quoted twice."""
    run = tmp_path / "it's; touch pwned $(touch pwned)"
    submit(run, "--nodes 2 --time 10m", {**OPTIONS, "--total-updates": 1}, "launch: ssh\n")
    assert run_job(run, stubs, 41) == 0
    reached = [line for line in calls(stubs) if not line.startswith("qsub")]
    assert sorted(reached) == [f"ssh -o BatchMode=yes {host}" for host in ("127.0.0.1", "localhost")]
    assert (run / "jobs/41/history.txt").read_text().endswith(" finished\n")
    assert len(metrics(run)) == 1
    assert sorted(log.name for log in run.glob("jobs/41/rank-*.log")) == ["rank-0000.log", "rank-0001.log"]
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.slow
@pytest.mark.parametrize("launch", ["pbsdsh", "ssh"])
def test_a_cancelled_job_ends_after_its_ranks_have_saved_and_leaves_nothing(
    launch: str, stubs: Path, tmp_path: Path
) -> None:
    """PBS signals all that it has started itself at once: the script and, with ssh, no rank. It kills what is left when
    the script ends.
    """
    run = tmp_path / "it's a run"
    endless = {**OPTIONS, "--total-updates": 1_000_000, "--checkpoint-updates": 1}
    submit(run, "--nodes 2 --time 10m", endless, f"launch: {launch}\n")
    script = ["bash", str(job_script(run, 41))]
    started = {"env": job_environment(stubs, 41), "start_new_session": True}
    job = start(run, script, "checkpoints/*_step_*.pt", **started)
    others = list(processes_with(str(run))) if launch == "pbsdsh" else []
    os.killpg(job.pid, signal.SIGTERM)
    for process in others:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    try:
        assert job.wait(PATIENCE_SECONDS) == 143
        state = read_state(run)
        assert state is not None
        assert (state.state, state.reason) == ("preempted", "SIGTERM")
        assert until(lambda: not list(processes_with(str(run))))
    finally:
        for process in processes_with(str(run)):
            process.kill()
    assert (run / "jobs/41/history.txt").read_text().endswith(" stopped by the scheduler (exit code 143)\n")


def test_a_job_that_is_cancelled_before_its_ranks_start_starts_none(stubs: Path, tmp_path: Path) -> None:
    submit(tmp_path / "run", "--time 10m", OPTIONS, "lines: ['kill -TERM $$']\n")
    assert run_job(tmp_path / "run", stubs, 41) == 143
    assert not any("pbsdsh" in call for call in calls(stubs))
    history = (tmp_path / "run/jobs/41/history.txt").read_text()
    assert history.endswith(" stopped by the scheduler (exit code 143)\n")


def test_every_rank_of_a_host_knows_the_cores_that_the_job_asked_for_there(stubs: Path, tmp_path: Path) -> None:
    """pbsdsh passes no environment, and without cpusets the affinity is that of the whole host."""
    (stubs / "bin" / "rank").write_text('#!/bin/bash\necho "$RLCLUSTER_CORES" >> "$STUBS/limits"\n')
    (stubs / "bin" / "rank").chmod(0o755)
    job = JobSettings.model_validate({"time": "1h", "nodes": 2, "ranks_per_node": 2, "cores_per_rank": 4})
    work = Work(tmp_path / "run", tmp_path / "run", ["train", "ppo"])
    script = make_script(work, tmp_path / "run" / "jobs", job, SCHEDULERS["torque"], None)
    rank = f"{sys.executable} -m rlcluster train ppo"
    assert script.count(rank) == 1
    record_job(tmp_path / "run", JobRecord("41", "torque", "train", "", []), script.replace(rank, "rank"))
    assert run_job(tmp_path / "run", stubs, 41) == 0
    assert (stubs / "limits").read_text().split() == ["8"] * 4, "2 ranks of each host share 2 x 4 cores"


@pytest.mark.slow
def test_a_run_saves_before_the_wall_time_and_is_submitted_again(stubs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    submit(run, "--time 20s --save-before 10s", {**OPTIONS, "--total-updates": 1_000_000})
    (stubs / "nodes").write_text("localhost\n")
    assert run_job(run, stubs, 41) == 0
    state = read_state(run)
    assert state is not None
    assert (state.state, state.reason) == ("preempted", "SIGUSR1")
    assert calls(stubs)[-1] == f"qsub -v RLCLUSTER_REQUEUES=1 {run}/jobs/41/job.sh"
    assert "requeued 1 of 20 as 42: saved before the time limit" in (run / "jobs/41/history.txt").read_text()
    assert [record.id for record in jobs_of(run)] == ["41", "42"]
    (stubs / "qstat").write_text("42.server  run  user  00:00:01 R workq\n41.server  run  user  00:00:01 F workq\n")
    result = rlcluster("status", run, "--json")
    (row,) = json.loads(result.stdout)
    assert (result.returncode, row["state"], row["job"], row["requeues"]) == (0, "running", "42", 1)
    assert run_job(run, stubs, 42, RLCLUSTER_REQUEUES="20") == 75
    assert "not started again: --max-requeues 20 is used up" in (run / "jobs/42/history.txt").read_text()
    assert "resuming at update" in (run / "jobs/42/rank-0000.log").read_text()
    (stubs / "qstat").write_text("")
    saved = read_state(run)
    assert saved is not None
    again = submit(run, "--time 10m", {**OPTIONS, "--total-updates": saved.update + 2})
    assert f"submitted job 43, which resumes its run -> {run}" in again
    assert run_job(run, stubs, 43) == 0
    assert f"resuming at update {saved.update}," in (run / "jobs/43/rank-0000.log").read_text()
    assert len(metrics(run)) == saved.update + 2


class Said(NamedTuple):
    """What a command of rlcluster has done in this process."""

    code: int
    out: str
    err: str


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def run(*arguments: str | Path) -> Said:
        code = main([str(argument) for argument in arguments])
        return Said(code, *capsys.readouterr())

    return run


def test_pbs_needs_the_time_limit_and_torque_differs_in_resources_and_arrays(
    stubs: Path, tmp_path: Path, say: Callable[..., Said]
) -> None:
    training = ["--", "train", "ppo", "--output-dir", str(tmp_path / "run")]
    refused = say("submit", "--scheduler", "pbs", *training)
    assert refused.code == 2
    assert "PBS gives no signal before the wall time, so the run must know it: give --time 4h" in refused.err
    nodes = ["--nodes", "2", "--ranks-per-node", "4", "--cores-per-rank", "2", "--time", "90m", "--memory", "1G"]
    torque = say("submit", "--dry-run", "--scheduler", "torque", *nodes, *training).out
    assert "#PBS -l nodes=2:ppn=8\n#PBS -l mem=8gb\n#PBS -l walltime=1:30:00" in torque
    assert "#PBS -S /bin/bash\n" in torque
    plan = tmp_path / "plan.yaml"
    plan.write_text("games: [coinrun, maze]\nbudget: {total_timesteps: 1e6}\n")
    suite = ["--dry-run", "--time", "1h", "--max-running", "5", "--", "suite", plan]
    assert "# qsub -J 0-1%5 " in say("submit", "--scheduler", "pbs", *suite).out
    assert "# qsub -t 0-1%5 " in say("submit", "--scheduler", "torque", *suite).out
    assert not (stubs / "calls").exists(), "a dry run submits nothing"
    assert not (tmp_path / "run").exists()


@pytest.fixture
def array(stubs: Path, tmp_path: Path) -> Path:
    """The folder of a suite whose array has the number 41. Its tasks end with the code in the file `code`."""
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\necho "$*" >> "$STUBS/calls"\nexit "$(cat "$STUBS/code")"\n')
    python.chmod(0o755)
    folder, job = tmp_path / "suite", JobSettings.model_validate({"time": "1h"})
    report = ["suite", "plan.yaml", "--report-only"]
    work = Work(folder, folder, ["suite", "plan.yaml"], True, FINAL_CODES_OF_A_TASK, report)
    script = make_script(work, folder / "jobs", job, SCHEDULERS["pbs"], None).replace(sys.executable, str(python))
    record_job(folder, JobRecord("41", "pbs", "suite", "2026-01-31T12:00:00", ["suite"]), script)
    (stubs / "nodes").write_text("localhost\n")
    (stubs / "number").write_text("41")
    (stubs / "code").write_text("75")
    return folder


@pytest.mark.parametrize("code", [0, 1])
def test_a_task_that_was_submitted_again_updates_the_report_which_did_not_wait_for_it(
    code: int, stubs: Path, array: Path
) -> None:
    (stubs / "code").write_text(str(code))
    assert run_job(array, stubs, 41, PBS_JOBID="41[3].server", PBS_ARRAY_INDEX="3") == code
    assert not any("--report-only" in call for call in calls(stubs)), "the job of the report waits for the array"
    record_job(
        array, JobRecord("42", "pbs", "suite", "2026-01-31T12:00:00", []), (array / "jobs/41/job.sh").read_text()
    )
    assert run_job(array, stubs, 42, RLCLUSTER_REQUEUES="1", RLCLUSTER_TASK="3") == code
    assert calls(stubs)[-1] == "-m rlcluster suite plan.yaml --report-only"


def test_exit_codes_that_a_shared_file_system_shows_late_are_waited_for(stubs: Path, array: Path) -> None:
    (stubs / "code").write_text("0")
    (stubs / "late").touch()
    assert run_job(array, stubs, 41, PBS_JOBID="41[3].server", PBS_ARRAY_INDEX="3") == 0
    assert (array / "jobs" / "41[3]" / "history.txt").read_text().endswith(" finished\n")


def test_a_task_of_an_array_submits_itself_again_alone(stubs: Path, array: Path) -> None:
    folder = array
    assert run_job(folder, stubs, 41, PBS_JOBID="41[3].server", PBS_ARRAY_INDEX="3") == 0
    _, host, again = calls(stubs)
    assert re.search(r"rlcluster suite plan.yaml --task 3 --max-wall 34[12]\ds$", host), "an hour, less three minutes"
    assert again == f"qsub -v RLCLUSTER_REQUEUES=1,RLCLUSTER_TASK=3 {folder}/jobs/41/job.sh"
    assert [record.id for record in jobs_of(folder)] == ["41", "42"]
    assert run_job(folder, stubs, 42, RLCLUSTER_REQUEUES="1", RLCLUSTER_TASK="3") == 0
    assert calls(stubs)[-1].startswith("qsub -v RLCLUSTER_REQUEUES=2,RLCLUSTER_TASK=3 ")


def test_jobs_wait_for_arrays_by_the_names_that_pbs_gives_them() -> None:
    after = ["7", "41[]", "42[]"]
    pbs, torque = SCHEDULERS["pbs"], SCHEDULERS["torque"]
    assert pbs.submit_command("job.sh", None, after) == ["qsub", "-W", "depend=afterany:7:41[]:42[]", "job.sh"]
    assert torque.submit_command("job.sh", None, after)[2] == "depend=afterany:7,afteranyarray:41[]:42[]"
    assert torque.submit_command("job.sh", None, after[1:])[2] == "depend=afteranyarray:41[]:42[]"
    assert pbs.submit_command("job.sh", Array(1, 5), []) == ["qsub", "-v", "RLCLUSTER_TASK=0", "job.sh"], "no array"


@pytest.mark.parametrize("scheduler", ["pbs", "torque"])
@pytest.mark.parametrize("job", ["12_3", "12;ls", "server.12", "12[", "12:13", "afterany:12"])
def test_a_job_to_wait_for_needs_an_id_of_the_scheduler(
    scheduler: str, job: str, stubs: Path, say: Callable[..., Said]
) -> None:
    command = ["submit", "--dry-run", "--scheduler", scheduler, "--time", "1h", "--after", job, "--", "train", "ppo"]
    refused = say(*command)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert f"should be the id of a job of {scheduler}, as 12, 12[] or 12.server" in refused.err
    assert not (stubs / "calls").exists()


@pytest.mark.parametrize("job", ["12", "12[]", "12[3]", "12.server-1.cluster.org", "12[].server"])
def test_a_job_to_wait_for_may_be_of_an_array_and_name_its_server(
    job: str, stubs: Path, say: Callable[..., Said]
) -> None:
    command = ["submit", "--dry-run", "--time", "1h", "--after", job, "--scheduler"]
    shown = shlex.quote(f"depend=afterany:{job}")
    assert f"# qsub -W {shown} " in say(*command, "pbs", "--", "train", "ppo").out
    kind = "afteranyarray" if "[]" in job else "afterany"
    shown = shlex.quote(f"depend={kind}:{job}")
    assert f"# qsub -W {shown} " in say(*command, "torque", "--", "train", "ppo").out


@pytest.mark.parametrize("scheduler", ["pbs", "torque"])
def test_a_quality_of_service_is_refused_with_the_way_to_ask_for_it(
    scheduler: str, stubs: Path, tmp_path: Path, say: Callable[..., Said]
) -> None:
    training = ["--dry-run", "--time", "1h", "--", "train", "ppo", "--output-dir", str(tmp_path / "run")]
    refused = say("submit", "--scheduler", scheduler, "--qos", "high", *training)
    assert refused.err == (
        "rlcluster: error: submit: qos=high is a flag of Slurm; on PBS give the flag that your site has for it, as "
        "--scheduler-arg='-l qos=high'\n"
    )
    assert refused.code == 2
    given = say("submit", "--scheduler", scheduler, "--scheduler-arg=-l qos=high", *training)
    assert "#PBS -l qos=high\n" in given.out
    assert not (stubs / "calls").exists()


def test_a_suite_is_an_array_and_a_report_that_waits_for_it_and_both_are_cancelled(
    stubs: Path, tmp_path: Path, say: Callable[..., Said]
) -> None:
    plan, folder = tmp_path / "plan.yaml", tmp_path / "suite"
    plan.write_text("games: [coinrun, maze]\nbudget: {total_timesteps: 1e6}\n")
    submitting = ["submit", "--scheduler", "pbs", "--time", "1h", "--", "suite", plan, "--output-dir", folder]
    assert "submitted 2 cells in 2 tasks: job 41[]\njob 42 writes the report" in say(*submitting).out
    array, report = calls(stubs)
    assert array == f"qsub -J 0-1 {folder}/jobs/next-suite.sh"
    assert report == f"qsub -W depend=afterany:41[] {folder}/jobs/next-report.sh"
    script = (folder / "jobs" / "41" / "job.sh").read_text()
    assert f"-m rlcluster suite {plan} --output-dir {folder} --report-only; fi\n" in script
    (stubs / "qstat").write_text("41[].server  suite  user  0 B workq\n42.server  suite  user  0 H workq\n")
    assert "has a job already: 41[] 42;" in say(*submitting).err
    assert say("cancel", folder).code == 0
    assert calls(stubs)[-1] == "qdel 41[] 42"


def test_ranks_are_numbered_over_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PBS_JOBID", "17[3].server")
    assert rank_variables(["n1", "n2"], 4, 1, 2) == {
        "RANK": "6",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "2",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": str(20000 + 7 * 17),
    }


def test_a_host_returns_the_worst_exit_code_of_its_ranks_and_logs_each(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("n1\n")
    host = [sys.executable, "-m", "rlcluster.cluster.host", "--ranks", "2", "--hosts", str(tmp_path / "hosts")]
    ranks = ["bash", "-c", 'echo "rank $RANK"; exit $((70 + RANK))']
    result = subprocess.run(
        [*host, "--host-number", "0", "--log-dir", str(tmp_path), "--", *ranks], timeout=60, check=False
    )
    assert result.returncode == 71
    assert [(tmp_path / f"rank-000{k}.log").read_text() for k in range(2)] == ["rank 0\n", "rank 1\n"]
