"""Loggers get the same numbers under the same tags, and the settings; tested with the real packages, offline."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from rlcluster.runs.log import RunLog
from rlcluster.runs.loggers import LogStart, make_loggers, refuse_missing_loggers
from rlcluster.system.errors import UserError

SETTINGS = {"training.learning_rate": 5e-4, "env.name": "maze", "parallel.pin_workers": True, "env.wrappers": None}
RECORD = {"update": 1, "steps_global": 128, "elapsed_seconds": 2.0, "fps": 64.0, "episode_reward_mean": None}
SCALARS = {"time/updates": 1, "time/fps": 64.0, "time/time_elapsed": 2.0}


def write(folder: Path, *names: str) -> None:
    """One update, with every number that a record has."""
    log = RunLog(LogStart(folder / "my run", folder, folder, SETTINGS, 0), 0, names)
    log.add(RECORD)
    log.sync()
    log.close(quietly=False)


def test_tensorboard_has_the_scalars_and_the_hyper_parameters(tmp_path: Path) -> None:
    write(tmp_path, "tensorboard")
    events = EventAccumulator(str(tmp_path)).Reload()
    assert {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"]} == SCALARS
    assert events.Scalars("time/fps")[0].step == 128
    content = events.PluginTagToContent(metadata.PLUGIN_NAME)[metadata.SESSION_START_INFO_TAG]
    values = HParamsPluginData.FromString(content).session_start_info.hparams
    assert values["training.learning_rate"].number_value == 5e-4
    assert values["env.name"].string_value == "maze"
    assert values["parallel.pin_workers"].bool_value is True
    assert "env.wrappers" not in values


def test_a_resumed_log_does_not_begin_its_session_again(tmp_path: Path) -> None:
    (logger,) = make_loggers(["tensorboard"], LogStart(tmp_path, tmp_path, tmp_path, SETTINGS, 128))
    logger.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    with pytest.raises(KeyError):
        events.PluginTagToContent(metadata.PLUGIN_NAME)


def test_mlflow_has_them_in_its_file_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed: pip install mlflow-skinny")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    write(tmp_path, "mlflow")
    from mlflow.tracking import MlflowClient

    client = MlflowClient((tmp_path / "mlruns").as_uri())
    (experiment,) = (one for one in client.search_experiments() if one.name == "rlcluster")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("my run", "FINISHED")
    assert run.data.metrics == SCALARS
    assert run.data.params["training.learning_rate"] == "0.0005"
    assert client.get_metric_history(run.info.run_id, "time/fps")[0].step == 128


def test_wandb_has_them_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: pip install wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    write(tmp_path, "wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    records = [Record.FromString(data) for data in leveldb_records(file.read_bytes())]
    (run,) = (one.run for one in records if one.HasField("run"))
    assert run.display_name == "my run"
    assert {item.key: item.value_json for item in run.config.update}["env.name"] == '"maze"'
    (history,) = (one.history for one in records if one.HasField("history"))
    logged = {item.key or "/".join(item.nested_key): item.value_json for item in history.item}
    assert {tag: float(logged[tag]) for tag in SCALARS} == SCALARS
    assert logged["_step"] == "128"


def leveldb_records(content: bytes) -> Iterator[bytes]:
    """Of a .wandb file: 7 bytes, then LevelDB's log format in blocks of 32 KiB. A record has a checksum (4 bytes), a
    length (2) and a type (1: whole; 2, 3, 4: first, middle and last part).
    """
    place, parts = 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def test_an_own_logger_is_found_by_its_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_logger.py").write_text(
        "import rlcluster\nseen = []\n"
        "class Mine(rlcluster.Logger):\n"
        "    def add(self, step, scalars):\n        seen.append((step, dict(scalars)))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    write(tmp_path, "own_logger:Mine")
    seen: list[tuple[int, Mapping[str, Any]]] = sys.modules["own_logger"].seen
    assert seen == [(128, SCALARS)]


def test_wandb_without_an_account_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: pip install wandb")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(UserError) as error:
        write(tmp_path, "wandb")
    assert str(error.value).startswith("output.loggers=wandb: No API key configured.")
    assert str(error.value).endswith("; or set WANDB_MODE=offline")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("tensorbord", "output.loggers=tensorbord: should be tensorboard, wandb, mlflow or my_module:MyLogger"),
        ("nowhere:Mine", "output.loggers=nowhere:Mine: there is no module nowhere in "),
    ],
)
def test_an_unknown_logger_is_refused(name: str, problem: str) -> None:
    with pytest.raises(UserError) as error:
        refuse_missing_loggers([name])
    assert str(error.value).startswith(problem)


def test_a_logger_whose_package_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)  # Python's own way to say: not there
    with pytest.raises(UserError, match=r"output.loggers=mlflow needs a package: pip install mlflow-skinny$"):
        refuse_missing_loggers(["tensorboard", "mlflow"])
