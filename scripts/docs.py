"""Gathers the pages of the documentation site and builds it: python scripts/docs.py

The documents of the repository as they are, with their links adjusted; the reference of the settings, from the schema;
that of the Python interface, from what `rlcluster/__init__.py` names. A broken link or reference is an error.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import rlcluster
from rlcluster.flags import flag_names
from rlcluster.settings.algorithms import ALGORITHMS
from rlcluster.settings.schema import SettingField, Settings, setting_fields

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"
TOP = {"README.md": "index.md", **{name: name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")}}


def main() -> int:
    gather(PAGES)
    return subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"], cwd=ROOT).returncode  # noqa: PLW1510


def gather(folder: Path) -> None:
    """All pages of the site, in one folder."""
    shutil.rmtree(folder, ignore_errors=True)
    for assets in ("images", "javascripts"):
        shutil.copytree(ROOT / "docs" / assets, folder / assets)
    for source in ROOT.glob("docs/*.md"):
        (folder / source.name).write_text(adjusted(source.read_text()))
    for name, page in TOP.items():
        (folder / page).write_text(adjusted((ROOT / name).read_text()))
    (folder / "settings_reference.md").write_text(settings_reference())
    (folder / "api.md").write_text(api_reference())


def adjusted(text: str) -> str:
    """Links lead to pages next to each other; a list after a line of text needs an empty line before it here."""
    text = re.sub(r"\]\((?:\.\./|docs/)", "](", text)
    text = text.replace("](README.md", "](index.md")
    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    for k in range(0, len(parts), 2):  # the others are code
        parts[k] = re.sub(r"^((?![-*|#] ?|\d+\. |\s).+\n)(?=(?:[-*]|\d+\.) )", r"\1\n", parts[k], flags=re.MULTILINE)
    return "".join(parts)


def settings_reference() -> str:
    lines = [
        "# Settings",
        "",
        "Each is a key of the settings file, in its section, a flag, and a keyword of `rlcluster.train`. Where an",
        "algorithm has a default of its own, it follows.",
    ]
    section = ""
    for field in setting_fields():
        if field.section != section:
            section = field.section
            meaning = " ".join((Settings.model_fields[section].annotation.__doc__ or "").split()).replace("[", "\\[")
            lines += ["", f"## {section}", meaning, "", "| setting | flag | default | meaning |", "|---|---|---|---|"]
        lines.append(_row(field))
    return "\n".join(lines) + "\n"


def _row(field: SettingField) -> str:
    default = "null" if field.info.default is None else f"{field.info.default}"
    others = [
        f"; {record.name}: {record.defaults[field.section][field.name]}"
        for record in ALGORITHMS.values()
        if field.name in record.defaults.get(field.section, {})
    ]
    flags = ", ".join(f"`{name}`" for name in flag_names(field))
    meaning = re.sub(r"([|\[\]])", r"\\\1", field.info.description or "")
    return f"| `{field.name}` | {flags} | `{default}`{''.join(others)} | {meaning} |"


def api_reference() -> str:
    heading = ["# Python", "", "What `import rlcluster` names; [extending](extending.md) has examples.", ""]
    names = [name for name in rlcluster.__all__ if not name.startswith("_")]
    return "\n".join([*heading, *(f"::: {rlcluster._HOMES[name]}.{name}\n" for name in names)])


if __name__ == "__main__":
    sys.exit(main())
