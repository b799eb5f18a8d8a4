"""Loggers: where else the numbers of a run go. metrics.jsonl is always written; `output.loggers` names the others.

All get the same scalars, by the tags of `fields.py`, and the settings as hyper-parameters. Weights & Biases and MLflow
are optional packages; the first works offline if WANDB_MODE=offline, the second writes files below the run.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlcluster.runs.files import LOGGERS_FILE, read_json
from rlcluster.runs.status import StateName
from rlcluster.system.atomic_file import write_json
from rlcluster.system.console import warn
from rlcluster.system.errors import UserError
from rlcluster.system.import_path import load_object

EXPERIMENT = "rlcluster"  # of MLflow
MLFLOW_STATUS = {"finished": "FINISHED", "preempted": "KILLED", "failed": "FAILED"}
EVALUATION = "eval/"  # tags of evaluations begin with it


class LogStart(NamedTuple):
    """What a logger is made with."""

    run: Path
    folder: Path  # of this run's logs
    events: Path  # of TensorBoard's
    hyper_parameters: Mapping[str, Any]  # by setting: {"training.learning_rate": 5e-4, ...}
    step: int | None  # 0, or where the run was resumed: what was logged beyond it will be logged again


class Logger:
    """Receives what a run logs. Your own: a class with these methods, `--logger my_module:MyLogger`."""

    def __init__(self, start: LogStart) -> None:
        """The run begins or is resumed."""

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        """Numbers by tag, after `step` environment steps: those of an update, or those of an evaluation (eval/...),
        which may be of an earlier step.
        """

    def flush(self) -> None:
        """A checkpoint is about to be written."""

    def close(self, status: StateName) -> None:
        """The run has ended: it is finished, preempted (a signal stopped it) or failed."""


class WandbLogger(Logger):
    """Weights & Biases. Its own settings come from its environment variables: WANDB_MODE, WANDB_PROJECT, ..."""

    def __init__(self, start: LogStart) -> None:
        self._wandb = _optional("wandb", "wandb")
        others = known_loggers(start.folder)
        known = others.pop("wandb", {})
        try:
            self._run = self._wandb.init(
                dir=str(start.folder),
                name=start.run.name,
                config=dict(start.hyper_parameters),
                settings=self._wandb.Settings(silent=True, console="off"),
                id=known.get("id"),
                resume="allow" if known else None,
                mode=None if "WANDB_MODE" in os.environ else known.get("mode"),
            )
        except self._wandb.Error as error:  # no account, or no connection
            raise UserError(f"output.loggers=wandb: {_one_line(error)}; or set WANDB_MODE=offline") from None
        self._run.define_metric(f"{EVALUATION}*", step_metric=f"{EVALUATION}steps_global")
        _keep_known(start.folder, {**others, "wandb": {"id": self._run.id, "mode": self._run.settings.mode}})

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        """Its own step never goes back, else the numbers are dropped: evaluations have their step among them."""
        if any(tag.startswith(EVALUATION) for tag in scalars):
            self._run.log({**scalars, f"{EVALUATION}steps_global": step}, step=max(step, self._run.step))
        else:
            self._run.log(dict(scalars), step=step)

    def close(self, status: StateName) -> None:
        if status == "preempted":
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if status == "finished" else 1)
        self._wandb.teardown()  # its service writes the file later than `finish` returns, and ranks leave at once


class MlflowLogger(Logger):
    """MLflow. It writes to MLFLOW_TRACKING_URI if that is set, else to files below the run's logs."""

    def __init__(self, start: LogStart) -> None:
        _optional("mlflow", "mlflow-skinny")
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        uri = None
        if "MLFLOW_TRACKING_URI" not in os.environ:
            uri = (start.folder / "mlruns").resolve().as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # else MLflow 3 wants a database server
        self._client: Any = MlflowClient(tracking_uri=uri)
        others = known_loggers(start.folder)
        known = others.pop("mlflow", None)
        try:
            self._id = self._begin(start.run.name) if known is None else self._continue(known["id"])
            there = self._client.get_run(self._id).data.params  # which cannot be changed
            params = [Param(key, str(value)) for key, value in start.hyper_parameters.items() if key not in there]
            self._client.log_batch(self._id, params=params)
        except MlflowException as error:
            file = start.folder / LOGGERS_FILE
            remedy = "" if known is None else f"; set MLFLOW_TRACKING_URI as before, or remove {file} to begin another"
            raise UserError(f"output.loggers=mlflow: {_one_line(error)}{remedy}") from None
        _keep_known(start.folder, {**others, "mlflow": {"id": self._id}})

    def _begin(self, name: str) -> str:
        found = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = found.experiment_id if found is not None else self._client.create_experiment(EXPERIMENT)
        return str(self._client.create_run(experiment, run_name=name).info.run_id)

    def _continue(self, known: str) -> str:
        self._client.update_run(known, status="RUNNING")
        return known

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(tag, value, now, step) for tag, value in scalars.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self, status: StateName) -> None:
        self._client.set_terminated(self._id, MLFLOW_STATUS[status])


OWN: Mapping[str, type[Logger]] = {"wandb": WandbLogger, "mlflow": MlflowLogger}


def make_loggers(names: Sequence[str], start: LogStart) -> list[Any]:
    """The loggers of `output.loggers`, in that order."""
    return [_class_of(name)(start) for name in names]


def known_loggers(folder: Path) -> dict[str, dict[str, str]]:
    """What Weights & Biases and MLflow call the run with these logs, by logger: a resumed run continues it there."""
    problems: list[str] = []
    content = read_json(folder / LOGGERS_FILE, problems) or {}
    known = {name: one for name, one in content.items() if isinstance(one, dict) and isinstance(one.get("id"), str)}
    if problems or len(known) < len(content):
        warn(f"{folder / LOGGERS_FILE} cannot be read: what was logged to wandb or mlflow is not continued")
    return known


def _keep_known(folder: Path, known: dict[str, dict[str, str]]) -> None:
    write_json(folder / LOGGERS_FILE, known)


def refuse_missing_loggers(names: Sequence[str]) -> None:
    """Raises a UserError for a logger that cannot be imported, before the run directory exists."""
    for name in names:
        _class_of(name)
        if name in OWN:
            _optional(name, {"mlflow": "mlflow-skinny"}.get(name, name))


def _class_of(name: str) -> Any:
    if ":" in name:
        return load_object(name, "output.loggers")
    if name == "tensorboard":
        from rlcluster.runs.event_file import EventFile

        return EventFile
    if name not in OWN:
        raise UserError(f"output.loggers={name}: should be tensorboard, {', '.join(OWN)} or my_module:MyLogger")
    return OWN[name]


def _optional(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise UserError(f"output.loggers={module} needs a package: pip install {package}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
