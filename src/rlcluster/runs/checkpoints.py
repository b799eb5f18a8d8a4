"""Which checkpoints a run has, in all modes in which it has run, and which of them is meant."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from rlcluster.runs.agents import agent_file
from rlcluster.runs.checkpoint import Checkpoint, CheckpointError, load_checkpoint
from rlcluster.runs.config import is_run, read_run_settings
from rlcluster.runs.files import CHECKPOINT_FOLDER, RUNS_FOLDER, checkpoint_folder, runs_below
from rlcluster.settings.schema import MODE_NAMES
from rlcluster.system.console import warn
from rlcluster.system.errors import EXIT_STORAGE, EXIT_USAGE, UserError

DAMAGED = ".damaged"  # appended to the name of a checkpoint that a resumed run could not use

# Raises a CheckpointError for a whole checkpoint that the reader cannot use.
Check = Callable[[Checkpoint], None]


def checkpoint_name(run_name: str, steps_global: int | None) -> str:
    """Of a periodic checkpoint at this step; None: of the final one."""
    return f"{run_name}_final.pt" if steps_global is None else f"{run_name}_step_{steps_global}.pt"


def best_name(run_name: str) -> str:
    """Of the parameters with the best evaluation during training. It is never resumed from."""
    return f"{run_name}_best.pt"


def step_checkpoints(folder: Path, algorithm: str) -> list[Path]:
    """The periodic checkpoints, oldest first."""
    pattern = re.compile(rf"{algorithm}_(?:{'|'.join(MODE_NAMES)})_step_(\d+)\.pt")
    found = [(int(match[1]), path) for path in folder.glob("*.pt") if (match := pattern.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def checkpoints_in(folder: Path, algorithm: str) -> list[Path]:
    """All checkpoints: the final ones first, then the periodic ones, newest first."""
    finals = [folder / checkpoint_name(f"{algorithm}_{mode}", None) for mode in MODE_NAMES]
    return [path for path in (*finals, *reversed(step_checkpoints(folder, algorithm))) if path.exists()]


def newest_checkpoint(folder: Path, algorithm: str, check: Check | None = None) -> Checkpoint:
    """The last usable checkpoint, for a run that is resumed. A damaged one is renamed to `*.damaged`."""
    try:
        found = _newest_usable(checkpoints_in(folder, algorithm), check or _accept, _set_aside)
    except CheckpointError as error:
        raise error.on_resume() from None
    if found is None:
        raise _no_checkpoint(folder)
    return found


def refuse_without_checkpoint(folder: Path, algorithm: str) -> None:
    """Raises what `newest_checkpoint` would if there are none, without reading any."""
    if not checkpoints_in(folder, algorithm):
        raise _no_checkpoint(folder)


def _newest_usable(files: Sequence[Path], check: Check, on_damage: Callable[[Path], None]) -> Checkpoint | None:
    """The furthest of these checkpoints that is neither damaged nor refused by `check`. A damaged one is named on
    stderr, and the one before it is taken.
    """
    best: Checkpoint | None = None
    for file in sorted(files, key=_furthest_first):
        if best is not None and _steps_in_name(file) <= best.steps_global:
            break
        try:
            checkpoint = load_checkpoint(file)
            check(checkpoint)
        except CheckpointError as error:
            if not error.is_damaged:
                raise
            warn(f"{error.path}: {error.cause}. Falling back to an earlier checkpoint.")
            on_damage(file)
            continue
        if best is None or checkpoint.steps_global > best.steps_global:
            best = checkpoint
    return best


def _furthest_first(file: Path) -> float:
    return -_steps_in_name(file)


def _steps_in_name(file: Path) -> float:
    """Infinite for a final checkpoint: only its content tells."""
    match = re.search(r"_step_(\d+)$", file.stem)
    return int(match[1]) if match else math.inf


def _set_aside(file: Path) -> None:
    file.rename(file.with_name(file.name + DAMAGED))


def _leave(file: Path) -> None:
    """A reader changes nothing in a run."""


def _accept(checkpoint: Checkpoint) -> None:
    """Whatever is whole."""


def _no_checkpoint(folder: Path) -> UserError:
    damaged = _set_aside_in(folder)
    why = f" (damaged: {', '.join(damaged)})" if damaged else ""
    return UserError(
        f"--resume: there is no usable checkpoint in {folder}{why}; start a new run in another --output-dir",
        EXIT_STORAGE if damaged else EXIT_USAGE,
    )


def _set_aside_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob(f"*{DAMAGED}"))


def _checkpoint_folders(path: Path) -> list[Path]:
    """Of a run directory, wherever its settings keep them; or of a folder that holds checkpoints alone."""
    own = [checkpoint_folder(path, read_run_settings(path))] if is_run(path) else []
    return list(dict.fromkeys((*own, path / CHECKPOINT_FOLDER, path)))


def checkpoints_of(path: Path) -> list[Path]:
    """Of a run directory, or of a folder that holds checkpoints alone."""
    folders = _checkpoint_folders(path)
    if not is_run(path):
        files = [file for folder in folders for file in folder.glob("*.pt")]
        return [file for file in files if re.search(r"_(final|step_\d+)$", file.stem)]
    algorithm = read_run_settings(path).algorithm
    return [file for folder in folders for file in checkpoints_in(folder, algorithm)]


def has_checkpoint(run: Path) -> bool:
    """False also if `path` is not a run."""
    return is_run(run) and bool(checkpoints_of(run))


def find_checkpoint(path: Path, name: str = "--checkpoint") -> Checkpoint:
    """The checkpoint that a path means: the file itself, the last usable one of a run directory, or an agent that comes
    with the package. `name` is what errors call the path.
    """
    if not path.exists():
        agent = agent_file(path)
        if agent is None:
            raise UserError(f"{name} {path}: there is no such file or run directory")
        return load_checkpoint(agent)
    if path.is_file():
        return load_checkpoint(path)
    files = checkpoints_of(path)
    damaged = {folder: names for folder in _checkpoint_folders(path) if (names := _set_aside_in(folder))}
    if not files and damaged:
        folder, names = next(iter(damaged.items()))
        why = f"there is no usable checkpoint in {folder} (damaged: {', '.join(names)})"
        raise UserError(f"{name} {path}: {why}; give another run", EXIT_STORAGE)
    if not files:
        raise UserError(f"{name} {path}: no checkpoint (*_final.pt or *_step_*.pt) in it or in its checkpoints/")
    found = _newest_usable(files, _accept, _leave)
    if found is None:
        raise UserError(f"{name} {path}: all its checkpoints are damaged; give another run", EXIT_STORAGE)
    return found


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
