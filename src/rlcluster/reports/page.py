"""comparison.html: a self-contained page. Its contents are collected here, laid out by templates/, and its curves drawn
by assets/page.js.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

from rlcluster.reports import clips
from rlcluster.reports.comparison import Comparison
from rlcluster.reports.comparison_text import (
    EFFICIENCY,
    arrival_of,
    efficiency_notes,
    efficiency_texts,
    own_values,
)
from rlcluster.reports.curves import PHASES, phase_seconds
from rlcluster.reports.groups import (
    Group,
    cores_spread,
    evaluated,
    evaluated_text,
    gap,
    groups_by_task,
    groups_of,
    have_different_cores,
    minutes,
    minutes_form,
    speedup,
    summary_value,
)
from rlcluster.reports.headline import headline, setup_text
from rlcluster.reports.page_data import has_profile, page_data
from rlcluster.reports.reference_scores import DEFINITION, LEVELS_TEXT, OPENAI, ours_text
from rlcluster.reports.score_table import game_table
from rlcluster.reports.scoring import AGGREGATE_TITLES, Scoring, evaluation_title
from rlcluster.reports.spreads import MISSING, estimate_text, mean_text, notation, number, spread_text
from rlcluster.reports.statistics import MIN_EPISODES, MIN_RUNS

CLIP_BYTES = 1_700_000  # all clips together, before base64 adds a third
MAX_CLIP_BYTES = 250_000

AXIS_TITLES = {"steps": "environment steps", "seconds": "wall-clock", "core_hours": "core-hours"}
DEFINITIONS = {
    "method": "all runs that differ only in seed and game.",
    "steps/s": "environment steps per second of rollout and learning, over the whole run (final: the last updates); "
    "fps in the log.",
    "speed-up": "average steps/s divided by that of the first method, on the same games.",
    "reward": "mean over 100 training episodes: the first, last and best of the run.",
    "training and unseen levels": "mean evaluation reward; the generalisation gap is their difference: how much the "
    "agent has memorised.",
    "core-hours": "wall-clock time multiplied by the cores that the run keeps busy.",
    "curves of methods": "the interquartile mean of the runs (of fewer than four, the mean) at common positions, up to "
    f"the end of the shortest finished run. From {MIN_RUNS} runs on, the band is the 95 % interval of that mean; "
    "below, it reaches from the lowest to the highest run.",
    "curves of single runs": "a point is the mean over all episodes that finished in its slice of the run; the band of "
    f"a method's only run is the 95 % interval of that mean, from {MIN_EPISODES} episodes on. Neighbouring points "
    "share no episodes.",
    "phases": "time per update in rollout, learning, synchronisation between ranks, and the rest (idle). IMPALA's "
    "actors play in parallel; its idle time includes the learner's wait for them.",
    "IQM": "interquartile mean: the mean of the middle half of the scores of all runs and games.",
    "intervals": f"95 %, in brackets, by a stratified bootstrap over runs. Below {MIN_RUNS} runs, or {MIN_EPISODES} "
    "episodes, none is shown: it would promise more than the sample can tell.",
}

FACT_NAMES = {
    "cpu_model": "processor",
    "cores_allowed": "cores that the run may use",
    "cores_physical": "physical cores",
    "cores_logical": "logical cores (hyper-threads)",
    "num_threads": "threads of a process that learns",
    "memory_total_gb": "memory (GB)",
    "system": "operating system",
    "git_commit": "commit of rlcluster",
}

Cell = Callable[[Group], str]


class Table(NamedTuple):
    """`label` names it for screen readers; `marked` rows stand out."""

    label: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: Sequence[bool] = ()

    @property
    def are_words(self) -> list[bool]:
        """Of each column: whether it has words, which are aligned to the left; numbers are to the right."""
        return [any(row[k][:1].isalpha() for row in self.rows) for k in range(len(self.headings))]


def page_text(
    comparison: Comparison, title: str, note: str = "", per_run: bool = False, refresh_seconds: int | None = None
) -> str:
    """The whole page; it reloads itself every `refresh_seconds`, if given."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("rlcluster.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        title=title,
        refresh_seconds=refresh_seconds,
        made=f"{time.strftime('%Y-%m-%d %H:%M')}{', ' + note if note else ''}",
        style=_asset("page.css"),
        script=_asset("page.js"),
        data=_embedded(page_data(comparison)),
        per_run=per_run or not comparison.has_repeats,
        **_content(comparison),
    )


def _content(comparison: Comparison) -> dict[str, Any]:
    """What the templates show, section by section."""
    by_game, results = _game_table(comparison), _results_table(comparison, groups_of(comparison))
    cells = [cell for table in (results, by_game) if table is not None for row in table.rows for cell in row]
    return {
        "setup": setup_text(comparison.runs),
        "sentences": headline(comparison),
        "failures": comparison.failures,
        "warnings": comparison.warnings,
        "has_repeats": comparison.has_repeats,
        "numbers": notation(cells, are_means=True) if comparison.has_repeats else "",
        "by_game": by_game,
        "key_lines": comparison.key_lines,
        "results": results,
        "single_runs": _results_table(comparison, groups_of(comparison, per_run=True)),
        "details": _details_table(comparison),
        "axes": AXIS_TITLES,
        "scoring": _scoring_content(comparison),
        "why_unscored": comparison.why_unscored,
        "excluded": comparison.excluded,
        "efficiency_title": EFFICIENCY,
        "efficiency_notes": efficiency_notes(comparison),
        "efficiency": _efficiency_table(comparison),
        "reached": _reached_table(comparison),
        "references": _references_table(comparison),
        "reference_definition": DEFINITION,
        "phases": _phases(comparison),
        "phase_names": PHASES,
        "clips": _clips(comparison),
        "differences": _differences_table(comparison),
        "machines": _machines_table(comparison),
        "definitions": DEFINITIONS,
    }


def _results_table(comparison: Comparison, groups: Sequence[Group]) -> Table:
    """The results first: score, reward, speed, time. Columns without a value are left out."""
    are_runs = len(groups) == len(comparison.runs)
    columns: dict[str, Cell] = {
        "run" if are_runs else "method": lambda group: group.title,
        **({} if are_runs else {"runs": lambda group: group.count_text}),
        **({"game": lambda group: group.runs[0].task} if are_runs and len(comparison.tasks) > 1 else {}),
        evaluation_title(comparison.runs): _levels_cell("test"),
        "training levels": _levels_cell("train"),
        "final reward": _reward_cell("final_reward"),
        **({"cores": lambda group: spread_text(cores_spread(group), ".0f")} if have_different_cores(groups) else {}),
        "steps/s": lambda group: mean_text(group.values(summary_value("average_fps")), ",.0f"),
        "speed-up": lambda group: _times(speedup(group, groups[0])),
        "minutes": lambda group: mean_text(group.values(minutes), minutes_form(groups)),
    }
    if comparison.scoring is not None and not are_runs:
        scores = {"score (IQM)": _score_cell(comparison.scoring)}
        columns = {**dict(list(columns.items())[:2]), **scores, **dict(list(columns.items())[2:])}
    return _table("results", columns, groups)


def _game_table(comparison: Comparison) -> Table | None:
    table = game_table(comparison)
    return None if table is None else Table("results by game", table.headings, table.rows)


def _score_cell(scoring: Scoring) -> Cell:
    def cell(group: Group) -> str:
        aggregates = scoring.aggregates.get(group.method)
        return MISSING if aggregates is None else estimate_text(aggregates["iqm"])

    return cell


def _levels_cell(levels: str) -> Cell:
    """Raw rewards of one game; of a single run with its own interval."""

    def cell(group: Group) -> str:
        if len(group.runs) == 1:
            return evaluated_text(group.runs[0], levels)
        return mean_text(group.rewards(evaluated(levels)), ".2f")

    return cell


def _reward_cell(name: str) -> Cell:
    return lambda group: mean_text(group.rewards(summary_value(name)), ".2f")


def _details_table(comparison: Comparison) -> Table:
    """Everything else about the single runs."""
    groups = groups_of(comparison, per_run=True)

    def summary(name: str, form: str) -> Cell:
        return lambda group: number(group.runs[0].summary.get(name), form)

    columns: dict[str, Cell] = {
        "run": lambda group: group.title,
        "algorithm": lambda group: group.runs[0].settings.algorithm,
        "mode": lambda group: group.runs[0].settings.mode,
        "game": lambda group: group.runs[0].task,
        "seed": lambda group: str(group.runs[0].settings.env.seed),
        "cores": lambda group: str(group.runs[0].cores),
        "timesteps": summary("total_timesteps", ","),
        "updates": summary("total_updates", ","),
        "final steps/s": summary("final_fps", ",.0f"),
        "initial reward": summary("initial_reward", ".2f"),
        "best reward": summary("best_reward", ".2f"),
        "generalisation gap": lambda group: number(gap(group.runs[0]), ".2f"),
        "peak memory (GB)": summary("peak_memory_gb", ".2f"),
        "timesteps/hour": summary("timesteps_per_hour", ",.0f"),
    }
    return _table("details of the runs", columns, groups)


def _table(label: str, columns: Mapping[str, Cell], groups: Sequence[Group]) -> Table:
    cells = {heading: [cell(group) for group in groups] for heading, cell in columns.items()}
    known = {heading: column for heading, column in cells.items() if set(column) != {MISSING}}
    return Table(label, list(known), list(zip(*known.values(), strict=True)))


def _times(ratio: float | None) -> str:
    return MISSING if ratio is None else f"{ratio:.2f}×"


def _scoring_content(comparison: Comparison) -> dict[str, Any] | None:
    scoring = comparison.scoring
    if scoring is None:
        return None
    aggregates = list(next(iter(scoring.aggregates.values())))
    rows = [
        [
            comparison.title_of(method),
            str(sum(map(len, scores.values()))),
            str(len(scores)),
            *(estimate_text(own[name]) for name in aggregates),
        ]
        for (method, own), scores in zip(scoring.aggregates.items(), scoring.scores.values(), strict=True)
    ]
    headings = ["method", "runs", "games", *(AGGREGATE_TITLES[name] for name in aggregates)]
    return {
        "explanation": scoring.definition,
        "table": Table("scores", headings, rows),
        "why_uncertain": scoring.why_uncertain,
        "improvement": _improvement_table(comparison, scoring) if scoring.improvement else None,
        "has_profile": has_profile(scoring),
    }


def _improvement_table(comparison: Comparison, scoring: Scoring) -> Table:
    methods = list(scoring.scores)
    titles = [comparison.title_of(method) for method in methods]

    def cell(method: str, other: str) -> str:
        interval = scoring.improvement.get((method, other))
        return MISSING if interval is None else estimate_text(interval, ".2f")

    rows = [[title, *(cell(method, other) for other in methods)] for title, method in zip(titles, methods, strict=True)]
    return Table("probability of improvement of the row over the column", ["", *titles], rows)


def _efficiency_table(comparison: Comparison) -> Table:
    rows = [[group.title, *efficiency_texts(comparison, group)] for group in groups_by_task(comparison)]
    return Table("efficiency", ["method", *(f"by {title}" for title in AXIS_TITLES.values())], rows)


def _reached_table(comparison: Comparison) -> Table | None:
    arrivals = [(group, arrival) for group in groups_by_task(comparison) if (arrival := arrival_of(comparison, group))]
    rows = [
        [
            group.title,
            arrival.threshold,
            f"{arrival.num_arrived} of {arrival.num_runs}",
            number(arrival.steps, ",.0f"),
            number(arrival.minutes, ".3g"),
            number(arrival.core_hours, ".3g"),
        ]
        for group, arrival in arrivals
    ]
    headings = ["method", "reward", "runs that reached it", "environment steps", "minutes", "core-hours"]
    return Table("time to a reward", headings, rows) if rows else None


def _references_table(comparison: Comparison) -> Table | None:
    rows = [
        [
            score.name,
            str(score.num_runs),
            LEVELS_TEXT[score.levels],
            f"{score.steps:,}",
            spread_text(score.reward, ".2f"),
            ours_text(score.ours) or MISSING,
            number(score.openai_ppo, ".2f"),
            score.note,
        ]
        for score in comparison.references
    ]
    kind = "run" if all(score.name in comparison.names for score in comparison.references) else "method"
    headings = [kind, "runs", "levels", "environment steps", "score", "ours", OPENAI, "note"]
    known = [k for k in range(len(headings)) if {row[k] for row in rows} - {MISSING, "", *(["1"] if k == 1 else [])}]
    known_rows = [[row[k] for k in known] for row in rows]
    return Table("scores and published ones", [headings[k] for k in known], known_rows) if rows else None


def _phases(comparison: Comparison) -> list[dict[str, Any]]:
    """Of each method: the share of each phase in an update, and its milliseconds."""
    rows = []
    for group in groups_of(comparison):
        own = [phase_seconds(run.metrics) for run in group.runs]
        seconds = {phase: sum(one[phase] for one in own) / len(own) for phase in PHASES}
        total = sum(seconds.values()) or 1.0
        parts = [(phase, value / total, 1000 * value) for phase, value in seconds.items() if value > 0]
        rows.append({"title": group.title, "total": 1000 * total, "parts": parts})
    return rows


def _clips(comparison: Comparison) -> list[dict[str, Any]]:
    """A clip of each run that has one, in base64; None where it cannot be shown."""
    chosen = [(name, clips.choose(run.clips)) for name, run in zip(comparison.names, comparison.runs, strict=True)]
    found = [(name, clip) for name, clip in chosen if clip is not None]
    shown = []
    for name, clip in found:
        content = clips.shrink(clip, min(MAX_CLIP_BYTES, CLIP_BYTES // len(found)))
        source = None if content is None else base64.b64encode(content).decode()
        shown.append({"name": name, "file": clip.name, "source": source})
    return shown


def _differences_table(comparison: Comparison) -> Table | None:
    """The values of each method; several where its runs differ."""
    groups = groups_of(comparison)
    rows = [[row.key, *(own_values(row, group) for group in groups)] for row in comparison.differences]
    return Table("settings that differ", ["setting", *(group.title for group in groups)], rows) if rows else None


def _machines_table(comparison: Comparison) -> Table:
    """One column for each set of runs with the same facts."""
    columns: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for name, run in zip(comparison.names, comparison.runs, strict=True):
        facts = {_fact_name(key): value for key, value in run.machine.items() if key != "versions"}
        facts |= {f"version of {key}": value for key, value in (run.machine.get("versions") or {}).items()}
        facts["background load (share of cores)"] = number(run.summary.get("background_load"), ".0%")
        columns.setdefault(tuple((key, str(value)) for key, value in facts.items()), []).append(name)
    facts_of = [dict(facts) for facts in columns]
    keys = dict.fromkeys(key for facts in facts_of for key in facts)
    rows = [[key, *(facts.get(key, MISSING) for facts in facts_of)] for key in keys]
    headings = [", ".join(names) for names in columns.values()] if len(columns) > 1 else ["all runs"]
    marked = [len(set(row[1:])) > 1 for row in rows]
    return Table("machines", ["", *headings], rows, marked)


def _fact_name(key: str) -> str:
    """A key of machine.json, as people say it."""
    return FACT_NAMES.get(key, key.replace("_", " "))


def _asset(name: str) -> str:
    return (resources.files("rlcluster.reports") / "assets" / name).read_text(encoding="utf-8")


def _embedded(data: dict[str, Any]) -> str:
    """JSON that cannot close its own script element."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
