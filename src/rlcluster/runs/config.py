"""The settings of a run as it keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlcluster.runs.files import CONFIG_FILE
from rlcluster.settings.earlier import complete
from rlcluster.settings.loading import load_settings
from rlcluster.settings.reading import read_file
from rlcluster.settings.schema import Settings
from rlcluster.system.atomic_file import write_atomically
from rlcluster.system.errors import EXIT_STORAGE, UserError


def is_run(path: Path) -> bool:
    return (path / CONFIG_FILE).is_file()


def write_run_settings(path: Path, settings: Settings) -> Path:
    """Without the output directory, so that the file can start another run elsewhere; returns the file."""
    output = settings.output.model_copy(update={"output_dir": None})
    text = settings.model_copy(update={"output": output}).to_yaml()
    write_atomically(path / CONFIG_FILE, text.encode())
    return path / CONFIG_FILE


def read_run_settings(path: Path) -> Settings:
    """Raises a UserError, in one line, if `path` is not a run."""
    if not path.exists():
        raise UserError(f"{path}: there is no such run directory")
    if not is_run(path):
        raise UserError(f"{path}: is not a run directory (no {CONFIG_FILE} in it)")
    try:
        return load_settings(base=settings_to_resume(path))
    except UserError as error:
        if error.exit_code == EXIT_STORAGE:
            raise  # it could not be read
        raise UserError(f"{path}: is not a run of this version: {' '.join(str(error).split())}") from None


def settings_to_resume(path: Path) -> dict[str, Any]:
    """The settings of the run as text, below which flags can be laid: the `base` of `load_settings`."""
    if not is_run(path):
        raise UserError(f"--resume: {path} is not a run directory (no {CONFIG_FILE} in it)")
    return complete(read_file(path / CONFIG_FILE, "the run's"))
