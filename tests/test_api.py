"""The Python interface: `import rlcluster`, and what its `__all__` names."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import rlcluster
from rlcluster.cli import main
from rlcluster.runs.status import read_state
from rlcluster.training.callbacks import Callbacks

from conftest import metrics
from conftest import rlcluster as command

SMALL: dict[str, Any] = {
    **{"env": "CartPole-v1", "num_envs": 4, "n_steps": 32, "num_threads": 1, "total_updates": 4},
    "checkpoint_updates": 2,
}
FLAGS = [part for key, value in SMALL.items() for part in (f"--{key.replace('_', '-')}", str(value))]


class Recorder(rlcluster.Callback):
    """Notes what it is told; ends or breaks the run in one update if asked to."""

    def __init__(
        self,
        stop_at: int | None = None,
        fail_at: int | None = None,
        error: BaseException = ZeroDivisionError("a bug of the user's"),  # noqa: B008 - the same for all
    ) -> None:
        self.events: list[tuple[str, Any]] = []
        self._stop_at, self._fail_at, self._error = stop_at, fail_at, error

    def on_start(self, run: Path, settings: Any) -> None:
        self.events.append(("start", (run, settings["algorithm"])))

    def on_update(self, record: dict[str, Any]) -> str | None:
        self.events.append(("update", record["update"]))
        if record["update"] == self._fail_at:
            raise self._error
        record.clear()  # a copy: nothing happens
        return "stop" if self.events[-1][1] == self._stop_at else None

    def on_checkpoint(self, path: Path) -> None:
        self.events.append(("checkpoint", path.name))

    def on_end(self, summary: dict[str, Any]) -> None:
        self.events.append(("end", summary["total_updates"]))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> rlcluster.Run:
    return rlcluster.train("ppo", output_dir=tmp_path_factory.mktemp("api") / "run", **SMALL)


# What is public


def test_the_public_names_are_these_and_each_is_documented() -> None:
    assert rlcluster.__all__ == [
        *("Agent", "Callback", "Evaluation", "ImpalaTrunk", "Logger", "NatureTrunk", "Run", "UserError"),
        *("__version__", "evaluate", "load", "read", "train"),
    ]
    assert set(rlcluster.__all__) <= set(dir(rlcluster))
    for name in set(rlcluster.__all__) - {"__version__"}:
        assert getattr(rlcluster, name).__doc__, name


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = rlcluster.nothing  # type: ignore[attr-defined]


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, rlcluster; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert loaded.isdisjoint({"torch", "numpy", "pydantic", "yaml", "gymnasium", "tensorboard", "argparse"})


# Training


def test_a_run_of_the_interface_equals_one_of_the_command_line(tmp_path: Path, trained: rlcluster.Run) -> None:
    assert command("train", "ppo", *FLAGS, "--output-dir", tmp_path / "run").returncode == 0
    assert metrics(tmp_path / "run") == metrics(trained.path)
    assert (trained.status, trained.summary["total_updates"]) == ("finished", 4)
    assert trained.settings["env"]["name"] == "CartPole-v1"
    assert trained.warnings == ()


@pytest.mark.parametrize("folder", ["text", "path"])
def test_settings_are_refused_with_the_words_of_the_command_line(tmp_path: Path, folder: str) -> None:
    output_dir = tmp_path / "run" if folder == "path" else str(tmp_path / "run")
    with pytest.raises(rlcluster.UserError) as error:
        rlcluster.train("ppo", output_dir=output_dir, batch_size=1000, gamma=2)
    said = command("train", "ppo", "--batch-size", "1000", "--gamma", "2").stderr
    assert said == f"rlcluster: error: {error.value}\n"
    assert not (tmp_path / "run").exists()


def test_unknown_settings_are_listed_with_suggestions() -> None:
    with pytest.raises(rlcluster.UserError) as error:
        rlcluster.train("ppo", learning_rat=1, lr=3, zzz=2)
    assert str(error.value) == (
        "unknown setting learning_rat; did you mean learning_rate?; unknown setting lr; did you mean learning_rate?; "
        "unknown setting zzz"
    )


def test_a_preset_an_alias_and_none_are_understood() -> None:
    from rlcluster.api import settings_by_key

    given = settings_by_key({"env": "maze", "epochs": 2, "target_kl": None, "output_dir": Path("a")})
    assert given == {
        **{"env.name": "maze", "training.n_epochs": 2, "training.target_kl": None},
        "output.output_dir": "a",
    }


# Callbacks


def test_a_callback_follows_the_run_and_does_not_change_it(tmp_path: Path, trained: rlcluster.Run) -> None:
    mine = Recorder()
    run = rlcluster.train("ppo", output_dir=tmp_path / "run", callbacks=[mine], **SMALL)
    assert mine.events == [
        ("start", (tmp_path / "run", "ppo")),
        *(("update", 1), ("update", 2), ("checkpoint", "ppo_sequential_step_256.pt")),
        *(("update", 3), ("update", 4), ("checkpoint", "ppo_sequential_step_512.pt")),
        *(("checkpoint", "ppo_sequential_final.pt"), ("end", 4)),
    ]
    assert metrics(run.path) == metrics(trained.path)


def test_a_callback_that_says_stop_ends_the_run_as_a_budget_does(tmp_path: Path, trained: rlcluster.Run) -> None:
    mine = Recorder(stop_at=3)
    run = rlcluster.train("ppo", output_dir=tmp_path / "run", callbacks=[mine], **SMALL)
    assert mine.events[-2:] == [("checkpoint", "ppo_sequential_final.pt"), ("end", 3)]
    assert run.status == "finished"
    rlcluster.train(resume=True, output_dir=tmp_path / "run")
    assert metrics(tmp_path / "run") == metrics(trained.path)


def test_a_callback_that_raises_fails_the_run_which_resumes_from_its_last_checkpoint(
    tmp_path: Path, trained: rlcluster.Run
) -> None:
    with pytest.raises(ZeroDivisionError, match="a bug of the user's"):
        rlcluster.train("ppo", output_dir=tmp_path / "run", callbacks=[Recorder(fail_at=3)], **SMALL)
    state = read_state(tmp_path / "run")
    assert state is not None
    assert (state.state, state.reason, state.update) == ("failed", "ZeroDivisionError: a bug of the user's", 2)
    rlcluster.train(resume=True, output_dir=tmp_path / "run")
    assert metrics(tmp_path / "run") == metrics(trained.path)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sequential", "parallel"])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ZeroDivisionError("a bug of the user's\nin two lines"), "ZeroDivisionError: a bug of the user's"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (rlcluster.UserError("give another callback"), "give another callback"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_a_callback_raises_is_the_reason_of_the_failure_in_each_mode(
    tmp_path: Path, mode: str, error: BaseException, reason: str
) -> None:
    mine = Recorder(fail_at=3, error=error)
    settings = SMALL if mode == "sequential" else {**SMALL, "num_workers": 2}
    with pytest.raises(type(error)) as raised:
        rlcluster.train("ppo", mode=mode, output_dir=tmp_path / "a", callbacks=[mine], **settings)
    assert raised.value is error
    state = read_state(tmp_path / "a")
    assert state is not None
    assert (state.state, state.reason, state.update) == ("failed", reason, 2)


@pytest.mark.slow
def test_a_refused_start_leaves_a_finished_run_finished(tmp_path: Path) -> None:
    for _ in range(2):
        with contextlib.suppress(rlcluster.UserError):
            rlcluster.train("ppo", mode="parallel", num_workers=2, output_dir=tmp_path / "a", **SMALL)
    state = read_state(tmp_path / "a")
    assert state is not None
    assert (state.state, state.reason) == ("finished", None)


def test_a_callback_is_told_of_the_best_checkpoint_before_the_end(tmp_path: Path) -> None:
    mine = Recorder()
    settings = {**SMALL, "eval_interval": 256, "eval_episodes": 2}
    rlcluster.train("ppo", output_dir=tmp_path / "run", callbacks=[mine], **settings)
    assert ("checkpoint", "ppo_sequential_best.pt") in mine.events
    assert mine.events[-1] == ("end", 4)


@pytest.mark.slow
def test_callbacks_of_a_parallel_run_live_in_this_process(tmp_path: Path) -> None:
    mine = Recorder(stop_at=3)
    run = rlcluster.train("ppo", mode="parallel", num_workers=2, output_dir=tmp_path / "a", callbacks=[mine], **SMALL)
    assert [name for name, _ in mine.events] == [
        "start",
        "update",
        "update",
        "checkpoint",
        "update",
        "checkpoint",
        "end",
    ]
    assert (run.status, run.summary["world_size"], run.summary["total_updates"]) == ("finished", 2, 3)
    broken = Recorder(fail_at=3)
    with pytest.raises(ZeroDivisionError):
        rlcluster.train("ppo", mode="parallel", num_workers=2, output_dir=tmp_path / "b", callbacks=[broken], **SMALL)
    state = read_state(tmp_path / "b")
    assert state is not None
    assert (state.state, state.reason, state.update) == ("failed", "ZeroDivisionError: a bug of the user's", 2)


@pytest.mark.parametrize(
    ("method", "value", "allowed"),
    [("on_update", 3, 'None or "stop"'), ("on_checkpoint", "stop", "None")],
)
def test_any_other_answer_of_a_callback_is_refused(tmp_path: Path, method: str, value: Any, allowed: str) -> None:
    mine = type("Mine", (), {method: lambda self, _: value})()
    with pytest.raises(rlcluster.UserError) as error:
        rlcluster.train("ppo", output_dir=tmp_path / "run", callbacks=[mine], **SMALL)
    assert str(error.value) == f"callback Mine.{method} returned {value!r}; it should return {allowed}"


def test_an_object_without_a_method_of_a_callback_is_refused(tmp_path: Path) -> None:
    with pytest.raises(rlcluster.UserError, match="defines none of on_start, on_update, on_checkpoint, on_end"):
        rlcluster.train("ppo", output_dir=tmp_path / "run", callbacks=["mine"], **SMALL)
    assert not (tmp_path / "run").exists()


def test_the_import_path_of_a_callback_is_another_keyword(tmp_path: Path) -> None:
    with pytest.raises(rlcluster.UserError) as error:
        rlcluster.train("ppo", output_dir=tmp_path / "run", callbacks="my_module:Mine", **SMALL)
    assert str(error.value) == 'callbacks=my_module:Mine: give objects in a list, or callback="my_module:Mine"'


@pytest.mark.parametrize("wrong", [None, Recorder(), 3])
def test_callbacks_that_are_no_list_are_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(rlcluster.UserError) as error:
        rlcluster.train("ppo", output_dir=tmp_path / "run", callbacks=wrong, **SMALL)
    assert str(error.value) == f"callbacks={wrong!r}: give objects in a list; [] is none"


def test_callbacks_get_copies_to_the_bottom() -> None:
    class Spoiler:
        def on_start(self, run: Path, settings: Any) -> None:
            settings["env"]["name"] = "maze"

    settings = {"env": {"name": "coinrun"}}
    Callbacks([Spoiler()]).tell("on_start", Path("run"), settings)
    assert settings == {"env": {"name": "coinrun"}}


def test_the_command_line_finds_a_callback_in_this_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Stopper:\n    def on_update(self, record):\n        return 'stop' if record['update'] == 2 else None\n"
    )
    result = command("train", "ppo", *FLAGS, "--output-dir", "run", "--callback", "mine:Stopper", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert len(metrics(tmp_path / "run")) == 2


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("mine", "should be MODULE:NAME, such as my_module:MyCallback"),
        ("nowhere:Mine", "there is no module nowhere in {folder} or among the installed packages"),
        ("json:dumbs", "json has no dumbs; did you mean dumps?"),
    ],
)
def test_an_import_path_that_means_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(rlcluster.UserError) as error:
        rlcluster.train("ppo", output_dir="run", callback=path, **SMALL)
    assert str(error.value) == f"output.callbacks={path}: {problem.format(folder=tmp_path)}"


SCRIPT = """
import rlcluster
seen = []
class Mine:
    def on_update(self, record):
        seen.append(record["update"])
run = rlcluster.train("ppo", env="CartPole-v1", mode="parallel", num_workers=2, num_envs=4, n_steps=32, num_threads=1,
                      total_updates=2, output_dir="run", callbacks=[Mine()])
print(seen, run.status)
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_piped", [False, True], ids=["a script without a main guard", "standard input"])
def test_a_parallel_run_starts_from(tmp_path: Path, is_piped: bool) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    arguments = ["-"] if is_piped else ["script.py"]
    result = subprocess.run(
        [sys.executable, *arguments], input=SCRIPT, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "[1, 2] finished"


NOTEBOOK = [
    "import rlcluster\nsettings = dict(env='CartPole-v1', num_envs=4, n_steps=32, num_threads=1, total_updates=2)",
    "seen = []\nclass Mine:\n    def on_update(self, record):\n        seen.append(record['update'])",
    "run = rlcluster.train('ppo', output_dir='sequential', callbacks=[Mine()], **settings)\nprint(seen, run.status)",
    "more = dict(mode='parallel', num_workers=2, output_dir='parallel')\n"
    "run = rlcluster.train('ppo', callbacks=[Mine()], **settings, **more)\n"
    "print(seen, run.status, run.summary['world_size'])",
    "import signal\nclass Interrupter:\n    def on_update(self, record):\n"
    "        if record['update'] == 1:\n            signal.raise_signal(signal.SIGINT)",
    "settings['total_updates'] = 1_000_000\n"
    "run = rlcluster.train('ppo', output_dir='stopped', callbacks=[Interrupter()], **settings)\n"
    "print(run.status)",
]


@pytest.mark.slow
def test_a_notebook_in_a_real_kernel_trains_in_sequence_and_in_parallel_and_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in NOTEBOOK])
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
    last_lines = [
        "".join(one["text"] for one in cell.outputs).splitlines()[-1] for cell in notebook.cells if cell.outputs
    ]
    assert last_lines == ["[1, 2] finished", "[1, 2, 1, 2] finished 2", "preempted"]


INTERRUPTED = """
import signal, rlcluster
class Mine:
    def on_update(self, record):
        if record["update"] == 2:
            signal.raise_signal(signal.SIGINT)
run = rlcluster.train("ppo", env="CartPole-v1", num_envs=4, n_steps=32, num_threads=1, output_dir="run",
                      total_updates=1_000_000, callbacks=[Mine()], **{settings})
print(run.status, run.summary["total_updates"] >= 2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"mode": "parallel", "num_workers": 2}], ids=["sequential", "parallel"])
def test_ctrl_c_saves_the_run_and_returns_it_as_preempted(tmp_path: Path, settings: dict[str, Any]) -> None:
    (tmp_path / "script.py").write_text(INTERRUPTED.replace("{settings}", repr(settings)))
    result = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "preempted True"
    assert rlcluster.load(tmp_path / "run", num_threads=1).steps_global >= 256


# Agents


def test_an_agent_acts_on_one_observation_and_on_a_batch(trained: rlcluster.Run) -> None:
    agent = rlcluster.load(trained.path)
    batch = np.random.default_rng(0).normal(size=(64, 4))
    greedy = agent.act(batch, deterministic=True)
    assert [agent.act(one, deterministic=True) for one in batch] == greedy.tolist()
    assert set(agent.act(batch).tolist()) == {0, 1}
    again = rlcluster.load(trained.path, seed=0).act(batch)
    assert again.tolist() == rlcluster.load(trained.path).act(batch).tolist()
    assert again.tolist() != rlcluster.load(trained.path, seed=1).act(batch).tolist()


def test_an_agent_plays_a_gymnasium_environment(trained: rlcluster.Run) -> None:
    agent, env = rlcluster.load(next(trained.path.glob("checkpoints/*_final.pt"))), gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    for _ in range(5):
        observation, *_ = env.step(agent.act(observation))


def test_an_observation_of_another_shape_is_refused(trained: rlcluster.Run) -> None:
    with pytest.raises(rlcluster.UserError) as error:
        rlcluster.load(trained.path).act(np.zeros((2, 3)))
    assert str(error.value) == (
        "act: the observation has shape [2, 3]; CartPole-v1 has [4], a batch one more dimension in front"
    )


@pytest.mark.parametrize("observation", ["x", [[0.0] * 4, [0.0]], [{}] * 4, [None, "a", 0, 0]], ids=repr)
def test_an_observation_that_is_no_array_of_numbers_is_refused(trained: rlcluster.Run, observation: Any) -> None:
    with pytest.raises(rlcluster.UserError) as error:
        rlcluster.load(trained.path).act(observation)
    text = str(error.value)
    assert text.startswith("act: the observation is no array of float32 (")
    assert text.endswith("); CartPole-v1 has the shape [4]")
    assert "\n" not in text


def test_an_evaluation_equals_that_of_the_command_line(tmp_path: Path, trained: rlcluster.Run) -> None:
    ours = rlcluster.evaluate(trained.path, num_episodes=5, seed=3, json=tmp_path / "ours.json", num_threads=1)
    arguments = ("--num-episodes", "5", "--seed", "3", "--json", tmp_path / "theirs.json", "--num-threads", "1")
    assert command("evaluate", trained.path, *arguments).returncode == 0
    theirs = json.loads((tmp_path / "theirs.json").read_text())
    assert json.loads((tmp_path / "ours.json").read_text()) == theirs
    assert (ours.results, ours.gap) == (theirs["results"], None)


def said_by(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """The exit code of a command that is refused, and its last line."""
    try:
        code = main([*map(str, arguments)])
    except SystemExit as refusal:
        code = int(refusal.code or 0)
    return code, capsys.readouterr().err.splitlines()[-1]


def test_invalid_options_of_an_evaluation_are_refused_as_on_the_command_line(
    trained: rlcluster.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in (
        *({"num_episodes": 0}, {"num_episodes": 2.5}, {"num_episodes": None}, {"num_episodes": True}),
        *({"num_threads": 0}, {"num_threads": -1}, {"num_threads": "two"}),
        *({"seed": -1}, {"seed": 0.5}, {"seed": 2**63}),
    ):
        with pytest.raises(rlcluster.UserError) as error:
            rlcluster.evaluate(trained.path, **options)  # type: ignore[arg-type]
        ((name, value),) = options.items()
        flag, words = f"--{name.replace('_', '-')}", str(error.value).removeprefix(f"{name}=")
        expected = 2, f"rlcluster evaluate: error: argument {flag}: {words}"
        assert said_by(capsys, "evaluate", trained.path, f"{flag}={value}") == expected
    with pytest.raises(rlcluster.UserError, match="levels=all: should be one of test, train, both"):
        rlcluster.evaluate(trained.path, levels="all")  # type: ignore[arg-type]


def test_numbers_that_load_cannot_use_are_refused(trained: rlcluster.Run) -> None:
    for options, problem in (
        ({"num_threads": 0}, "num_threads=0 should be at least 1"),
        ({"seed": -1}, "seed=-1 should not be negative"),
        ({"env": 3}, "env=3 should be the name of an environment"),
    ):
        with pytest.raises(rlcluster.UserError) as error:
            rlcluster.load(trained.path, **options)  # type: ignore[arg-type]
        assert str(error.value) == problem


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_played(
    tmp_path: Path,
    trained: rlcluster.Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("rlcluster.evaluation.evaluate.play", lambda *_: pytest.fail("it plays"))
    for file, problem in (
        (tmp_path / "no" / "x.json", f"no such directory: {tmp_path / 'no'}"),
        (tmp_path, "is a directory; give the name of a file"),
    ):
        with pytest.raises(rlcluster.UserError) as error:
            rlcluster.evaluate(trained.path, json=file)
        expected = error.value.exit_code, f"rlcluster: error: --{error.value}"
        assert said_by(capsys, "evaluate", trained.path, "--json", file, "--num-threads", "1") == expected
        assert str(error.value) == f"json {file}: {problem}"


@pytest.mark.parametrize("wrong", [3, b"runs", None, ["runs"]], ids=repr)
def test_what_is_no_path_is_refused(wrong: Any) -> None:
    for function in (rlcluster.load, rlcluster.evaluate, rlcluster.read):
        with pytest.raises(rlcluster.UserError) as error:
            function(wrong)
        assert str(error.value) == f"{function.__name__} {wrong!r}: give a path, as text or a Path"


@pytest.mark.parametrize("wrong", [3, b"a", [3], {"env": {}}, {"a.yaml"}], ids=repr)
def test_what_is_no_settings_file_is_refused(wrong: Any) -> None:
    with pytest.raises(rlcluster.UserError) as error:
        rlcluster.train("ppo", config=wrong)
    assert str(error.value) == (
        f"config={wrong!r}: give the path of a YAML or JSON file, or a name of `rlcluster presets`, or several in a "
        "list; settings themselves are keywords"
    )


def test_a_tilde_is_the_home_folder_as_on_the_command_line(
    trained: rlcluster.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(trained.path.parent))
    (run,) = rlcluster.read("~/run")
    assert run.path == trained.path
    rlcluster.evaluate("~/run", num_episodes=1, num_threads=1, json="~/evaluation.json")
    assert (trained.path.parent / "evaluation.json").exists()


def test_an_environment_without_levels_is_evaluated_under_test_with_a_warning(
    trained: rlcluster.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    result = rlcluster.evaluate(trained.path, num_episodes=1, levels="train", num_threads=1)
    assert list(result.results) == ["test"]
    said = 'levels=train: CartPole-v1 has no levels; it is evaluated once, as it is, under the key "test"'
    assert said in capsys.readouterr().err


def test_a_path_where_nothing_is_is_called_as_the_user_called_it(tmp_path: Path) -> None:
    for function in (rlcluster.load, rlcluster.evaluate):
        with pytest.raises(rlcluster.UserError) as error:
            function(tmp_path / "nothing", num_threads=1)
        expected = f"{function.__name__} {tmp_path / 'nothing'}: there is no such file or run directory"
        assert str(error.value) == expected


# Reading


def test_runs_are_read_by_pattern_and_by_name(trained: rlcluster.Run) -> None:
    folder = trained.path.parent
    (folder / "no run").mkdir(exist_ok=True)
    assert [run.path for run in rlcluster.read(f"{folder}/*", trained.path)] == [trained.path] * 2
    with pytest.raises(rlcluster.UserError, match="no such run directory"):
        rlcluster.read(folder / "nothing")
    with pytest.raises(rlcluster.UserError, match="there is no run among 1 matches"):
        rlcluster.read(f"{folder}/no*")


def test_metrics_are_plain_columns_of_one_length(trained: rlcluster.Run) -> None:
    assert type(trained.metrics) is dict
    for name, column in trained.metrics.items():
        assert (type(column), column.dtype, column.shape) == (np.ndarray, np.float64, (4,)), name


def test_metrics_are_columns_that_pandas_takes(trained: rlcluster.Run) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(trained.metrics)
    assert table["steps_global"].tolist() == [128, 256, 384, 512]
    assert "policy_lag_mean" not in table  # IMPALA's
