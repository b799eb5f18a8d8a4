"""Every command and every Python block of the documents: parsed by the real parser, and executed with small budgets."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import PAGES, ROOT, Command, blocks, commands
from shortening import (
    BUDGET,
    NOT_RUN,
    TRAINING,
    UPDATES,
    filled,
    parsed,
    provide,
    settings_of,
    shape,
    shortened,
    why_not_run,
)

import rlcluster
from rlcluster.cli import main
from rlcluster.flags import make_parser
from rlcluster.settings.loading import load_settings
from rlcluster.system import cores

from conftest import train

PROGRAMS = Path(sys.executable).parent
SMALL: dict[str, Any] = {"num_envs": 4, "n_steps": 16, "n_minibatches": 2, "total_updates": 2, "num_threads": 1}
# README's names for the reader's own module, made of the files of docs/extending.md.
OWN_MODULE = "from my_callbacks import PrintFps as Mine\nfrom my_corridor import *\nfrom my_network import *\n"
OTHER_PROGRAMS_FLAGS = {"--node-rank", "--shutdown-timeout", "--signals-to-handle", "--log-jsonl"}


@cache
def executed() -> dict[str, list[Command]]:
    """By page: the commands that its test executes. Of commands with the same shape, the first."""
    seen: set[Any] = set()
    found: dict[str, list[Command]] = {page: [] for page in PAGES}
    for command in (command for page in PAGES for command in commands(page)):
        if why_not_run(command) is None and (key := shape(command)) not in seen:
            seen.add(key)
            found[command.page].append(command)
    return found


@pytest.fixture
def _files_of_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the sources as the reader sees it, with files of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("configs").symlink_to(ROOT / "configs")
    Path("a.yaml").write_text("env: {name: CartPole-v1}\n")
    Path("tuned.yaml").write_text("hardware: {num_threads: 1}\n")
    for block in blocks("docs/extending.md"):
        if block.file is not None:
            Path(block.file).write_text(block.text)
    Path("my_module.py").write_text(OWN_MODULE)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("_files_of_the_reader")
def test_every_flag_and_every_value_in_a_command_is_valid(page: str) -> None:
    for command in commands(page):
        if "rlcluster" in command.words:
            options = parsed(filled(command))
            for one in (options, getattr(options, "inner", options)):
                if one.command in TRAINING and not getattr(one, "resume", False):
                    settings_of(one)
        elif command.words[0] == "python" and (ROOT / command.words[1]).is_file():  # else the reader's own
            source = (ROOT / command.words[1]).read_text()
            assert all(f'"{word}"' in source for word in command.words if word.startswith("--")), command.text


def test_every_launch_by_torchrun_is_valid() -> None:
    from torch.distributed.run import get_args_parser

    found = [command.words for page in PAGES for command in commands(page) if command.words[0] == "torchrun"]
    assert len(found) >= 3
    for words in found:
        get_args_parser().parse_args([*("1" if word == "K" else word for word in words[1:]), "script"])


@pytest.mark.parametrize("page", PAGES)
def test_every_flag_in_the_text_exists(page: str) -> None:
    parsers = make_parser()._subparsers_by_name().values()
    scripts = "".join(file.read_text() for file in ROOT.glob("benchmarks/*.py"))
    known = {name for parser in parsers for name in parser._option_string_actions} | OTHER_PROGRAMS_FLAGS
    known |= set(re.findall(r'"(--[a-z-]+)"', scripts))
    prose = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    named = {flag for span in re.findall(r"`(--[^`]+)`", prose) for flag in re.findall(r"(?:^| )(--[a-z-]+)", span)}
    assert named <= known, named - known


@pytest.mark.usefixtures("_files_of_the_reader")
def test_every_command_is_executed_or_has_a_reason_not_to_be() -> None:
    every = {command.words for page in PAGES for command in commands(page)}
    shapes = {shape(command) for found in executed().values() for command in found}
    reasons = set()
    for page in PAGES:
        for command in commands(page):
            reason = why_not_run(command)
            reasons.add(reason)
            assert reason is not None or shape(command) in shapes, command.text
    assert len(every) > 100
    assert reasons - {None} == set(NOT_RUN.values()), "a reason without a command"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, for commands that need one."""
    run = tmp_path_factory.mktemp("trained") / "run"
    small = {"--env": "starpilot", "--num-envs": 4, "--n-steps": 16, "--network": "nature", "--n-minibatches": 2}
    result = train("ppo", run, {**small, "--total-updates": UPDATES, "--num-threads": 1})
    assert result.returncode == 0, result.stderr
    return run


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs of the Python blocks have a small budget too."""
    train, evaluate = rlcluster.train, rlcluster.evaluate
    budget = {key.split(".")[1] for key in BUDGET}

    def small_train(*arguments: Any, **given: Any) -> rlcluster.Run:
        return train(*arguments, **{key: value for key, value in given.items() if key not in budget}, **SMALL)

    def small_evaluate(path: Any, **given: Any) -> rlcluster.Evaluation:
        return evaluate(path, **{**given, "num_episodes": 2})

    monkeypatch.setattr(rlcluster, "train", small_train)
    monkeypatch.setattr(rlcluster, "evaluate", small_evaluate)
    monkeypatch.setenv("WANDB_MODE", "offline")
    yield
    cores.limit_threads(1)


@pytest.mark.slow
@pytest.mark.usefixtures("_files_of_the_reader", "_small")
@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_every_python_block_works(
    page: str, tmp_path: Path, trained: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for block in blocks(page):
        if block.language == "python" and block.file is None:
            exec(compile(block.text, page, "exec"), {"__name__": "__main__"})
    for command in executed()[page]:
        words = _in_this_folder(command, tmp_path, trained)
        code = _exit_code(command.words[0], words)
        assert code == 0, f"{command.text}\n{shlex.join(words)}\n{capfd.readouterr().err[-2000:]}"
    OUTCOMES.get(page, lambda: None)()


def _in_this_folder(command: Command, folder: Path, run: Path) -> list[str]:
    if command.words[0] == "tensorboard":
        return [*command.words[1:], "--inspect"]  # it would serve for ever
    if command.words[0] == "python":
        return list(command.words[1:])  # a file of the reader's
    return provide(shortened(filled(command), folder), run)


def _exit_code(program: str, words: list[str]) -> int:
    """Runs `rlcluster` in this process, where everything is imported already; its child processes are real."""
    if program != "rlcluster":
        return subprocess.run([str(PROGRAMS / program), *words], capture_output=True, check=False).returncode
    try:
        return main(words)
    except SystemExit as end:  # --help-all
        return int(end.code or 0)


def _guide() -> None:
    for name in ("comparison/comparison.html", "comparison/comparison_report.txt", "comparison.png", "curves.svg"):
        assert Path(name).stat().st_size > 1000, name
    assert "<video" in Path("comparison/comparison.html").read_text()


def _extending() -> None:
    names = {"a", "solved", "printed", "corridor", "noisy", "gated", "more", "further", "logged", "RUN"}
    assert {run.path.name for run in rlcluster.read("runs/*")} == names
    summary = json.loads(Path("runs/minibatches/benchmark_metrics.json").read_text())  # only its own process knows it
    assert (summary["algorithm"], summary["total_updates"]) == ("a2c_minibatches", 2)
    assert len(next(Path("runs/logged").rglob("speed.csv")).read_text().splitlines()) == 2


OUTCOMES = {"docs/guide.md": _guide, "docs/extending.md": _extending}


def test_the_page_of_examples_has_one_of_each() -> None:
    page = "docs/extending.md"
    assert re.findall(r"^## (.*)", (ROOT / page).read_text(), re.MULTILINE) == [
        *("Python", "A callback", "An environment", "A network", "A warm start", "A logger", "An algorithm"),
    ]
    assert {block.language for block in blocks(page)} == {"python", "bash", "yaml"}
    assert [block.file for block in blocks(page) if block.file] == [
        *("my_callbacks.py", "my_corridor.py", "my_network.py", "my_logger.py", "my_algorithm.py"),
    ]


def test_the_settings_file_of_an_environment_is_valid(tmp_path: Path) -> None:
    (text,) = (block.text for block in blocks("docs/extending.md") if block.language == "yaml")
    (tmp_path / "own.yaml").write_text(text)
    env = load_settings(file=tmp_path / "own.yaml").env
    assert (env.kwargs, env.frame_stack) == ({"length": 8}, 2)
    assert yaml.safe_load(text)["env"]["name"] == env.name


def test_the_plan_in_the_guide_is_valid(tmp_path: Path) -> None:
    from rlcluster.experiments.suite_plan import read_suite

    (text,) = (block.text for block in blocks("docs/guide.md") if block.language == "yaml")
    (tmp_path / "plan.yaml").write_text(text)
    assert len(read_suite(tmp_path / "plan.yaml").cells) == 2 * 1 * 3 * 5


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    for name in re.findall(r"!\[.*?\]\((.*?)\)", text):
        assert ((ROOT / page).parent / name).read_bytes().startswith(b"\x89PNG"), name
    for name in re.findall(r"(?:configs|tests|benchmarks|scripts)/[a-z0-9_/]+\.(?:yaml|py)", text):
        assert (ROOT / name).is_file(), name
