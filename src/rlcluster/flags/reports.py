"""`rlcluster compare`, `plot` and `watch`: what runs have recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlcluster.flags.parser import Parser
from rlcluster.flags.values import finite, listed, path, score_range, suffixes


def add_compare(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="compare runs",
        description="Compare methods: runs that differ only in seed and game are one. A table here, and "
        "comparison.png, comparison_report.txt, comparison.html and comparison.json. By default: the latest run, and "
        "the latest runs of its algorithm and game in other modes.",
    )
    parser.add_argument(
        "runs", nargs="*", type=path, metavar="RUN", help="run directories; the first one's method is the baseline"
    )
    parser.add_argument("--per-run", action="store_true", help="show single runs instead of methods (means over seeds)")
    parser.add_argument("--sequential", type=path, metavar="DIR", help="a run, labelled Sequential in the table")
    parser.add_argument("--parallel", type=path, metavar="DIR", help="a run, labelled Parallel in the table")
    parser.add_argument(
        "--output",
        type=path,
        default=".",
        metavar="DIR|FILE.png",
        help="output directory, or file name of the plot (.)",
    )
    parser.add_argument("--reference", action="store_true", help="also show published scores: ours and OpenAI's PPO's")
    parser.add_argument(
        "--threshold", type=finite, metavar="REWARD", help="report when each run first reached this reward"
    )
    parser.add_argument(
        "--score-range",
        type=score_range,
        action="append",
        default=[],
        metavar="GAME=MIN,MAX",
        help="scores normalised to 0 and 1, instead of the published ones",
    )
    _add_drawing(parser, ("main", "diagnostics", "core-hours", "seeds"), ("png", "pdf", "svg", "csv", "md", "tex"))


def add_plot(commands: Any) -> None:
    parser = commands.add_parser("plot", help="plot the learning curves of a run")
    parser.add_argument("run", nargs="?", type=path, metavar="RUN", help="run directory")
    parser.add_argument("--log-file", type=path, metavar="FILE", help="a metrics.jsonl instead of a run")
    parser.add_argument(
        "--output", type=path, metavar="FILE", help=".png, .pdf or .svg (default: RUN.png in this directory)"
    )
    parser.add_argument("--reference", action="store_true", help="also show published scores: ours and OpenAI's PPO's")
    _add_drawing(parser, ("main", "diagnostics"), ("png", "pdf", "svg"))


def _add_drawing(parser: Parser, panels: Sequence[str], formats: Sequence[str]) -> None:
    tables = "; csv, md, tex: the table of scores" if "csv" in formats else ""
    parser.add_argument(
        "--panels",
        type=listed(panels),
        default=("main", "diagnostics"),
        metavar="SET,...",
        help=f"of the figure: {', '.join(panels)} (main,diagnostics)",
    )
    parser.add_argument(
        "--format",
        type=suffixes(formats),
        default=(),
        metavar="FORMAT,...",
        help=f"files to write: {', '.join(formats)}{tables} (png)",
    )


def add_watch(commands: Any) -> None:
    parser = commands.add_parser(
        "watch",
        help="show what running runs are doing",
        description="Show runs of other processes or machines while they train: one in full, several as a table. Only "
        "reads their directories. Ends when all have ended, or with Ctrl-C.",
    )
    parser.add_argument(
        "runs", nargs="*", type=path, metavar="RUN", help="run directories (default: the latest in runs/)"
    )
    parser.add_argument("--once", action="store_true", help="print the present state and exit")
