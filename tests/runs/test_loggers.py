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

import rlcluster
from rlcluster.runs.files import LOGGERS_FILE
from rlcluster.runs.log import RunLog
from rlcluster.runs.loggers import LogStart, known_loggers, make_loggers, refuse_missing_loggers
from rlcluster.runs.status import StateName
from rlcluster.system.errors import UserError

SETTINGS = {"training.learning_rate": 5e-4, "env.name": "maze", "parallel.pin_workers": True, "env.wrappers": None}
RECORD = {"update": 1, "steps_global": 128, "elapsed_seconds": 2.0, "fps": 64.0, "episode_reward_mean": None}
SCALARS = {"time/updates": 1, "time/fps": 64.0, "time/time_elapsed": 2.0}


def start_in(folder: Path, settings: Mapping[str, Any] = SETTINGS) -> LogStart:
    return LogStart(folder / "my run", folder, folder, settings, 0)


def write(folder: Path, *names: str, status: StateName = "finished") -> None:
    """One update, with every number that a record has."""
    log = RunLog(start_in(folder), 0, names)
    log.add(RECORD)
    log.sync()
    log.close(status)


def own_logger(folder: Path, monkeypatch: pytest.MonkeyPatch, method: str, body: str) -> None:
    """Makes `own_logger:Mine`."""
    code = f"import rlcluster\nseen = []\nclass Mine(rlcluster.Logger):\n    {method}\n        {body}\n"
    (folder / "own_logger.py").write_text(code)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_logger", raising=False)


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
    logger.close("finished")
    events = EventAccumulator(str(tmp_path)).Reload()
    with pytest.raises(KeyError):
        events.PluginTagToContent(metadata.PLUGIN_NAME)


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real package, with files below the run's logs."""
    pytest.importorskip("mlflow", reason="mlflow is not installed: pip install mlflow-skinny")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real package, offline."""
    pytest.importorskip("wandb", reason="wandb is not installed: pip install wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")


def mlflow_run(folder: Path) -> Any:
    """The one run of a file store, and the client that has read it."""
    from mlflow.tracking import MlflowClient

    client: Any = MlflowClient((folder / "mlruns").as_uri())
    (experiment,) = (one for one in client.search_experiments() if one.name == "rlcluster")
    (run,) = client.search_runs([experiment.experiment_id])
    return run, client


def wandb_parts(folder: Path) -> list[list[Any]]:
    """The records of each part of a run, oldest part first."""
    from wandb.proto.wandb_internal_pb2 import Record

    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda file: file.stat().st_mtime_ns)
    return [[Record.FromString(data) for data in leveldb_records(file.read_bytes())] for file in files]


def history(records: list[Any]) -> list[dict[str, float]]:
    """The rows of the charts."""
    rows = [one.history.item for one in records if one.HasField("history")]
    return [{item.key or "/".join(item.nested_key): float(item.value_json) for item in row} for row in rows]


def test_mlflow_has_them_in_its_file_store(tmp_path: Path, mlflow: None) -> None:
    write(tmp_path, "mlflow")
    run, client = mlflow_run(tmp_path)
    assert (run.info.run_name, run.info.status) == ("my run", "FINISHED")
    assert run.data.metrics == SCALARS
    assert run.data.params["training.learning_rate"] == "0.0005"
    assert client.get_metric_history(run.info.run_id, "time/fps")[0].step == 128


def test_wandb_has_them_offline(tmp_path: Path, wandb: None) -> None:
    write(tmp_path, "wandb")
    (records,) = wandb_parts(tmp_path)
    (run,) = (one.run for one in records if one.HasField("run"))
    assert run.display_name == "my run"
    assert {item.key: item.value_json for item in run.config.update}["env.name"] == '"maze"'
    (row,) = history(records)
    assert {tag: row[tag] for tag in SCALARS} == SCALARS
    assert row["_step"] == 128


def test_wandb_has_evaluations_of_an_earlier_step_under_that_step(tmp_path: Path, wandb: None) -> None:
    log = RunLog(start_in(tmp_path), 0, ["wandb"])
    log.add({**RECORD, "steps_global": 128})
    log.add({**RECORD, "steps_global": 256, "update": 2})
    log.add_evaluation({"update": 1, "steps_global": 128, "reward_mean": 7.5})
    log.add({**RECORD, "steps_global": 384, "update": 3})
    log.close("finished")
    (records,) = wandb_parts(tmp_path)
    rows = history(records)
    assert [row["_step"] for row in rows] == [128, 256, 384]
    (row,) = (row for row in rows if "eval/mean_reward" in row)
    assert (row["eval/mean_reward"], row["eval/steps_global"]) == (7.5, 128)
    (axis,) = (one.metric for one in records if one.HasField("metric"))
    assert (axis.glob_name, axis.step_metric) == ("eval/*", "eval/steps_global")


@pytest.mark.parametrize(
    ("status", "theirs"), [("finished", "FINISHED"), ("preempted", "KILLED"), ("failed", "FAILED")]
)
def test_mlflow_knows_how_a_run_ended(tmp_path: Path, mlflow: None, status: StateName, theirs: str) -> None:
    write(tmp_path, "mlflow", status=status)
    assert mlflow_run(tmp_path)[0].info.status == theirs


@pytest.mark.parametrize(
    ("status", "exit_code", "is_preempting"), [("finished", 0, False), ("preempted", 1, True), ("failed", 1, False)]
)
def test_wandb_knows_how_a_run_ended(
    tmp_path: Path, wandb: None, status: StateName, exit_code: int, is_preempting: bool
) -> None:
    write(tmp_path, "wandb", status=status)
    (records,) = wandb_parts(tmp_path)
    assert [one.exit.exit_code for one in records if one.HasField("exit")] == [exit_code]
    assert any(one.HasField("preempting") for one in records) is is_preempting


def test_a_resumed_run_is_continued_in_mlflow(tmp_path: Path, mlflow: None) -> None:
    write(tmp_path, "mlflow", status="preempted")
    log = RunLog(start_in(tmp_path, {**SETTINGS, "env.name": "chaser", "env.seed": 1}), 1, ["mlflow"])
    assert mlflow_run(tmp_path)[0].info.status == "RUNNING"
    log.add({**RECORD, "update": 2, "steps_global": 256})
    log.close("finished")
    run, client = mlflow_run(tmp_path)
    assert run.info.status == "FINISHED"
    assert [one.step for one in client.get_metric_history(run.info.run_id, "time/fps")] == [128, 256]
    assert (run.data.params["env.name"], run.data.params["env.seed"]) == ("maze", "1")


@pytest.mark.parametrize("content", ["{", "[]", '{"mlflow": 3}', '{"mlflow": {}}', '{"mlflow": {"id": null}}'])
def test_a_file_of_loggers_that_cannot_be_read_begins_another_run_and_says_so(
    content: str, tmp_path: Path, mlflow: None, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "mlflow", status="preempted")
    (tmp_path / LOGGERS_FILE).write_text(content)
    RunLog(start_in(tmp_path), 1, ["mlflow"]).close("finished")
    expected = (
        f"warning: {tmp_path / LOGGERS_FILE} cannot be read: what was logged to wandb or mlflow is not continued\n"
    )
    assert capsys.readouterr().err == expected
    assert set(known_loggers(tmp_path)) == {"mlflow"}


def test_a_resumed_run_is_continued_in_wandb(tmp_path: Path, wandb: None, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "wandb", status="preempted")
    monkeypatch.delenv("WANDB_MODE")  # as it was begun
    log = RunLog(start_in(tmp_path), 1, ["wandb"])
    log.add({**RECORD, "update": 2, "steps_global": 256})
    log.close("finished")
    parts = wandb_parts(tmp_path)
    runs = [one.run for records in parts for one in records if one.HasField("run")]
    assert runs[0].run_id == runs[1].run_id
    assert [run.resume for run in runs] == [False, True]
    assert [[row["_step"] for row in history(records)] for records in parts] == [[128], [256]]


def test_a_run_that_mlflow_does_not_know_any_more_is_refused(
    tmp_path: Path, mlflow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "elsewhere").as_uri())
    with pytest.raises(UserError) as error:
        RunLog(start_in(tmp_path), 1, ["mlflow"])
    assert str(error.value).startswith("output.loggers=mlflow: Run ")
    assert str(error.value).endswith(
        f" not found; set MLFLOW_TRACKING_URI as before, or remove {tmp_path}/loggers.json to begin another"
    )


def test_a_run_that_fails_is_resumed_and_evaluated_is_one_run_everywhere(
    tmp_path: Path, mlflow: None, wandb: None
) -> None:
    class Broken(rlcluster.Callback):
        def on_update(self, record: dict[str, Any]) -> None:
            if record["update"] == 3:
                raise ZeroDivisionError

    small = {"env": "CartPole-v1", "num_envs": 4, "n_steps": 32, "num_threads": 1, "checkpoint_updates": 2}
    path = tmp_path / "my run"
    with pytest.raises(ZeroDivisionError):
        rlcluster.train("ppo", logger="mlflow,wandb", total_updates=4, output_dir=path, callbacks=[Broken()], **small)
    folder = path / "logs" / "PPO_Sequential"
    assert mlflow_run(folder)[0].info.status == "FAILED"
    rlcluster.train(resume=True, output_dir=path)
    result = rlcluster.evaluate(path, num_episodes=3, num_threads=1, json=path / "evaluation.json")
    run, client = mlflow_run(folder)
    assert run.info.status == "FINISHED"
    score = result.results["test"]["reward_mean"]
    assert [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "eval/mean_reward")] == [
        (512, score)
    ]
    parts = wandb_parts(folder)
    assert len({one.run.run_id for records in parts for one in records if one.HasField("run")}) == 1
    assert [one.exit.exit_code for records in parts for one in records if one.HasField("exit")] == [1, 0, 0]
    assert [[row["_step"] for row in history(records)] for records in parts] == [[128, 256, 384], [384, 512], [512]]
    assert (history(parts[2])[0]["eval/mean_reward"], history(parts[2])[0]["eval/steps_global"]) == (score, 512)


@pytest.mark.slow
def test_a_parallel_run_that_a_callback_ends_by_an_error_is_closed_as_failed(
    tmp_path: Path, mlflow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(rlcluster.Callback):
        def on_update(self, record: dict[str, Any]) -> None:
            raise SystemExit

    small = {"env": "CartPole-v1", "num_envs": 4, "n_steps": 32, "num_threads": 1, "num_workers": 2}
    path = tmp_path / "run"
    with pytest.raises(SystemExit):
        rlcluster.train("ppo", mode="parallel", logger="mlflow", output_dir=path, callbacks=[Broken()], **small)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # which the logger has set in its own process only
    assert mlflow_run(path / "logs" / "PPO_Parallel")[0].info.status == "FAILED"


def test_an_evaluation_says_which_logger_does_not_have_it(
    tmp_path: Path, mlflow: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"env": "CartPole-v1", "num_envs": 4, "n_steps": 32, "num_threads": 1, "total_updates": 1}
    path = rlcluster.train("ppo", logger="mlflow", output_dir=tmp_path / "run", **small).path
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "elsewhere").as_uri())
    rlcluster.evaluate(path, num_episodes=1, num_threads=1, json=path / "evaluation.json")
    assert "the evaluation is not in mlflow: output.loggers=mlflow: Run " in capsys.readouterr().err
    assert (path / "evaluation.json").exists()


def test_a_failed_run_stays_failed_where_a_logger_fails_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_logger(tmp_path, monkeypatch, "def close(self, status):", "seen.append(status); raise ZeroDivisionError")
    write(tmp_path, "own_logger:Mine", "own_logger:Mine", status="failed")
    assert sys.modules["own_logger"].seen == ["failed", "failed"]
    with pytest.raises(ZeroDivisionError):
        write(tmp_path, "own_logger:Mine")


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
    own_logger(tmp_path, monkeypatch, "def add(self, step, scalars):", "seen.append((step, dict(scalars)))")
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
