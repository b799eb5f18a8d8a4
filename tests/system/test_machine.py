"""What this process may use, and the facts beside every figure of speed."""

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rlcluster
from rlcluster.system import machine

MANY = 1_000_000  # more cores than any machine has


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch):
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)


def run_python(script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment)


def own_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.fixture
def membership(monkeypatch):
    """Sets what the kernel says of this process's cgroups: it differs from machine to machine."""
    read_text = Path.read_text

    def set_membership(text: str) -> None:
        def read(path, *arguments, **options):
            return text if str(path) == "/proc/self/cgroup" else read_text(path, *arguments, **options)

        monkeypatch.setattr(Path, "read_text", read)

    return set_membership


def write_v2_quota(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.max").write_text(text)


def write_v1_quota(folder: Path, quota: int, period: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (folder / "cpu.cfs_period_us").write_text(f"{period}\n")


# Cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not pin processes")
def test_a_process_pinned_to_one_core_may_use_one(tmp_path):
    script = """
import os, sys
from pathlib import Path
from rlcluster.system import machine
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(machine.cores_allowed(Path(sys.argv[1])))
"""
    assert run_python(script, str(tmp_path)).stdout == "1\n"


def test_without_other_limits_all_cores_of_the_affinity_are_allowed(tmp_path):
    assert machine.cores_allowed(tmp_path) == own_cores()


@pytest.mark.parametrize(
    ("variable", "cores"),
    [("1", 1), (str(MANY), None), ("0", None), ("", None), ("-1", None), ("two", None), ("1.5", None)],
)
def test_the_share_of_slurm_is_a_limit_if_it_is_a_number(tmp_path, monkeypatch, variable, cores):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", variable)
    assert machine.cores_allowed(tmp_path) == (cores or own_cores())


@pytest.mark.parametrize(
    ("text", "quota"),
    [("max 100000\n", None), ("150000 100000\n", 1.5), ("400000 100000", 4.0), ("50000 200000", 0.25)],
)
def test_the_quota_of_a_v2_cgroup_is_time_by_period(tmp_path, text, quota):
    (tmp_path / "cpu.max").write_text(text)
    assert machine._quota_of(tmp_path) == quota


@pytest.mark.parametrize(("microseconds", "quota"), [(-1, None), (150000, 1.5), (25000, 0.25)])
def test_the_quota_of_a_v1_cgroup_is_time_by_period(tmp_path, microseconds, quota):
    write_v1_quota(tmp_path, microseconds, 100000)
    assert machine._quota_of(tmp_path) == quota


@pytest.mark.parametrize("text", ["", "garbage", "1 2 3", "a b"])
def test_an_unreadable_quota_is_no_limit(tmp_path, text):
    (tmp_path / "cpu.max").write_text(text)
    assert machine._quota_of(tmp_path) is None
    assert machine._quota_of(tmp_path / "missing") is None


def test_a_quota_of_the_cgroup_that_this_process_is_really_in_limits_its_cores(tmp_path):
    folders = machine._own_cgroups(tmp_path)
    if not folders:
        pytest.skip("this system has no cgroups")
    write_v2_quota(folders[0], "100000 100000")
    assert machine.cgroup_quota(tmp_path) == 1.0
    assert machine.cores_allowed(tmp_path) == 1


@pytest.mark.parametrize(("microseconds", "quota"), [(100000, 1.0), (199999, 1.99999), (25000, 0.25)])
def test_a_part_of_a_core_is_rounded_down_but_one_is_left(tmp_path, membership, microseconds, quota):
    membership("0::/job\n")
    write_v2_quota(tmp_path / "job", f"{microseconds} 100000\n")
    assert machine.cgroup_quota(tmp_path) == quota
    assert machine.cores_allowed(tmp_path) == 1


@pytest.mark.parametrize("smallest", ["", "slurm", "slurm/job_7", "slurm/job_7/step_0"])
def test_the_smallest_quota_on_the_way_to_the_root_counts(tmp_path, membership, smallest):
    membership("0::/slurm/job_7/step_0\n")
    for folder in ("", "slurm", "slurm/job_7", "slurm/job_7/step_0"):
        write_v2_quota(tmp_path / folder, "300000 100000" if folder == smallest else "700000 100000")
    assert machine.cgroup_quota(tmp_path) == 3.0


def test_a_quota_above_the_root_or_beside_the_way_does_not_count(tmp_path, membership):
    membership("0::/job\n")
    write_v2_quota(tmp_path, "100000 100000")
    write_v2_quota(tmp_path / "root" / "neighbour", "100000 100000")
    write_v2_quota(tmp_path / "root" / "job" / "child", "100000 100000")
    write_v2_quota(tmp_path / "root" / "job", "max 100000")
    assert machine.cgroup_quota(tmp_path / "root") is None


def test_a_v1_quota_is_read_in_the_hierarchy_of_the_cpu_controller(tmp_path, membership):
    membership("12:cpuset:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/job\n")
    write_v1_quota(tmp_path / "cpuset" / "job", 100000, 100000)  # of another controller: means nothing
    write_v1_quota(tmp_path / "cpu,cpuacct" / "job", 250000, 100000)
    write_v1_quota(tmp_path / "cpu,cpuacct", -1, 100000)
    assert machine.cgroup_quota(tmp_path) == 2.5


def test_in_a_container_whose_path_is_not_mounted_the_quota_at_the_root_counts(tmp_path, membership):
    membership("4:cpu,cpuacct:/docker/0123abcd\n0::/docker/0123abcd\n")
    write_v1_quota(tmp_path / "cpu,cpuacct", 150000, 100000)
    assert machine.cgroup_quota(tmp_path) == 1.5


def test_a_generous_quota_does_not_raise_the_number_of_cores(tmp_path, membership):
    membership("0::/\n")
    write_v2_quota(tmp_path, f"{MANY * 1000} 1000")
    assert machine.cgroup_quota(tmp_path) == MANY
    assert machine.cores_allowed(tmp_path) == own_cores()


def test_the_setting_of_the_threads_wins_over_what_the_machine_has():
    assert machine.num_threads(3) == 3
    assert machine.num_threads(None) == machine.cores_allowed()


# Threads


def test_limit_threads_reaches_torch_and_the_libraries_below_it_and_warns_when_it_comes_too_late():
    script = """
import json, os
from rlcluster.system import machine
machine.limit_threads(3)
import torch
variables = [os.environ[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")]
print(json.dumps([torch.get_num_threads(), torch.get_num_interop_threads(), variables]))
machine.limit_threads(3)
machine.limit_threads(2)
print(json.dumps([torch.get_num_threads(), torch.get_num_interop_threads()]))
"""
    result = run_python(script, OMP_NUM_THREADS="7", MKL_NUM_THREADS="7")
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert first == [3, 3, ["3", "3", "3"]]
    assert second == [2, 3]
    assert result.stderr == (
        "warning: torch has started work with 3 inter-op threads before num_threads=2 was set; "
        "call train() earlier in the process\n"
    )


# Memory and facts


def test_the_peak_of_the_memory_is_at_least_what_is_used_now():
    now, peak = machine.memory_gb(), machine.peak_memory_gb()
    assert 0.001 < now < peak * 1.1  # the two counters are kept by the kernel with some delay
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


def test_the_facts_are_those_that_a_figure_of_speed_needs(facts):
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
    assert facts["cores_allowed"] == machine.cores_allowed()
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
    """What git_commit() says in a copy of the module that lies in `folder`/rlcluster/system."""
    package = folder / "rlcluster" / "system"
    package.mkdir(parents=True)
    for init in (package.parent, package):
        (init / "__init__.py").touch()
    for name in ("machine.py", "console.py", "launcher.py", "errors.py"):  # and what it imports
        (package / name).write_text(Path(machine.__file__).with_name(name).read_text())
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


# Workers and their cores


@pytest.fixture
def hyper_threads(monkeypatch):
    """Four physical cores 0..3 with second threads 4..7, all of which this process may use."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(machine, "_first_sibling", lambda core: core % 4)
    monkeypatch.setattr(machine, "cgroup_quota", lambda root=None: None)
    pinned = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: pinned.append(cores), raising=False)
    monkeypatch.setattr(machine, "_affinity_given", None)
    return pinned


def test_physical_cores_come_before_hyper_threads(hyper_threads, monkeypatch):
    assert machine.core_order() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert machine.default_workers() == 4
    monkeypatch.setattr(machine, "_first_sibling", lambda core: core - core % 2)  # pairs (0, 1), (2, 3), ...
    assert machine.core_order() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert machine.default_workers() == 4


def test_a_quota_or_the_scheduler_limits_the_workers(hyper_threads, monkeypatch):
    monkeypatch.setattr(machine, "cgroup_quota", lambda root=None: 3.5)
    assert machine.default_workers() == 3
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "2")
    assert machine.default_workers() == 2


def test_threads_are_shared_out_to_the_workers(hyper_threads):
    assert [machine.num_threads(None, workers) for workers in (1, 2, 3, 4, 8, 20)] == [8, 2, 1, 1, 1, 1]
    assert machine.num_threads(5, 4) == 5


@pytest.mark.parametrize(
    ("workers", "threads", "expected"),
    [
        (4, 1, [[0], [1], [2], [3]]),
        (2, 2, [[0, 1], [2, 3]]),
        (4, 2, [[0, 4], [1, 5], [2, 6], [3, 7]]),
        (2, 1, []),  # another run may have the rest: who is free the system knows better
        (9, 1, []),  # more than there are
    ],
)
def test_workers_that_claim_all_cores_are_pinned_each_to_its_own(hyper_threads, workers, threads, expected):
    for rank in range(workers):
        machine.pin(rank, workers, threads)
    assert hyper_threads == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not pin processes")
def test_a_real_process_is_pinned_to_its_share():
    cores = machine.default_workers()
    code = (
        "import os\n"
        "from rlcluster.system import machine\n"
        "before = machine.cores_allowed(), machine.num_threads(None, 2), machine.core_order()\n"
        f"machine.pin(0, {cores}, 1)\n"
        "assert before == (machine.cores_allowed(), machine.num_threads(None, 2), machine.core_order())\n"
        "print(len(os.sched_getaffinity(0)))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "1"


def test_the_processes_that_a_run_has_started_are_its_own():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert child.pid in {process.pid for process in machine._own_processes()}
    finally:
        child.kill()
        child.wait()


def test_what_others_do_with_the_machine_is_counted():
    other_work = machine.OtherWork()
    burn = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nprint(os.getpid(), flush=True)\n"
    burn += "while time.process_time() < 1: pass\nprint(time.process_time(), flush=True)"
    done = subprocess.run(
        [sys.executable, "-c", burn], capture_output=True, text=True, check=True
    )  # none of our children
    seconds = float(done.stdout.split()[-1])
    share = other_work.share()
    assert share is not None
    elapsed = time.perf_counter() - other_work._begin[0]
    assert share * elapsed * machine._affinity_cores() >= 0.8 * seconds


def test_our_own_work_is_not_that_of_others():
    begin, other_work = time.process_time(), machine.OtherWork()
    busy_before = machine.OtherWork()._begin[1]
    while time.process_time() - begin < 1:
        pass
    busy = machine.OtherWork()._begin[1] - busy_before  # of the whole machine, us included
    share = other_work.share()
    assert share is not None
    elapsed = time.perf_counter() - other_work._begin[0]
    assert share * elapsed * machine._affinity_cores() <= busy - 0.8
