"""The command-line parsers of `rlcluster`: one per command, with a flag for every setting."""

from __future__ import annotations

import rlcluster
from rlcluster.flags.cluster import SUBMIT_FLAGS, add_status, add_submit
from rlcluster.flags.evaluate import add_evaluate
from rlcluster.flags.experiments import add_plan, add_profile, add_scale, add_suite, add_tune
from rlcluster.flags.installation import add_check, add_presets
from rlcluster.flags.parser import FOREIGN_FLAGS, Parser, ParserExit, before_separator
from rlcluster.flags.reports import add_compare, add_plot, add_watch
from rlcluster.flags.settings import FLAG_NAMES, flag_names
from rlcluster.flags.train import add_train

__all__ = [
    "FLAG_NAMES",
    "FOREIGN_FLAGS",
    "SUBMIT_FLAGS",
    "Parser",
    "ParserExit",
    "before_separator",
    "flag_names",
    "make_parser",
]


def make_parser() -> Parser:
    parser = Parser(prog="rlcluster", description=(rlcluster.__doc__ or "").partition("\n")[0])
    parser.add_argument("--version", action="version", version=f"rlcluster {rlcluster.__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    add_train(commands)
    add_evaluate(commands)
    add_compare(commands)
    add_plot(commands)
    add_watch(commands)
    add_suite(commands)
    add_scale(commands)
    add_profile(commands)
    add_tune(commands)
    add_plan(commands)
    add_check(commands)
    add_presets(commands)
    add_submit(commands)
    add_status(commands)
    return parser
