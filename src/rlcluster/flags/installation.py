"""`rlcluster check` and `presets`: what is installed here."""

from __future__ import annotations

from typing import Any

from rlcluster.flags.values import path, positive


def add_check(commands: Any) -> None:
    parser = commands.add_parser("check", help="test this installation and this machine")
    parser.add_argument("--output-dir", type=path, default=".", metavar="DIR", help="where runs will be written (.)")
    parser.add_argument("--num-threads", type=positive, help="default: all cores this process may use")


def add_presets(commands: Any) -> None:
    parser = commands.add_parser("presets", help="list the settings files that come with rlcluster")
    parser.add_argument("--show", metavar="NAME", help="print one of them, to read or to copy")
