"""The cores of a process, its thread counts, and core pinning."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlcluster.system import cores

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
    """Sets what the kernel reports about this process's cgroups, which differs between machines."""
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


def test_slurms_limit_is_a_tasks_own_but_its_spawned_processes_share_it(hyper_threads, monkeypatch):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "2")
    assert cores.observe().together is None, "a process of a batch script, or of a single task"
    step = {"STEP_ID": 0, "JOB_ID": 1, "STEP_NUM_TASKS": 2, "STEP_TASKS_PER_NODE": 2, "STEP_NODELIST": "n1"}
    for name, value in {**step, "NODEID": 0, "PROCID": 0, "LOCALID": 0}.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    observed = cores.observe()
    assert (observed.allowed, observed.together, observed.physical, observed.physical_together) == (2, 8, 2, 4)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert cores.observe().together is None, "torchrun is the task, and its ranks share it"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not pin processes")
def test_a_process_pinned_to_one_core_may_use_one(tmp_path):
    script = """
import os, sys
from pathlib import Path
from rlcluster.system import cores
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(cores.allowed(Path(sys.argv[1])))
"""
    assert run_python(script, str(tmp_path)).stdout == "1\n"


def test_without_other_limits_all_cores_of_the_affinity_are_allowed(tmp_path):
    assert cores.allowed(tmp_path) == own_cores()


@pytest.mark.parametrize(
    ("variable", "expected"),
    [("1", 1), (str(MANY), None), ("0", None), ("", None), ("-1", None), ("two", None), ("1.5", None)],
)
def test_a_slurm_allocation_is_a_limit_if_it_is_a_number(tmp_path, monkeypatch, variable, expected):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", variable)
    assert cores.allowed(tmp_path) == (expected or own_cores())


def test_what_a_job_of_pbs_asked_for_on_a_host_is_a_limit_that_its_ranks_share(hyper_threads, monkeypatch):
    monkeypatch.setenv("RLCLUSTER_CORES", "3")
    assert (cores.observe().allowed, cores.observe().physical, cores.observe().together) == (3, 3, None)
    monkeypatch.setenv("RLCLUSTER_CORES", str(MANY))
    assert cores.observe().allowed == 8
    for odd in ("0", "", "two"):
        monkeypatch.setenv("RLCLUSTER_CORES", odd)
        assert cores.observe().allowed == 8


@pytest.mark.parametrize(
    ("text", "quota"),
    [("max 100000\n", None), ("150000 100000\n", 1.5), ("400000 100000", 4.0), ("50000 200000", 0.25)],
)
def test_the_quota_of_a_v2_cgroup_is_time_divided_by_period(tmp_path, text, quota):
    (tmp_path / "cpu.max").write_text(text)
    assert cores._quota_of(tmp_path) == quota


@pytest.mark.parametrize(("microseconds", "quota"), [(-1, None), (150000, 1.5), (25000, 0.25)])
def test_the_quota_of_a_v1_cgroup_is_time_divided_by_period(tmp_path, microseconds, quota):
    write_v1_quota(tmp_path, microseconds, 100000)
    assert cores._quota_of(tmp_path) == quota


@pytest.mark.parametrize("text", ["", "garbage", "1 2 3", "a b"])
def test_an_unreadable_quota_is_no_limit(tmp_path, text):
    (tmp_path / "cpu.max").write_text(text)
    assert cores._quota_of(tmp_path) is None
    assert cores._quota_of(tmp_path / "missing") is None


def test_a_quota_of_the_cgroup_that_this_process_is_actually_in_limits_its_cores(tmp_path):
    folders = cores.own_cgroups(tmp_path)
    if not folders:
        pytest.skip("this system has no cgroups")
    write_v2_quota(folders[0], "100000 100000")
    assert cores.cgroup_quota(tmp_path) == 1.0
    assert cores.allowed(tmp_path) == 1


@pytest.mark.parametrize(("microseconds", "quota"), [(100000, 1.0), (199999, 1.99999), (25000, 0.25)])
def test_a_fraction_of_a_core_is_rounded_down_but_at_least_one_is_left(tmp_path, membership, microseconds, quota):
    membership("0::/job\n")
    write_v2_quota(tmp_path / "job", f"{microseconds} 100000\n")
    assert cores.cgroup_quota(tmp_path) == quota
    assert cores.allowed(tmp_path) == 1


@pytest.mark.parametrize("smallest", ["", "slurm", "slurm/job_7", "slurm/job_7/step_0"])
def test_the_smallest_quota_up_to_the_root_counts(tmp_path, membership, smallest):
    membership("0::/slurm/job_7/step_0\n")
    for folder in ("", "slurm", "slurm/job_7", "slurm/job_7/step_0"):
        write_v2_quota(tmp_path / folder, "300000 100000" if folder == smallest else "700000 100000")
    assert cores.cgroup_quota(tmp_path) == 3.0


def test_a_quota_above_the_root_or_of_a_sibling_does_not_count(tmp_path, membership):
    membership("0::/job\n")
    write_v2_quota(tmp_path, "100000 100000")
    write_v2_quota(tmp_path / "root" / "neighbour", "100000 100000")
    write_v2_quota(tmp_path / "root" / "job" / "child", "100000 100000")
    write_v2_quota(tmp_path / "root" / "job", "max 100000")
    assert cores.cgroup_quota(tmp_path / "root") is None


def test_a_v1_quota_is_read_in_the_hierarchy_of_the_cpu_controller(tmp_path, membership):
    membership("12:cpuset:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/job\n")
    write_v1_quota(tmp_path / "cpuset" / "job", 100000, 100000)  # another controller: ignored
    write_v1_quota(tmp_path / "cpu,cpuacct" / "job", 250000, 100000)
    write_v1_quota(tmp_path / "cpu,cpuacct", -1, 100000)
    assert cores.cgroup_quota(tmp_path) == 2.5


def test_in_a_container_whose_path_is_not_mounted_the_quota_at_the_root_counts(tmp_path, membership):
    membership("4:cpu,cpuacct:/docker/0123abcd\n0::/docker/0123abcd\n")
    write_v1_quota(tmp_path / "cpu,cpuacct", 150000, 100000)
    assert cores.cgroup_quota(tmp_path) == 1.5


def test_a_generous_quota_does_not_raise_the_number_of_cores(tmp_path, membership):
    membership("0::/\n")
    write_v2_quota(tmp_path, f"{MANY * 1000} 1000")
    assert cores.cgroup_quota(tmp_path) == MANY
    assert cores.allowed(tmp_path) == own_cores()


# Threads


def test_limit_threads_limits_torch_and_its_libraries_and_warns_when_called_too_late():
    script = """
import json, os
from rlcluster.system import cores
cores.limit_threads(3)
import torch
variables = [os.environ[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")]
print(json.dumps([torch.get_num_threads(), torch.get_num_interop_threads(), variables]))
cores.limit_threads(3)
cores.limit_threads(2)
print(json.dumps([torch.get_num_threads(), torch.get_num_interop_threads()]))
"""
    result = run_python(script, OMP_NUM_THREADS="7", MKL_NUM_THREADS="7")
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert first == [3, 3, ["3", "3", "3"]]
    assert second == [2, 3]
    assert result.stderr == (
        "warning: torch had already started 3 inter-op threads before num_threads=2 was set; "
        "call train() earlier in the process\n"
    )


# Observation and pinning


@pytest.fixture
def hyper_threads(monkeypatch):
    """Four physical cores 0..3 with hyper-threads 4..7, all in this process's affinity."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(cores, "first_sibling", lambda core: core % 4)
    monkeypatch.setattr(cores, "cgroup_quota", lambda root=None: None)
    monkeypatch.setattr(cores, "_affinity_given", None)


def test_physical_cores_come_before_hyper_threads(hyper_threads, monkeypatch):
    assert cores.observe().numbers == (0, 1, 2, 3, 4, 5, 6, 7)
    assert cores.observe().physical == 4
    monkeypatch.setattr(cores, "first_sibling", lambda core: core - core % 2)  # pairs (0, 1), (2, 3), ...
    assert cores.observe().numbers == (0, 2, 4, 6, 1, 3, 5, 7)
    assert cores.observe().physical == 4


def test_a_quota_or_the_scheduler_limits_the_physical_cores(hyper_threads, monkeypatch):
    monkeypatch.setattr(cores, "cgroup_quota", lambda root=None: 3.5)
    assert cores.observe().physical == 3
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "2")
    assert cores.observe().physical == 2


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not pin processes")
def test_a_pinned_process_still_knows_its_original_affinity():
    script = """
import os
from rlcluster.system import cores
before = cores.observe()
cores.pin_to([])
assert len(os.sched_getaffinity(0)) == len(before.affinity)
cores.pin_to(before.numbers[:1])
assert cores.observe() == before
print(sorted(os.sched_getaffinity(0)) == [before.numbers[0]])
cores.pin_to([])
print(sorted(os.sched_getaffinity(0)) == sorted(before.numbers))
"""
    assert run_python(script).stdout == "True\nTrue\n"
