"""The generated scripts: what they do after each end of the ranks, and that no name of a user becomes code.

The scheduler's commands are stubs here: they write down how they were called. `test_slurm.py` has the real ones.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rlcluster.cluster.schedulers import SCHEDULERS
from rlcluster.cluster.script import FINAL_CODES_OF_A_TASK, Work, make_script, placeholders, program_words, setup_lines
from rlcluster.cluster.settings import JobSettings
from rlcluster.system.errors import UserError

from conftest import CARTPOLE, command, flags, metrics

SRUN = """#!/bin/bash
# Ends with the next of the codes; `save` before a code writes a checkpoint, `wait` waits for SIGUSR1 first.
echo "srun $*" >> "$STUBS/calls"
line=$(head -1 "$STUBS/codes"); sed -i 1d "$STUBS/codes"
for word in $line; do
    case $word in
        save) touch -d '+1 second' "$STUBS/checkpoints/ppo_step_7.pt" ;;
        wait) trap 'told=yes' USR1; echo ready >> "$STUBS/calls"; until [ -n "${told:-}" ]; do sleep 0.05; done ;;
        *) exit "$word" ;;
    esac
done
"""
SCONTROL = """#!/bin/bash
echo "scontrol $*" >> "$STUBS/calls"
[ "$1" != show ] || echo "JobState=$(cat "$STUBS/state")"
[ ! -e "$STUBS/no-scontrol" ]
"""


class Site(NamedTuple):
    """A node whose scheduler consists of stubs."""

    folder: Path

    def script(self, **changes: Any) -> Path:
        job = JobSettings.model_validate({"time": "1h", "max_requeues": 2, **changes})
        work = Work(self.folder / "run", self.folder / "checkpoints", ["train", "ppo"])
        file = self.folder / "job.sh"
        file.write_text(make_script(work, self.folder / "jobs", job, SCHEDULERS["slurm"], None))
        return file

    def environment(self) -> dict[str, str]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        variables = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-2]", "STUBS": str(self.folder), "PATH": path}
        return {**os.environ, **variables}

    def run(self, codes: list[str], **variables: str) -> int:
        return self.run_with({}, codes, **variables)

    def run_with(self, changes: dict[str, Any], codes: list[str], umask: int = -1, **variables: str) -> int:
        """`changes` are settings of the job."""
        (self.folder / "codes").write_text("\n".join(codes) + "\n")
        environment = {**self.environment(), **variables}
        script = ["bash", self.script(**changes)]
        return subprocess.run(script, env=environment, timeout=60, check=False, umask=umask).returncode

    def history(self, job: str = "17") -> list[str]:
        """Without the times."""
        return [line[20:] for line in (self.folder / "jobs" / job / "history.txt").read_text().splitlines()]

    def calls(self, name: str) -> list[str]:
        return [line for line in (self.folder / "calls").read_text().splitlines() if line.startswith(name)]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "bin").mkdir()
    (tmp_path / "checkpoints").mkdir()
    for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "state").write_text("RUNNING")
    return Site(tmp_path)


def test_a_finished_run_ends_the_job(site: Site) -> None:
    assert site.run(["0"]) == 0
    assert site.history() == ["started on n[1-2]", "finished"]
    assert site.calls("scontrol") == []


def test_a_saved_run_is_requeued_a_bounded_number_of_times(site: Site) -> None:
    for _ in range(2):
        assert site.run(["75"]) == 0
    assert site.run(["75"]) == 75
    assert site.calls("scontrol") == ["scontrol requeue 17"] * 2
    assert site.history()[-1] == "not started again: --max-requeues 2 is used up (saved before the time limit)"


def test_a_task_of_an_array_requeues_itself_alone(site: Site) -> None:
    assert site.run(["75"], SLURM_ARRAY_JOB_ID="12", SLURM_ARRAY_TASK_ID="3") == 0
    assert site.calls("scontrol") == ["scontrol requeue 12_3"]
    assert site.history("12_3")[-1] == "requeued 1 of 2: saved before the time limit"


@pytest.mark.parametrize("code", [2, 74])
def test_wrong_settings_and_a_full_disk_are_not_tried_again(code: int, site: Site) -> None:
    assert site.run([str(code), "0"]) == code
    assert site.history()[-1] == f"failed with exit code {code}: starting it again would not help"
    assert len(site.calls("srun")) == 1


def test_a_trainer_that_fails_at_once_is_restarted_but_not_requeued(site: Site) -> None:
    assert site.run(["1", "1", "0"]) == 1
    restart, end = site.history()[1:]
    assert restart == "restart 1 of 1 after exit code 1"
    assert end.startswith("failed with exit code 1: no checkpoint was written since this job started")
    assert site.calls("scontrol") == []


def test_a_trainer_that_fails_after_it_has_saved_is_requeued(site: Site) -> None:
    assert site.run(["137", "save 71"]) == 0
    assert site.history()[1:] == ["restart 1 of 1 after exit code 137", "requeued 1 of 2: exit code 71"]


def test_a_cancelled_job_is_not_requeued_and_a_preempted_one_is(site: Site) -> None:
    (site.folder / "state").write_text("CANCELLED")
    assert site.run(["143"]) == 143
    assert site.history()[-1] == "stopped by the scheduler (exit code 143)"
    (site.folder / "state").write_text("RUNNING")
    assert site.run(["143"]) == 0
    assert site.history()[-1] == "preempted, requeued"
    assert site.calls("scontrol requeue") == ["scontrol requeue 17"]


def test_where_scontrol_does_not_work_the_history_says_how_to_resume(site: Site) -> None:
    (site.folder / "no-scontrol").touch()
    assert site.run(["75"]) == 75
    assert "submit the same command again to resume (saved before the time limit)" in site.history()[-1]


@pytest.mark.parametrize("when", ["at once", "while the ranks run"])
def test_the_signal_before_the_time_limit_reaches_the_ranks_whenever_it_comes(when: str, site: Site) -> None:
    (site.folder / "codes").write_text("wait 75\n")
    with subprocess.Popen(["bash", site.script()], env=site.environment()) as process:
        sign = site.folder / ("jobs/17.log" if when == "at once" else "calls")  # the log: the traps follow at once
        while not sign.exists() or (when != "at once" and not site.calls("ready")):
            time.sleep(0.01)
        wanted = f"{1 << (signal.SIGUSR1 - 1):016x}"
        while int(_caught(process.pid), 16) & int(wanted, 16) == 0:
            time.sleep(0.01)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(30) == 0
    assert site.history()[-1] == "requeued 1 of 2: saved before the time limit"


def _caught(pid: int) -> str:
    """The signals that a process handles, as a mask."""
    text = Path(f"/proc/{pid}/status").read_text()
    return next(line.split()[1] for line in text.splitlines() if line.startswith("SigCgt"))


@pytest.mark.slow
def test_a_signal_while_a_rank_starts_is_not_lost(tmp_path: Path) -> None:
    """From the first moment on, as the script repeats it."""
    options = {**CARTPOLE, "--total-updates": 1_000_000}
    training = command("train", "ppo", "--in-job", "--output-dir", tmp_path / "run", *flags(options))
    ignoring = ["bash", "-c", 'trap "" USR1; echo; exec "$@"', "rank", *training]
    with subprocess.Popen(ignoring, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the shell ignores the signal from here on
        while process.poll() is None:
            process.send_signal(signal.SIGUSR1)
            time.sleep(0.02)
        assert process.returncode == 75, process.stderr
    resumed = command("train", "--in-job", "--output-dir", tmp_path / "run", "--total-updates", "2")
    result = subprocess.run(resumed, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert "resuming at update" in result.stdout


# The site's lines


def test_modules_and_environments_may_use_variables_that_are_not_set(site: Site) -> None:
    assert site.run_with({"lines": ['echo "path: $NOT_SET_ANYWHERE"']}, ["0"]) == 0
    assert "path: \n" in (site.folder / "jobs" / "17.log").read_text()


@pytest.mark.parametrize(
    ("changes", "setting"),
    [({"modules": ["gcc/12"]}, "modules: gcc/12"), ({"environment": "/no where"}, "environment: /no where")],
)
def test_a_module_or_an_environment_that_cannot_be_loaded_ends_the_job(
    changes: dict[str, Any], setting: str, site: Site
) -> None:
    assert site.run_with(changes, ["0"]) == 2
    log = (site.folder / "jobs" / "17.log").read_text()
    assert f"rlcluster: error: {setting}: cannot be loaded on this node\n" in log
    assert not (site.folder / "calls").exists(), "no rank was started"


def test_a_node_that_cannot_enter_the_folder_of_the_submission_says_so(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    (site.folder / "local").mkdir()
    monkeypatch.chdir(site.folder / "local")
    script = site.script()
    (site.folder / "local").rmdir()
    ended = subprocess.run(["bash", script], env=site.environment(), cwd=site.folder, timeout=60, check=False)
    assert ended.returncode == 74
    assert "cannot enter the folder in which the job was submitted" in site.history()[-1]


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o002, 0o644)])
def test_a_jobs_files_are_as_private_as_the_user_wants_and_nobody_else_may_write_them(
    umask: int, mode: int, site: Site
) -> None:
    assert site.run_with({}, ["0"], umask=umask) == 0
    assert (site.folder / "jobs" / "17" / "history.txt").stat().st_mode & 0o777 == mode


# Hostile names

HOSTILE = [
    "a b",
    "it's",
    'say "no"',
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned;",
    "%j%t@jobs@",
    "-x",
    "é",
    "\\",
    "*",
]


MEANT = "SC1091,SC2016,SC1003"  # files of the nodes; names that the shell must not expand


def checked(script: str, tmp_path: Path) -> None:
    """As far as bash and shellcheck can tell."""
    file = tmp_path / "checked.sh"
    file.write_text(script)
    subprocess.run(["bash", "-n", file], check=True)
    if shutil.which("shellcheck"):
        result = subprocess.run(["shellcheck", f"--exclude={MEANT}", file], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout
    else:
        assert "CI" not in os.environ, "shellcheck is missing in CI"


@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])  # Torque differs in its directives alone
@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_users_never_become_code(name: str, scheduler: Any, tmp_path: Path) -> None:
    activate = tmp_path / f"env {name}" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    site = {"modules": ["gcc/12"], "environment": str(activate.parents[1]), "scratch": name}
    more = {**site, "interface": "ib0", "launch": "ssh"}
    job = JobSettings.model_validate({"time": "2h", "nodes": 2, "memory": "4G", "mail": "a@b.org", **more})
    work = Work(tmp_path / name, tmp_path / name, ["train", "ppo", "--env", name])
    script = make_script(work, tmp_path / name / "jobs", job, SCHEDULERS[scheduler], None)
    checked(script, tmp_path)
    stubs = tmp_path / "bin"
    stubs.mkdir()
    for stub in ("srun", "python", "scontrol", "qsub", "pbsdsh", "module", "ssh"):
        (stubs / stub).write_text(f"#!/bin/bash\nexit {0 if stub == 'module' else 2}\n")
        (stubs / stub).chmod(0o755)
    nodes = tmp_path / "nodes"
    nodes.write_text("n1\nn1\nn2\n")
    variables = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1", "PBS_JOBID": "1.server", "PBS_NODEFILE": str(nodes)}
    environment = {**os.environ, **variables, "PATH": f"{stubs}:{os.environ['PATH']}"}
    subprocess.run(["bash", tmp_path / "checked.sh"], cwd=tmp_path, env=environment, check=False, timeout=60)
    assert not list(tmp_path.rglob("pwned"))
    assert (tmp_path / name / "jobs" / "1" / "history.txt").exists()


@pytest.mark.parametrize("name", ["two\nlines", "x #SBATCH --account=other", "#PBS -q fast"])
def test_a_name_that_would_be_a_directive_is_refused(name: str, tmp_path: Path) -> None:
    job = JobSettings.model_validate({"time": "2h"})
    for folder, arguments in ((tmp_path / name, ["train"]), (tmp_path / "run", ["train", "--env", name])):
        with pytest.raises(UserError, match=r"one line of text without #SBATCH or #PBS"):
            make_script(Work(folder, folder, arguments), folder, job, SCHEDULERS["slurm"], None)


def test_a_template_of_the_user_is_filled_and_an_unknown_placeholder_is_named(tmp_path: Path) -> None:
    template, job = tmp_path / "own.sh", JobSettings.model_validate({"time": "2h"})
    work = Work(tmp_path / "run", tmp_path, ["suite", "a b"], is_task=True, final_codes=FINAL_CODES_OF_A_TASK)
    template.write_text("#!/bin/bash\n@directives@\n@setup@\nsrun @command@\n")
    script = make_script(work, tmp_path, job, SCHEDULERS["slurm"], template)
    assert script.splitlines()[1] == "#SBATCH --job-name=run"
    assert script.endswith(""" -m rlcluster suite 'a b' --task "$RLCLUSTER_TASK"\n""")
    template.write_text("@comand@")
    with pytest.raises(UserError, match=r"own.sh: unknown placeholder @comand@; known: directives, title, jobs"):
        make_script(work, tmp_path, job, SCHEDULERS["slurm"], template)


def test_the_documents_list_every_placeholder(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    job = JobSettings.model_validate({"time": "2h"})
    known = placeholders(Work(tmp_path, tmp_path, ["train"]), tmp_path, job, SCHEDULERS["slurm"])
    assert set(re.findall(r"@([a-z_]+)@", text)) == set(known)


def test_a_site_may_have_modules_an_environment_or_a_container() -> None:
    given = {"modules": ["gcc/12"], "interface": "ib0", "scratch": "/local/my scratch", "lines": ["ulimit -n 4096"]}
    job = JobSettings.model_validate({**given, "environment": "/home/me/my env"})
    stop = "{ echo 'rlcluster: error: %s: cannot be loaded on this node' >&2; exit 2; }"
    assert setup_lines(job) == [
        "module load gcc/12 || " + stop % "modules: gcc/12",
        "source '/home/me/my env/bin/activate' || " + stop % "environment: /home/me/my env",
        "export GLOO_SOCKET_IFNAME=ib0",
        "export TMPDIR='/local/my scratch'",
        "ulimit -n 4096",
    ]
    assert program_words(job, "rlcluster") == ["python", "-m", "rlcluster"]
    contained = JobSettings.model_validate({"container": "/shared/rl.sif", "binds": ["/scratch", "/data"]})
    image = "apptainer exec --bind /scratch --bind /data /shared/rl.sif python -m rlcluster"
    assert program_words(contained, "rlcluster") == image.split()


APPTAINER = """#!/bin/bash
# apptainer exec --bind FOLDER IMAGE COMMAND ...: runs the command here, where the image's Python is this one.
echo "apptainer $1 $2 $3 $4" >> "$STUBS/calls"
shift 4
PATH="$IMAGE_PATH:$PATH" exec "$@"
"""
STARTING_SRUN = """#!/bin/bash
# One rank, which is started as srun would.
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""


@pytest.mark.slow
@pytest.mark.parametrize("total_updates", [1, 0])
def test_a_training_runs_in_a_container_whose_exit_code_is_the_jobs(total_updates: int, site: Site) -> None:
    for name, text in {"apptainer": APPTAINER, "srun": STARTING_SRUN}.items():
        (site.folder / "bin" / name).write_text(text)
        (site.folder / "bin" / name).chmod(0o755)
    run, image = site.folder / "run", site.folder / "my image.sif"
    job = JobSettings.model_validate({"time": "1h", "container": str(image), "binds": "/data"})
    training = ["train", "ppo", "--in-job", "--output-dir", str(run)]
    training += flags({**CARTPOLE, "--total-updates": total_updates})
    script = site.folder / "job.sh"
    script.write_text(make_script(Work(run, run, training), run / "jobs", job, SCHEDULERS["slurm"], None))
    environment = {**site.environment(), "IMAGE_PATH": str(Path(sys.executable).parent)}
    ended = subprocess.run(["bash", script], env=environment, timeout=200, check=False)
    assert site.calls("apptainer") == [f"apptainer exec --bind /data {image}"]
    history = (run / "jobs" / "17" / "history.txt").read_text()
    if total_updates:
        assert (ended.returncode, history.endswith(" finished\n"), len(metrics(run))) == (0, True, 1)
    else:
        assert ended.returncode == 2
        assert "failed with exit code 2: starting it again would not help" in history


def test_on_pbs_the_hosts_process_alone_enters_the_container(tmp_path: Path) -> None:
    job = JobSettings.model_validate({"container": "/shared/rl.sif", "time": "2h"})
    work = Work(tmp_path, tmp_path, ["train"], report=["suite", "a", "--report-only"])
    slurm = placeholders(work, tmp_path, job, SCHEDULERS["slurm"])
    pbs = placeholders(work, tmp_path, job, SCHEDULERS["pbs"])
    assert slurm["command"] == "apptainer exec /shared/rl.sif python -m rlcluster train"
    assert pbs["command"] == "python -m rlcluster train"
    assert pbs["host_ranks"].startswith("apptainer exec /shared/rl.sif python -m rlcluster.cluster.host ")
    assert pbs["report"] == "apptainer exec /shared/rl.sif python -m rlcluster suite a --report-only"
