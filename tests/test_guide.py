"""docs/guide.md: every command is executed, in order, with small budgets."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rlcluster.cli import main
from rlcluster.system import cores

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "guide.md"
PROGRAMS = Path(sys.executable).parent

SMALL = {"--num-envs": "4", "--n-steps": "16", "--network": "nature", "--total-updates": "2"}
QUICK_GAME = "starpilot"  # untrained agents die early, so evaluations are short
SMALLER = {"--num-workers": "2", "--num-envs-per-worker": "3", "--num-episodes": "2", "--world-sizes": "1,2"}
DROPPED = ("--duration", "--total-timesteps", "--total-updates", "--num-envs", "--n-steps")


def commands(text: str) -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines() if line.strip()]


def shortened(words: list[str], folder: Path) -> list[str]:
    """The same command with a small budget."""
    kept: list[str] = []
    for word in words:
        if kept and kept[-1] in DROPPED and not word.startswith("--"):
            kept.pop()
        else:
            kept.append(SMALLER[kept[-1]] if kept and kept[-1] in SMALLER else word)
    match words[1]:
        case "train" if "--resume" in words:
            return [*kept, "--total-updates", "4"]
        case "train":
            small = {key: value for key, value in SMALL.items() if key != "--num-envs" or "--num-workers" not in words}
            batch = ["--n-minibatches", "2"] if words[2] == "ppo" else []
            return [*kept, *(part for pair in small.items() for part in pair), *batch, "--env", QUICK_GAME]
        case "scale":
            return [*kept, *(part for pair in SMALL.items() for part in pair), "--repeats", "1", "--warmup-iters", "1"]
        case "suite":
            return [*words[:2], str(small_suite(ROOT / words[2], folder))]
    return kept


def small_suite(file: Path, folder: Path) -> Path:
    plan = yaml.safe_load(file.read_text())
    plan |= {"algorithms": ["ppo"], "modes": ["sequential"], "seeds": [1], "budget": {"total_timesteps": 4096}}
    plan["evaluation"] |= {"num_episodes": 2}
    small = folder / file.name
    small.write_text(yaml.safe_dump(plan))
    return small


def exit_code_of(words: list[str]) -> int:
    """Runs `rlcluster` in this process, where everything is imported already; its child processes are real."""
    if words[0] == "rlcluster":
        return main(words[1:])
    return subprocess.run([str(PROGRAMS / words[0]), *words[1:]], capture_output=True, check=False).returncode


@pytest.fixture
def _one_thread_afterwards():
    yield
    cores.limit_threads(1)


@pytest.mark.slow
@pytest.mark.usefixtures("_one_thread_afterwards")
def test_every_command_of_the_guide_works(tmp_path, monkeypatch, capfd):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    for words in commands(GUIDE.read_text()):
        if words[0] == "make":
            continue  # the test below checks the targets
        is_server = words[0] == "tensorboard"  # it would serve for ever
        command = [*words, "--inspect"] if is_server else shortened(words, tmp_path)
        assert exit_code_of(command) == 0, f"{shlex.join(command)}\n{capfd.readouterr().err[-2000:]}"
    for name in ("comparison/comparison.html", "comparison/comparison_report.txt", "comparison.png", "curves.svg"):
        assert (tmp_path / name).stat().st_size > 1000, name
    assert "<video" in (tmp_path / "comparison/comparison.html").read_text()


def test_every_make_target_in_the_documents_exists():
    known = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for file in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")):
        named = set(re.findall(r"`make ([a-z0-9-]+)", file.read_text()))
        assert named <= known, (file.name, named - known)


def test_every_file_in_the_guide_exists():
    text = GUIDE.read_text()
    for name in re.findall(r"!\[.*?\]\((.*?)\)", text):
        assert (GUIDE.parent / name).read_bytes().startswith(b"\x89PNG"), name
    for name in re.findall(r"configs/[a-z0-9_]+\.yaml", text):
        assert (ROOT / name).is_file(), name


def test_the_plan_in_the_guide_is_valid(tmp_path):
    from rlcluster.experiments.suite_plan import read_suite

    (block,) = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (tmp_path / "plan.yaml").write_text(block)
    assert len(read_suite(tmp_path / "plan.yaml").cells) == 2 * 1 * 3 * 5
