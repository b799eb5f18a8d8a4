"""The settings files that come with the package: `--config ppo_procgen` finds one by name, from any folder.

They are the files of configs/ in the source tree, and setup.py copies them into the wheel.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import NamedTuple

from rlcluster.system.errors import UserError

PACKAGED = Path(__file__).parents[1] / "presets"
FOLDER = PACKAGED if PACKAGED.is_dir() else Path(__file__).parents[3] / "configs"
# What a preset is for, by the beginning of its name; any other is for `rlcluster train`.
TRAINING, SUITE, SITE = (
    "rlcluster train --config NAME",
    "rlcluster suite NAME",
    "a copy of it: rlcluster submit --site FILE",
)
USES = (TRAINING, SUITE, SITE)
PREFIXES = {"suite_": SUITE, "site_": SITE}


class Preset(NamedTuple):
    name: str
    file: Path

    @property
    def use(self) -> str:
        return next((use for prefix, use in PREFIXES.items() if self.name.startswith(prefix)), TRAINING)

    @property
    def text(self) -> str:
        return self.file.read_text(encoding="utf-8")

    @property
    def summary(self) -> str:
        """The first sentence of the comment at its top."""
        lines = self.text.splitlines()
        end = next((k for k, line in enumerate(lines) if not line.startswith("#")), len(lines))
        comment = " ".join(line.removeprefix("#").strip() for line in lines[:end])
        return comment.split(". ", 1)[0].rstrip(".")


def presets() -> list[Preset]:
    """All of them, by name; those of training first."""
    found = [Preset(file.stem, file) for file in FOLDER.glob("*.yaml")]
    return sorted(found, key=lambda preset: (USES.index(preset.use), preset.name))


def preset(name: str) -> Preset:
    """Raises a UserError with a suggestion if there is none of this name."""
    known = {one.name: one for one in presets()}
    if name not in known:
        remedy = _suggestion(name) or "; `rlcluster presets` lists them"
        raise UserError(f"there is no preset {name}{remedy}")
    return known[name]


def find_file(path: str | Path) -> Path:
    """The file itself if there is one, else the preset of this name; else `path`, which cannot be read."""
    path = Path(path)
    named = FOLDER / f"{path}.yaml"
    return named if path.parent == Path() and not path.exists() and named.is_file() else path


def hint_of_preset(path: Path) -> str:
    """For an error about a file that is not there."""
    return _suggestion(path.stem)


def _suggestion(name: str) -> str:
    close = difflib.get_close_matches(name, [one.name for one in presets()], n=1)
    return f"; did you mean the preset {close[0]}?" if close else ""
