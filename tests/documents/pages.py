"""What the documents tell their reader to run: commands in blocks and in the text, and files and Python in blocks."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
# The guide and the page of examples first: their commands build on one another, in this order.
FIRST = ("docs/guide.md", "docs/extending.md", "README.md")
HISTORY = "CHANGELOG.md"  # it tells what changed, not what to run
PAGES = tuple(
    dict.fromkeys(
        (
            *FIRST,
            *(str(file.relative_to(ROOT)) for file in sorted(ROOT.glob("docs/*.md"))),
            *(file.name for file in sorted(ROOT.glob("*.md")) if file.name != HISTORY),
        )
    )
)
PROGRAMS = re.compile(r"rlcluster|make|torchrun|tensorboard|python[\d.]*|pip|uv|srun|source|mkdir")
ELLIPSES = ("…", "...")
NEED_ARGUMENTS = ("submit", "suite", "cancel", "logs")  # alone they are names, not commands


class Command(NamedTuple):
    page: str
    text: str  # as it stands there
    words: tuple[str, ...]


class Block(NamedTuple):
    file: str | None  # the name above it
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    found = re.findall(r"(?:^`([a-z_]+\.py)`\n)?^```(\w*)\n(.*?)^```", _text(page), re.DOTALL | re.MULTILINE)
    return [Block(file or None, language, text) for file, language, text in found]


@cache
def commands(page: str) -> tuple[Command, ...]:
    """In the order of the page; a target of make is followed by the commands of its recipe."""
    found: list[Command] = []
    for part in re.split(r"(^```.*?^```)", _text(page), flags=re.DOTALL | re.MULTILINE):
        texts = _of_block(part) if part.startswith("```") else _of_prose(part)
        found += [Command(page, text, tuple(shlex.split(text, comments=True))) for text in texts]
    found = [Command(page, text, _without_ellipses(words)) for page, text, words in found]
    return tuple(each for command in found for each in (command, *_recipe(command)))


def _text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def _of_block(block: str) -> list[str]:
    """All its lines are commands, or none."""
    language, _, body = block.removesuffix("```").removeprefix("```").partition("\n")
    if language not in ("", "bash"):
        return []
    lines = [line for line in body.replace("\\\n", " ").splitlines() if line.strip()]
    are_commands = [PROGRAMS.fullmatch(line.split()[0]) is not None for line in lines]
    assert any(are_commands) == all(are_commands), f"not a program that the tests know: {block}"
    return lines if all(are_commands) else []


def _of_prose(text: str) -> Iterator[str]:
    """`rlcluster` alone, or `rlcluster submit`, only names it."""
    for line in re.split(r"\n(?=\|)", text):  # a row of a table is a line of its own
        for span in (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", _ours(line))):
            words = span.split()
            is_name = len(words) == 1 or (words[0] == "rlcluster" and len(words) == 2 and words[1] in NEED_ARGUMENTS)
            if PROGRAMS.fullmatch(words[0]) and not is_name:
                yield span


def _ours(line: str) -> str:
    """Without the first column of the table of other scripts, which has their commands. Where ours takes "the same
    flags after" a command, they follow it.
    """
    match = re.match(r"\| (`(?:\./|python |tensorboard |train_).*?) \| (.*)", line, re.DOTALL)
    if match is None:
        return line
    theirs, ours = match.groups()
    flags = re.search(r" --[^`]*", theirs)
    return re.sub(r"(the same flags after `[^`]*)", rf"\1{flags[0]}", ours) if flags else ours


def _without_ellipses(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for word in words if word not in ELLIPSES)


def _recipe(command: Command) -> Iterator[Command]:
    """The commands that `make TARGET` would run, as the dry run prints them, without the installation."""
    if command.words[0] != "make":
        return
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    dry_run = ["make", "--dry-run", *command.words[1:]]
    result = subprocess.run(dry_run, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{command.page}: {command.text}: {result.stderr}"
    for line in result.stdout.replace("\\\n", " ").splitlines():
        words = [word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_0-9]+=", word)]
        if words and words[0].startswith(".venv/bin/") and "scripts/install.py" not in words:
            yield Command(command.page, command.text, (Path(words[0]).name, *words[1:]))
