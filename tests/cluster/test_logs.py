"""`rlcluster logs`: of a rank, of the script, and while the job writes. The scheduler is a stub that writes one more
line into the log each time it is asked.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcluster.cli import main
from rlcluster.cluster import jobs
from rlcluster.runs.jobs import JobRecord, rank_log, record_job, script_log

SQUEUE = """#!/bin/bash
# Job 17 runs until it was asked three times; each time its rank has written a line.
count=$(($(cat "$STUBS/count" 2> /dev/null || echo 0) + 1)); echo $count > "$STUBS/count"
echo "line $count" >> "$STUBS/run/jobs/17/rank-0001.log"
if [ $count -lt 3 ]; then echo '17|RUNNING|n1|None'; else echo '17|COMPLETED|n1|None'; fi
"""
QSTAT = """#!/bin/bash
# Job 17 has been submitted again as 18, which ends.
mkdir -p "$STUBS/run/jobs/18" && cp "$STUBS/run/jobs/17/job.json" "$STUBS/run/jobs/18"
if [ -e "$STUBS/asked" ]; then echo '18.server run user 0 F workq'; else echo '18.server run user 0 R workq'; fi
touch "$STUBS/asked"
echo 'the second part' > "$STUBS/run/jobs/18/rank-0000.log"
"""


def submitted(folder: Path, scheduler: str) -> Path:
    """A run whose job was submitted, before its ranks have written anything."""
    run = folder / "run"
    record_job(run, JobRecord("17", scheduler, "train", "2026-01-31T12:00:00", ["train"]), "#!/bin/bash\n")
    return run


@pytest.fixture(autouse=True)
def _scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked at once, and again and again."""
    for name, text in {"squeue": SQUEUE, "qstat": QSTAT}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("STUBS", str(tmp_path))
    monkeypatch.setattr(jobs, "FOLLOW_SECONDS", 0.0)
    monkeypatch.setattr(jobs, "STATE_SECONDS", 0.0)


def test_the_log_of_each_rank_is_shown_and_without_one_that_of_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = submitted(tmp_path, "slurm")
    script_log(run, "17").write_text("started\n")
    assert main(["logs", str(run)]) == 0
    assert capsys.readouterr().out == "started\n", "no rank has written yet"
    for rank in (0, 1):
        rank_log(run, "17", rank).write_text(f"this is rank {rank}\n")
    assert main(["logs", str(run)]) == 0
    assert main(["logs", str(run), "--rank", "1"]) == 0
    assert capsys.readouterr().out == "this is rank 0\nthis is rank 1\n"


@pytest.mark.parametrize("more", [[], ["--follow"]])
def test_a_rank_that_has_written_nothing_is_refused_with_those_that_have(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = submitted(tmp_path, "slurm")
    rank_log(run, "17", 0).write_text("this is rank 0\n")
    rank_log(run, "17", 1).write_text("this is rank 1\n")
    assert main(["logs", str(run), "--rank", "7", *more]) == 2
    output = capsys.readouterr()
    assert (output.out, output.err) == (
        "",
        f"rlcluster: error: {run}/jobs/17/rank-0007.log is not written yet, but those of ranks 0-1 are; see rlcluster "
        f"status {run}\n",
    )


def test_following_prints_every_line_once_until_the_job_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = submitted(tmp_path, "slurm")
    rank_log(run, "17", 1).write_text("line 0\n")
    assert main(["logs", str(run), "--rank", "1", "--follow"]) == 0
    assert capsys.readouterr().out == "line 0\nline 1\nline 2\nline 3\n"


def test_following_continues_with_the_job_that_pbs_has_started_for_the_next_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = submitted(tmp_path, "pbs")
    rank_log(run, "17", 0).write_text("the first part\n")
    assert main(["logs", str(run), "--follow"]) == 0
    assert capsys.readouterr().out == "the first part\nthe second part\n"


def test_a_folder_without_a_job_has_no_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", str(tmp_path)]) == 2
    assert "no job of it was submitted (rlcluster submit)" in capsys.readouterr().err
