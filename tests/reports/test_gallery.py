"""scripts/report_gallery.py: every picture and page, kept as artefacts to be looked at."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlcluster.reports.curves import phase_seconds
from rlcluster.runs.reader import read_run

from chromium import SCREENSHOTS

SCRIPT = Path(__file__).parents[2] / "scripts" / "report_gallery.py"
SETS = ("methods", "games", "pair", "ten", "recipes")
FILES = (
    *(f"comparison.{suffix}" for suffix in ("png", "pdf", "svg", "csv", "md", "tex", "html", "json")),
    "comparison_report.txt",
)
PHOTOGRAPHS = (
    *(f"comparison_{width}_{scheme}.png" for width in (1440, 1280, 400) for scheme in ("light", "dark")),
    "comparison_print.pdf",
)


def test_its_parallel_runs_have_two_cores_and_every_method_phases_of_its_own(tmp_path):
    gallery = runpy.run_path(str(SCRIPT))
    write_run, methods = gallery["write_run"], gallery["METHODS"]
    runs = [read_run(write_run(tmp_path / str(k), method, 1, "coinrun")) for k, method in enumerate(methods)]
    assert [run.cores for run in runs] == [1, 2, 2, 2, 2]
    assert len({tuple(round(value, 3) for value in phase_seconds(run.metrics).values()) for run in runs}) == len(runs)
    assert [run.warnings for run in runs] == [[] for _ in runs]
    assert {run.settings.policy.network for run in runs} == {"impala"}  # as training writes it


@pytest.mark.slow
def test_the_gallery_has_every_picture_and_page():
    folder = SCREENSHOTS / "gallery"
    shutil.rmtree(folder, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, SCRIPT, "--output", folder], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    has_browser = shutil.which("chromium") is not None and shutil.which("chromedriver") is not None
    expected = {Path(name, file) for name in SETS for file in (*FILES, *(PHOTOGRAPHS if has_browser else ()))}
    found = {file.relative_to(folder) for file in folder.rglob("*") if file.is_file() and file.stat().st_size}
    assert found == {*expected, Path("one.png")}
