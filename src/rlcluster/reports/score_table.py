"""Tables of scores for a paper, one row per method and, with several games, one per method and game: as CSV, Markdown
and LaTeX (booktabs).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from rlcluster.reports.comparison import Comparison
from rlcluster.reports.groups import (
    Group,
    cores_spread,
    evaluated,
    groups_of,
    groups_of_task,
    have_different_cores,
    minutes,
    minutes_form,
    speedup,
    summary_value,
)
from rlcluster.reports.headline import SEPARATOR, setup_text
from rlcluster.reports.scoring import AGGREGATE_TITLES, evaluation_title, have_unseen_levels
from rlcluster.reports.spreads import Spread, estimate_spread, notation, spread_of, spread_text
from rlcluster.runs.reader import RecordedRun

BOUNDS, ALL_GAMES = "low and high", "all"  # a heading and a cell of the CSV file
INTERVAL, RANGE = "95 % interval", "lowest and highest run"
LATEX_ESCAPES = {
    **{character: rf"\{character}" for character in "&%$#_{}"},
    **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "×": r"$\times$"},
}


class Column(NamedTuple):
    """One number of each method; `form` is that of its text."""

    heading: str
    cells: Sequence[Spread | None]
    form: str
    is_for_print: bool = True  # False: in the CSV file only; a printed table must fit a page

    @property
    def is_known(self) -> bool:
        return any(cell is not None for cell in self.cells)


class ScoreTable(NamedTuple):
    methods: Sequence[Group]
    columns: Sequence[Column]
    about: Sequence[str]  # sentences of the caption
    games: Sequence[str] = ()  # of each row, in a table by game

    @property
    def caption(self) -> str:
        """Explains the notation that the printed cells have."""
        are_means = any(len(group.runs) > 1 for group in self.methods)
        notes = notation([cell for row in self.rows for cell in row], are_means)
        return " ".join([*self.about, *([notes] if notes else [])])

    @property
    def is_of_runs(self) -> bool:
        return any(group.is_one_of_several for group in self.methods)

    @property
    def text_headings(self) -> list[str]:
        """Of the columns with names, which are aligned to the left."""
        kind = "run" if self.is_of_runs else "method"
        return ["game", kind] if self.games else [kind]

    @property
    def headings(self) -> list[str]:
        counts = [] if self.is_of_runs else ["runs"]
        return [*self.text_headings, *counts, *(column.heading for column in self.columns if column.is_for_print)]

    @property
    def rows(self) -> list[list[str]]:
        """Of the printed table."""
        shown = [column for column in self.columns if column.is_for_print]
        return [
            [
                *([self.games[k]] if self.games else []),
                group.title,
                *([] if self.is_of_runs else [group.count_text]),
                *(spread_text(column.cells[k], column.form) for column in shown),
            ]
            for k, group in enumerate(self.methods)
        ]


def score_tables(comparison: Comparison, per_run: bool = False) -> list[ScoreTable]:
    """The table of methods and, with several games, that of methods and games; or the table of single runs."""
    if per_run and comparison.has_repeats:
        return [run_table(comparison)]
    by_game = game_table(comparison)
    return [score_table(comparison), *([by_game] if by_game is not None else [])]


def score_table(comparison: Comparison) -> ScoreTable:
    """Scores where there are any, then rewards, speed and time. Raw rewards of different games have no mean."""
    groups = groups_of(comparison)
    rewards = _reward_columns(groups) if len(comparison.tasks) == 1 else ()
    return _table(comparison, groups, [*_score_columns(comparison, groups), *rewards, *_cost_columns(groups)])


def run_table(comparison: Comparison) -> ScoreTable:
    """Rewards, speed and time of each run, with its game where there are several."""
    groups = groups_of(comparison, per_run=True)
    games = [group.runs[0].task for group in groups] if len(comparison.tasks) > 1 else []
    return _table(comparison, groups, [*_reward_columns(groups), *_cost_columns(groups)], games)


def _table(
    comparison: Comparison, groups: Sequence[Group], columns: Iterable[Column], games: Sequence[str] = ()
) -> ScoreTable:
    """Columns without a number are left out."""
    return ScoreTable(groups, [column for column in columns if column.is_known], _captions(comparison), games)


def game_table(comparison: Comparison) -> ScoreTable | None:
    """The rewards of each method in each game; None with one game, whose rewards the table of methods has."""
    if len(comparison.tasks) == 1:
        return None
    rows = [(task, group) for task in comparison.tasks for group in groups_of_task(comparison, task)]
    groups = [group for _, group in rows]
    columns = [column for column in _reward_columns(groups) if column.is_known]
    return ScoreTable(groups, columns, ["Mean rewards by game."], [task for task, _ in rows])


def _score_columns(comparison: Comparison, groups: Sequence[Group]) -> Iterator[Column]:
    aggregates = {} if comparison.scoring is None else comparison.scoring.aggregates
    for name in next(iter(aggregates.values()), {}):
        cells = [
            estimate_spread(aggregates[group.method][name]) if group.method in aggregates else None for group in groups
        ]
        yield Column(AGGREGATE_TITLES[name], cells, ".3f", is_for_print=name != "optimality_gap")


def _reward_columns(groups: Sequence[Group]) -> Iterator[Column]:
    """Of groups of one game each. The reward of training is printed where nothing was evaluated."""
    unseen, training, final = (
        [spread_of(group.rewards(value)) for group in groups]
        for value in (evaluated("test"), evaluated("train"), summary_value("final_reward"))
    )
    yield Column(evaluation_title([run for group in groups for run in group.runs]), unseen, ".2f")
    yield Column("training levels", training, ".2f")
    yield Column("final reward", final, ".2f", is_for_print=not any(unseen))


def _cost_columns(groups: Sequence[Group]) -> Iterator[Column]:
    def means(value: Callable[[RecordedRun], float | None]) -> list[Spread | None]:
        return [spread_of(group.values(value)) for group in groups]

    ratios = [speedup(group, groups[0]) for group in groups]
    yield Column("cores", [cores_spread(group) for group in groups], ".0f", have_different_cores(groups))
    yield Column("steps/s", means(summary_value("average_fps")), ",.0f")
    yield Column("speed-up", [None if ratio is None else Spread(ratio) for ratio in ratios], ".2f", is_for_print=False)
    yield Column("minutes", means(minutes), minutes_form(groups))
    yield Column("environment steps", means(summary_value("total_timesteps")), ",.0f", is_for_print=False)


def csv_text(tables: Sequence[ScoreTable]) -> str:
    """Plain numbers, with the bounds of each in columns of their own and a column that says what they are. With several
    games, rows of all games and rows of each.
    """
    rows = [row for table in tables for row in _plain_rows(table, has_games=len(tables) > 1)]
    headings = [*dict.fromkeys(name for row in rows for name in row if name != BOUNDS), BOUNDS]
    text = io.StringIO()
    writer = csv.DictWriter(text, headings, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _plain_rows(table: ScoreTable, has_games: bool) -> list[dict[str, object]]:
    columns: dict[str, Sequence[object]] = {table.text_headings[-1]: [group.title for group in table.methods]}
    if table.games or has_games:
        columns["game"] = table.games or [ALL_GAMES for _ in table.methods]
    if not table.is_of_runs:
        columns["runs"] = [len(group.runs) for group in table.methods]
        columns["unfinished runs"] = [group.num_unfinished for group in table.methods]
    for column in table.columns:
        columns[column.heading] = [_plain(cell and cell.value) for cell in column.cells]
        if any(cell is not None and cell.low is not None for cell in column.cells):
            columns[f"{column.heading}, low"] = [_plain(cell and cell.low) for cell in column.cells]
            columns[f"{column.heading}, high"] = [_plain(cell and cell.high) for cell in column.cells]
    columns[BOUNDS] = [
        INTERVAL if any(cell is not None and cell.is_interval and cell.low is not None for cell in cells) else RANGE
        for cells in zip(*(column.cells for column in table.columns), strict=True)
    ]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _plain(value: float | None) -> object:
    """Empty where it is not known."""
    return "" if value is None else value if isinstance(value, int) else round(value, 6)


def markdown_text(tables: Sequence[ScoreTable]) -> str:
    return "\n".join(map(_markdown_table, tables))


def _markdown_table(table: ScoreTable) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"

    num_names = len(table.text_headings)
    rules = "|" + "|".join("---" if k < num_names else "---:" for k in range(len(table.headings))) + "|"
    return "\n".join([line(table.headings), rules, *map(line, table.rows), "", f"*{table.caption}*", ""])


def latex_text(tables: Sequence[ScoreTable]) -> str:
    """As wide as a page of text; needs the package booktabs."""
    return "\n".join(map(_latex_table, tables))


def _latex_table(table: ScoreTable) -> str:
    def line(cells: Sequence[str]) -> str:
        return "    " + " & ".join(map(_latex, cells)) + r" \\"

    num_names = len(table.text_headings)
    alignment = "l" * num_names + "r" * (len(table.headings) - num_names)
    return "\n".join(
        [
            r"\begin{table}  % \usepackage{booktabs}",
            r"  \centering\small",
            rf"  \begin{{tabular}}{{{alignment}}}",
            r"    \toprule",
            line(table.headings),
            r"    \midrule",
            *map(line, table.rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            rf"  \caption{{{_latex(table.caption)}}}",
            r"\end{table}",
            "",
        ]
    )


WRITERS: dict[str, Callable[[Sequence[ScoreTable]], str]] = {".csv": csv_text, ".md": markdown_text, ".tex": latex_text}


def _captions(comparison: Comparison) -> list[str]:
    parts = [setup_text(comparison.runs).replace(SEPARATOR, ", ") + "."]
    is_evaluated = any(run.evaluation is not None for run in comparison.runs)
    if len(comparison.tasks) == 1 and is_evaluated and have_unseen_levels(comparison.runs):
        parts.append("Unseen and training levels: mean reward in evaluation.")
    if comparison.scoring is not None:
        kind = ", normalised by each game's range" if comparison.scoring.is_normalised else ""
        parts.append(f"Score: {comparison.scoring.source}{kind}.")
        parts += [comparison.scoring.why_uncertain] if comparison.scoring.why_uncertain else []
    parts += [f"{line}." for line in comparison.key_lines]
    return parts


def _latex(text: str) -> str:
    return "".join(LATEX_ESCAPES.get(character, character) for character in text)
