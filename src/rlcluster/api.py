"""The Python interface: train, load, evaluate, read. `rlcluster/__init__.py` says what of it is public.

Settings are keyword arguments with the names of the flags: `--learning-rate` is `learning_rate`, `--env` is `env`.
Their values may be Python's or text as on the command line.
"""

from __future__ import annotations

import difflib
import glob
import os
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from json import dumps as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlcluster.flags import FOREIGN_FLAGS, flag_names
from rlcluster.flags import values as flag_values
from rlcluster.plan import threads_alone
from rlcluster.settings.loading import load_settings
from rlcluster.settings.resume import resumed_settings
from rlcluster.settings.schema import setting_fields
from rlcluster.system import cores
from rlcluster.system.console import warn
from rlcluster.system.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rlcluster.evaluation.evaluate import Agent
    from rlcluster.runs.evaluations import Evaluation
    from rlcluster.runs.reader import RecordedRun

Levels = Literal["test", "train", "both"]


@dataclass(frozen=True)
class Run:
    """A run directory as it was when it was read."""

    path: Path
    status: str  # running, preempted (a signal stopped it), finished or failed; "unknown" where it does not say
    settings: Mapping[str, Any] = field(repr=False)  # as in its config.yaml
    summary: Mapping[str, Any] = field(repr=False)  # as in its benchmark_metrics.json
    metrics: Mapping[str, NDArray[np.float64]] = field(repr=False)  # columns [K], one value per update; NaN: none
    evaluation: Evaluation | None = field(repr=False)  # the last one that was written to the run directory
    warnings: tuple[str, ...] = field(repr=False)  # what a reader has to know of it


def train(
    algorithm: str | None = None,
    *,
    mode: str | None = None,
    config: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    resume: bool = False,
    callbacks: Sequence[Any] = (),
    **settings: Any,
) -> Run:
    """Trains, like `rlcluster train`, and returns the run.

    `config` is a file or a preset by name, or several: later ones override. Further settings are keywords. `callbacks`
    are objects with methods of `Callback`, called in this process; `callback="my_module:MyCallback"` names one by
    import path instead. Modes parallel and distributed start processes of their own, from scripts and notebooks alike.
    After Ctrl-C the run is saved, and its `status` is "preempted".
    """
    _refuse_unlisted(callbacks)
    flags, files = settings_by_key(settings), _files(config)
    if resume:
        from rlcluster.runs.config import settings_to_resume

        chosen = resumed_settings(algorithm, mode, files, flags, settings_to_resume)
    else:
        chosen = load_settings(algorithm, mode, files, flags)
    from rlcluster.training.train import Start
    from rlcluster.training.train import train as train_settings

    return read_one(train_settings(chosen, Start(resume), callbacks).run)


def load(
    path: str | os.PathLike[str], *, env: str | None = None, seed: int = 0, num_threads: int | None = None
) -> Agent:
    """The trained agent of a run directory (its last checkpoint) or of a checkpoint file. `env` is another environment
    with the same observations and actions; `seed` is that of its sampled actions.
    """
    return _load("load", path, env, _option("seed", seed, flag_values.seed), num_threads)


def evaluate(  # noqa: PLR0913 - its options are keywords, as on the command line
    path: str | os.PathLike[str],
    *,
    num_episodes: int = 100,
    levels: Levels = "test",
    env: str | None = None,
    deterministic: bool = False,
    seed: int = 0,
    json: str | os.PathLike[str] | None = None,
    num_threads: int | None = None,
) -> Evaluation:
    """Plays episodes with the agent of a run or of a checkpoint, like `rlcluster evaluate`. `results` of what it
    returns has an entry for "test" levels, "train" levels or both, and only "test" for an environment without levels;
    `json` is a file to write it to as well.
    """
    episodes = _option("num_episodes", num_episodes, flag_values.positive)
    seed = _option("seed", seed, flag_values.seed)
    file = None if json is None else _path("json", json)
    if file is not None:
        from rlcluster.reports.output_paths import check_output_file

        check_output_file("json", file)
    agent = _load("evaluate", path, env, 0, num_threads)
    from rlcluster.evaluation.evaluate import evaluate_agent
    from rlcluster.runs.evaluations import Evaluation, write_evaluation

    facts, results = evaluate_agent(agent, levels, episodes, deterministic, seed)
    if file is not None:
        write_evaluation(file, facts, results)
    return Evaluation(agent.steps_global, deterministic, results)


def read(*paths: str | os.PathLike[str]) -> list[Run]:
    """The runs of these directories, or of patterns such as "runs/*", in the order of their names.

    A `Run` has its metrics as a dict of NumPy arrays of one length: `pandas.DataFrame(run.metrics)` is a table.
    Of a pattern's matches, folders that are no runs are left out.
    """
    found: list[Run] = []
    for path in [str(_path("read", one)) for one in paths]:
        if glob.has_magic(path) and not Path(path).exists():
            found += _read_matches(path)
        else:
            found.append(read_one(Path(path)))
    return found


def read_one(path: Path) -> Run:
    from rlcluster.runs.reader import read_run

    return _public(read_run(path))


def settings_by_key(given: Mapping[str, Any]) -> dict[str, Any]:
    """{"learning_rate": 1e-3} as {"training.learning_rate": 1e-3}; raises a UserError that lists unknown names."""
    keys = {_keyword(name): one.key for one in setting_fields() for name in flag_names(one)}
    unknown = [f"unknown setting {name}{_suggestion(name, keys)}" for name in given if name not in keys]
    if unknown:
        raise UserError("; ".join(unknown))
    return {keys[name]: _as_given(value) for name, value in given.items()}


def _load(caller: str, path: str | os.PathLike[str], env: str | None, seed: int, num_threads: int | None) -> Agent:
    """`caller` is what errors call the path by."""
    file = _path(caller, path)
    if env is not None and not isinstance(env, str):
        raise UserError(f"env={env!r} should be the name of an environment")
    threads = None if num_threads is None else _option("num_threads", num_threads, flag_values.positive)
    cores.limit_threads(threads_alone(threads, cores.observe()))
    from rlcluster.evaluation.evaluate import load_agent
    from rlcluster.runs.checkpoints import find_checkpoint

    return load_agent(find_checkpoint(file, caller), env, seed)


def _option(name: str, value: Any, parse: Callable[[str], int]) -> int:
    """A number as the flag of this name takes it, and refused with the same words."""
    try:
        return parse(str(value))
    except ArgumentTypeError as error:
        raise UserError(f"{name}={error}") from None


def _path(name: str, given: Any) -> Path:
    """As a flag takes it: `~` is the home folder."""
    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(text, str):
        raise UserError(f"{name} {given!r}: give a path, as text or a Path")
    try:
        return Path(flag_values.path(text))
    except ArgumentTypeError as error:
        raise UserError(f"{name} {error}") from None


def _files(config: Any) -> list[str | Path]:
    listed = [config] if isinstance(config, str | os.PathLike) else () if config is None else config
    if not isinstance(listed, list | tuple) or not all(isinstance(one, str | os.PathLike) for one in listed):
        raise UserError(
            f"config={config!r}: give the path of a YAML or JSON file, or a name of `rlcluster presets`, or several in "
            "a list; settings themselves are keywords"
        )
    return [_path("config", one) for one in listed]


def _refuse_unlisted(callbacks: Any) -> None:
    if isinstance(callbacks, str):
        raise UserError(f'callbacks={callbacks}: give objects in a list, or callback="{callbacks}"')
    if not isinstance(callbacks, Sequence):
        raise UserError(f"callbacks={callbacks!r}: give objects in a list; [] is none")


def _keyword(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _suggestion(name: str, known: Mapping[str, str]) -> str:
    foreign = {_keyword(theirs): _keyword(ours) for theirs, ours in FOREIGN_FLAGS.items()}
    close = [foreign[name]] if name in foreign else difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _as_given(value: Any) -> Any:
    """As a flag would have it: paths are text, arguments of environments and wrappers JSON, whose types are exact."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    has_arguments = isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value)
    return json_text(value) if isinstance(value, Mapping) or has_arguments else value


def _read_matches(pattern: str) -> list[Run]:
    from rlcluster.runs.config import is_run

    runs, matches = [], sorted(glob.glob(pattern))  # noqa: PTH207 - a pattern may be absolute, or name "~" or ".."
    for match in filter(is_run, map(Path, matches)):
        try:
            runs.append(read_one(match))
        except UserError as error:  # one that has logged nothing yet must not hide the others
            warn(f"skipped: {error}")
    if not runs:
        raise UserError(f"{pattern}: there is no run among {len(matches)} matches")
    return runs


def _public(run: RecordedRun) -> Run:
    import numpy as np

    from rlcluster.runs.fields import FIELDS

    columns = {one.name: run.metrics[one.name] for one in FIELDS}
    return Run(
        path=run.path,
        status=run.state.state if run.state is not None else "unknown",
        settings=run.settings.to_dict(),
        summary=dict(run.summary),
        metrics={name: column for name, column in columns.items() if not np.isnan(column).all()},
        evaluation=run.evaluation,
        warnings=tuple(run.warnings),
    )
