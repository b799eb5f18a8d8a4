"""Which checkpoints a run has, in all modes in which it has run, and which of them is meant."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rlcluster.runs.checkpoint import CheckpointError, load_checkpoint
from rlcluster.runs.config import is_run, read_run_settings
from rlcluster.runs.files import CHECKPOINT_FOLDER, RUNS_FOLDER, checkpoint_folder, runs_below
from rlcluster.settings.schema import MODE_NAMES
from rlcluster.system.console import warn
from rlcluster.system.errors import UserError


def checkpoint_name(run_name: str, steps_global: int | None) -> str:
    """Of a periodic checkpoint at this step; None: of the final one."""
    return f"{run_name}_final.pt" if steps_global is None else f"{run_name}_step_{steps_global}.pt"


def step_checkpoints(folder: Path, algorithm: str) -> list[Path]:
    """The periodic checkpoints, oldest first."""
    pattern = re.compile(rf"{algorithm}_(?:{'|'.join(MODE_NAMES)})_step_(\d+)\.pt")
    found = [(int(match[1]), path) for path in folder.glob("*.pt") if (match := pattern.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def checkpoints_in(folder: Path, algorithm: str) -> list[Path]:
    """All checkpoints: the final ones first, then the periodic ones, newest first."""
    finals = [folder / checkpoint_name(f"{algorithm}_{mode}", None) for mode in MODE_NAMES]
    return [path for path in (*finals, *reversed(step_checkpoints(folder, algorithm))) if path.exists()]


def newest_checkpoint(folder: Path, algorithm: str) -> dict[str, Any]:
    """The content of the last intact checkpoint. A damaged one is named on stderr, renamed to `*.damaged`,
    and the one before it is taken.
    """
    whole = []
    for path in checkpoints_in(folder, algorithm):
        try:
            whole.append(load_checkpoint(path))
        except CheckpointError as error:
            if not error.is_damaged:
                raise
            warn(f"{error}. Falling back to an earlier checkpoint.")
            path.rename(path.with_name(path.name + ".damaged"))
            continue
        if "_step_" in path.name:
            break  # the others are older
    if not whole:
        raise _no_checkpoint(folder)
    return max(whole, key=lambda content: int(content["learner"]["steps_global"]))


def refuse_without_checkpoint(folder: Path, algorithm: str) -> None:
    """Raises what `newest_checkpoint` would if there are none, without reading any."""
    if not checkpoints_in(folder, algorithm):
        raise _no_checkpoint(folder)


def _no_checkpoint(folder: Path) -> UserError:
    return UserError(f"--resume: there is no usable checkpoint in {folder}; start a new run in another --output-dir")


def checkpoints_of(path: Path) -> list[Path]:
    """Of a run directory, wherever its settings keep them; or of a folder that holds checkpoints alone."""
    if not is_run(path):
        folders = (path, path / CHECKPOINT_FOLDER)
        files = [file for folder in folders for file in folder.glob("*.pt")]
        return [file for file in files if re.search(r"_(final|step_\d+)$", file.stem)]
    settings = read_run_settings(path)
    places = dict.fromkeys((checkpoint_folder(path, settings), path / CHECKPOINT_FOLDER, path))
    return [file for folder in places for file in checkpoints_in(folder, settings.algorithm)]


def has_checkpoint(run: Path) -> bool:
    """False also if `path` is not a run."""
    return is_run(run) and bool(checkpoints_of(run))


def find_checkpoint(path: Path) -> Path:
    """The checkpoint file that a path means: the file itself, or the last one of a run directory."""
    if not path.exists():
        raise UserError(f"--checkpoint {path}: there is no such file or run directory")
    if path.is_file():
        return path
    files = checkpoints_of(path)
    if not files:
        raise UserError(f"--checkpoint {path}: no checkpoint (*_final.pt or *_step_*.pt) in it or in its checkpoints/")
    return max(files, key=lambda file: (_steps_of(file), file.stem.endswith("_final")))


def latest_run(folder: Path = RUNS_FOLDER) -> Path:
    """The run directory below `folder` that was begun or resumed last and has a checkpoint. What cannot be read is
    skipped with a warning.
    """
    for run in runs_below(folder):
        try:
            if has_checkpoint(run):
                return run
        except UserError as error:
            warn(f"skipped: {error}")
    raise UserError(f"no run with a checkpoint below {folder}/; give --checkpoint PATH or train first")


def _steps_of(checkpoint: Path) -> int:
    match = re.search(r"_step_(\d+)$", checkpoint.stem)
    return int(match[1]) if match else int(load_checkpoint(checkpoint)["learner"]["steps_global"])
