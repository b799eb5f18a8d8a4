"""argparse with one-line errors, suggestions, and a brief and a full help."""

from __future__ import annotations

import argparse
import difflib
import itertools
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from rlcluster.system.errors import EXIT_USAGE

# What other libraries call them, where no spelling is close.
FOREIGN_FLAGS = {
    "--lr": "--learning-rate",
    "--ent-coef": "--entropy-coefficient",
    "--vf-coef": "--value-coefficient",
    "--timesteps": "--total-timesteps",
    "--game": "--env",
}


class ParserExit(SystemExit):
    """After a help text or a wrong flag. Any other SystemExit comes from code of the user."""


class Parser(argparse.ArgumentParser):
    """One-line errors with a suggestion; -1e-3 is a number. If `brief` is set, `--help` shows only those flags."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": _Formatter, **options})
        self._negative_number_matcher = re.compile(r"-\.?\d")
        self.brief: list[argparse.Action] = []

    def format_help(self) -> str:
        if not self.brief:
            return self.format_help_all()
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        formatter.start_section("common flags")
        formatter.add_arguments(self.brief)
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def format_help_all(self) -> str:
        return super().format_help()

    def refuse_unknown_flags(self, arguments: Sequence[str]) -> None:
        """Called before parsing: otherwise the value of a misspelt flag is taken for a positional argument."""
        parser = self._subparsers_by_name().get(next(iter(arguments), ""), self)
        for argument in before_separator(arguments):
            name = argument.split("=", 1)[0]
            if name.startswith("--") and len(name) > 2 and name not in parser._option_string_actions:
                close = difflib.get_close_matches(name, list(parser._option_string_actions), n=1)
                if FOREIGN_FLAGS.get(name) in parser._option_string_actions:
                    close = [FOREIGN_FLAGS[name]]
                guess = f"did you mean {close[0]}?" if close else f"see {'--help-all' if parser.brief else '--help'}"
                parser.error(f"unknown flag {name}; {guess}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        self._print_message(message or "", sys.stderr)
        raise ParserExit(status)

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: error: {' '.join(message.split())}\n")  # a value may have line breaks

    def _subparsers_by_name(self) -> dict[str, Parser]:
        actions = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return dict(actions[0].choices) if actions else {}


def before_separator(arguments: Sequence[str]) -> list[str]:
    """The arguments before `--`: those of `submit` itself."""
    return list(itertools.takewhile(lambda argument: argument != "--", arguments))


class _Formatter(argparse.HelpFormatter):
    """Keeps the line breaks of multi-line texts; gives the flags more room."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


class HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        assert isinstance(parser, Parser)
        parser._print_message(parser.format_help_all(), sys.stdout)
        parser.exit()
