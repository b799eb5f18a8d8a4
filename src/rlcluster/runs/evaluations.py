"""Evaluations of a run, kept in its directory as `rlcluster evaluate --json` writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rlcluster.runs.config import is_run, read_run_settings
from rlcluster.runs.files import CLIP_FILE, CLIP_FILES, EVALUATION_FILE, EVALUATION_FILES, metrics_file, read_json
from rlcluster.runs.loggers import LogStart, known_loggers, make_loggers
from rlcluster.runs.metrics import number
from rlcluster.runs.status import read_state
from rlcluster.settings.games import game_name
from rlcluster.settings.loading import flatten
from rlcluster.system.atomic_file import write_json
from rlcluster.system.console import warn
from rlcluster.system.errors import UserError


class Evaluation(NamedTuple):
    """The latest evaluation of a run. `results` has an entry for "train" and "test" levels, as far as played."""

    steps_global: int
    deterministic: bool
    results: Mapping[str, Mapping[str, Any]]

    @property
    def gap(self) -> float | None:
        """The generalisation gap: training levels less unseen ones."""
        if "train" not in self.results or "test" not in self.results:
            return None
        return float(self.results["train"]["reward_mean"] - self.results["test"]["reward_mean"])


def evaluation_file(run: Path) -> Path:
    """Where to write an evaluation so that readers of the run find it."""
    return run / EVALUATION_FILE


def clip_file(run: Path) -> Path:
    """Where to write a video so that readers of the run find it."""
    return run / CLIP_FILE


def clips_of(run: Path) -> list[Path]:
    return sorted(run.glob(CLIP_FILES))


def write_evaluation(file: Path, facts: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> None:
    """`facts`: checkpoint, env, steps_global, deterministic, seed. `results` by levels. Inside a run directory, also to
    the run's loggers.
    """
    write_json(file, {**facts, "results": results})
    if is_run(file.parent):
        from rlcluster.runs.event_file import write_evaluation_events  # TensorBoard's format takes long to import

        write_evaluation_events(file.parent, int(facts["steps_global"]), results)
        _send_to_loggers(file.parent, int(facts["steps_global"]), results)


def _send_to_loggers(run: Path, steps_global: int, results: Mapping[str, Mapping[str, Any]]) -> None:
    """To those that know the run by an id, unless it is being written: then they are its writer's."""
    settings, state = read_run_settings(run), read_state(run)
    folder = metrics_file(run, settings).parent
    if state is None or state.state == "running":
        return
    from rlcluster.runs.event_file import evaluation_scalars

    start = LogStart(run.resolve(), folder, folder, flatten(settings.to_dict()), None)
    for name in known_loggers(folder):
        try:
            (logger,) = make_loggers([name], start)
        except UserError as error:  # the evaluation itself is written
            warn(f"the evaluation is not in {name}: {error}")
            continue
        for levels, result in results.items():
            logger.add(steps_global, evaluation_scalars(result, levels))
        logger.close(state.state)


def episodes_evaluated(run: Path) -> set[int]:
    """The numbers of episodes of `evaluation_file`, one for each kind of levels; empty where there is no evaluation."""
    data = read_json(evaluation_file(run), [])
    if data is None or not is_evaluation(data):
        return set()
    return {result["episodes"] for result in data["results"].values()}


def read_evaluation(path: Path, env_name: str, warnings: list[str]) -> Evaluation | None:
    """The evaluation of the last checkpoint, with sampled actions if there are several. Merges the levels of several
    files, newest first; ignores evaluations in other environments.
    """
    found: dict[tuple[int, bool], Evaluation] = {}
    for file in sorted(path.glob(EVALUATION_FILES), key=lambda file: file.stat().st_mtime):
        data = read_json(file, warnings)
        if data is None or game_name(str(data.get("env", env_name))) != game_name(env_name):
            continue
        if not is_evaluation(data):
            warnings.append(f"its {file.name} is not an evaluation and was skipped")
            continue
        key = int(data["steps_global"]), bool(data["deterministic"])
        before = found[key].results if key in found else {}
        found[key] = Evaluation(*key, {**before, **data["results"]})
    return max(found.values(), key=lambda one: (one.steps_global, not one.deterministic), default=None)


def is_evaluation(data: Mapping[str, Any]) -> bool:
    results = data.get("results")
    if not isinstance(results, dict) or not results or math.isnan(number(data.get("steps_global"))):
        return False
    needed = ("reward_mean", "episodes")
    sound = [
        isinstance(one, dict) and not any(math.isnan(number(one.get(key))) for key in needed)
        for one in results.values()
    ]
    return "deterministic" in data and all(sound)
