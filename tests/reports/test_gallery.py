"""scripts/report_gallery.py: every picture and page, kept as artefacts to be looked at."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
