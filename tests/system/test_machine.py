"""Memory, background load, and the machine facts recorded with every run."""

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rlcluster
from rlcluster.system import cores, machine


def run_python(script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment)


# Memory and facts


def test_the_peak_memory_is_at_least_the_current_memory():
    now, peak = machine.memory_gb(), machine.peak_memory_gb()
    assert 0.001 < now < peak * 1.1  # the kernel updates the two counters with a delay
    assert machine.memory_available_gb() > 0


@pytest.fixture(scope="module")
def facts():
    variables = {"RLCLUSTER_TEST_SECRET": "hunter2-of-this-test", "USER": "somebody-secret"}
    saved = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        return machine.facts(num_threads=3)
    finally:
        for name, value in saved.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def test_the_facts_can_be_written_as_json(facts):
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts


def test_the_facts_are_those_that_a_measured_speed_needs(facts):
    assert facts.keys() == {
        "cpu_model",
        "cores_allowed",
        "cores_physical",
        "cores_logical",
        "num_threads",
        "memory_total_gb",
        "system",
        "versions",
        "git_commit",
    }
    assert facts["versions"].keys() == {"rlcluster", "python", "torch", "numpy", "gymnasium", "procgen-mirror"}
    assert facts["versions"]["rlcluster"] == rlcluster.__version__
    assert facts["num_threads"] == 3
    assert facts["cores_allowed"] == cores.allowed()
    assert facts["cpu_model"]


def test_the_facts_hold_no_environment_variable_and_no_host_or_user_name(facts):
    text = json.dumps(facts)
    assert "hunter2-of-this-test" not in text
    assert "somebody-secret" not in text
    words = {word for value in facts.values() if isinstance(value, str) for word in value.split()}
    assert platform.node() not in words
    assert str(Path.home()) not in words


# The commit


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def commit_seen_by_a_copy(folder: Path) -> str:
    """The output of git_commit() in a copy of the module in `folder`/rlcluster/system."""
    package = folder / "rlcluster" / "system"
    package.mkdir(parents=True)
    for init in (package.parent, package):
        (init / "__init__.py").touch()
    for file in Path(machine.__file__).parent.glob("*.py"):
        (package / file.name).write_text(file.read_text())
    return run_python(
        "from rlcluster.system import machine; print(machine.git_commit())", PYTHONPATH=str(folder)
    ).stdout


def test_outside_of_git_there_is_no_commit(tmp_path):
    assert commit_seen_by_a_copy(tmp_path) == "None\n"


def test_an_installed_package_does_not_report_the_commit_of_the_project_around_it(tmp_path):
    git(tmp_path, "init")
    (tmp_path / ".gitignore").write_text("venv/\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "a project of the user's, with rlcluster installed in its venv/")
    assert commit_seen_by_a_copy(tmp_path / "venv") == "None\n"


# Background load


def test_the_processes_that_a_run_has_started_count_as_its_own():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert child.pid in {process.pid for process in machine._own_processes()}
    finally:
        child.kill()
        child.wait()


def test_the_load_of_other_processes_is_counted():
    background_load = machine.BackgroundLoad()
    burn = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nprint(os.getpid(), flush=True)\n"
    burn += "while time.process_time() < 1: pass\nprint(time.process_time(), flush=True)"
    done = subprocess.run(
        [sys.executable, "-c", burn], capture_output=True, text=True, check=True
    )  # daemonised: not our child
    seconds = float(done.stdout.split()[-1])
    share = background_load.share()
    assert share is not None
    elapsed = time.perf_counter() - background_load._begin[0]
    assert share * elapsed * len(cores.observe().affinity) >= 0.8 * seconds


def test_our_own_load_is_not_background_load():
    busy_before = machine.BackgroundLoad()._begin[1]
    begin, background_load = time.process_time(), machine.BackgroundLoad()
    while time.process_time() - begin < 2:
        pass
    share = background_load.share()
    elapsed = time.perf_counter() - background_load._begin[0]
    busy = machine.BackgroundLoad()._begin[1] - busy_before  # of the whole machine, us included, and for longer
    assert share is not None
    assert share * elapsed * len(cores.observe().affinity) <= busy - 1.5


LIMITS = {  # of version 2, of version 1
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    "": ("memory.max", "memory.current", "inactive_file"),
}


@pytest.mark.parametrize("controller", LIMITS)
def test_the_memory_left_to_the_cgroup_of_this_process_counts_with_what_it_can_drop(tmp_path, controller):
    folders = [
        folder for folder in cores.own_cgroups(tmp_path, "memory") if folder.is_relative_to(tmp_path / controller)
    ]
    if not folders:
        pytest.skip("this system has no such cgroups")
    limit, used, droppable = LIMITS[controller]
    folders[0].mkdir(parents=True, exist_ok=True)
    for name, text in (
        (limit, str(3 * 2**20)),
        (used, str(2 * 2**20)),
        ("memory.stat", f"cache 5\n{droppable} 1024\n"),
    ):
        (folders[0] / name).write_text(text)
    assert machine.memory_available_gb(tmp_path) * 2**30 == 2**20 + 1024


def test_a_cgroup_without_a_limit_leaves_the_memory_of_the_machine(tmp_path):
    assert machine.memory_available_gb(tmp_path) > 0.01
