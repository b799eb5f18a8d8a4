"""comparison.html: a self-contained page. Tables are rendered here, curves by assets/page.js."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Sequence
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from rlcluster.reports import clips
from rlcluster.reports.comparison import Comparison, Scoring
from rlcluster.reports.comparison_text import (
    AGGREGATE_TITLES,
    MISSING,
    evaluated_text,
    interval_text,
    number,
    reached_text,
    speedup,
)
from rlcluster.reports.curves import PHASES, phase_seconds
from rlcluster.reports.page_data import has_profile, page_data
from rlcluster.runs.reader import RecordedRun

CLIP_BYTES = 1_700_000  # all clips together, before base64 adds a third
MAX_CLIP_BYTES = 250_000

AXIS_TITLES = {"steps": "steps", "seconds": "wall-clock", "core_hours": "core-hours"}
DEFINITIONS = {
    "fps": "environment steps per second of rollout and learning, over the whole run (final: the last updates).",
    "speed-up": "average fps divided by that of the first run.",
    "reward": "mean over 100 training episodes: the first, last and best of the run.",
    "training and unseen levels": "mean evaluation reward, with its 95 % interval and number of episodes; the "
    "generalisation gap is their difference: how much the agent has memorised.",
    "core-hours": "wall-clock time multiplied by the cores reserved for the run.",
    "curves": "a point is the mean over all episodes that finished in its slice of the run; the band is the 95 % "
    "interval of that mean. Neighbouring points share no episodes, and there is no other smoothing.",
    "phases": "time per update in rollout, learning, synchronisation between ranks, and the rest (idle). IMPALA's "
    "actors play in parallel; its idle time includes the learner's wait for them.",
    "IQM": "interquartile mean: the mean of the middle half of the scores of all runs and games.",
}

Column = tuple[str, Callable[[int], str]]


def page_text(comparison: Comparison, title: str, note: str = "") -> str:
    """The whole page."""
    sections = [
        _verdict(comparison),
        _warnings(comparison.warnings),
        ("Runs", _runs_table(comparison)),
        ("Curves", _curves_section(comparison)),
        ("Scores", _scores(comparison)),
        ("Where the time goes", _phases(comparison)),
        ("Gameplay", _clips(comparison)),
        ("Settings that differ", _differences(comparison)),
        ("Machines", _machines(comparison)),
        ("Definitions", _definitions()),
    ]
    body = "".join(
        part if isinstance(part, str) else f"<section><h2>{part[0]}</h2>{part[1]}</section>"
        for part in sections
        if isinstance(part, str) or part[1]
    )
    made = f"{time.strftime('%Y-%m-%d %H:%M')}{', ' + note if note else ''}"
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; media-src data:"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<style>\n{_asset('page.css')}</style></head>\n<body><h1>{escape(title)}</h1>"
        f'<p class="faint">{escape(made)}</p>\n{body}\n'
        f'<script id="data" type="application/json">{_embedded(page_data(comparison))}</script>\n'
        f"<script>\n{_asset('page.js')}</script></body></html>\n"
    )


def _verdict(comparison: Comparison) -> str:
    text = comparison.scoring.verdict.text if comparison.scoring is not None else comparison.why_unscored
    return f'<p class="verdict">{escape(text)}</p>'


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    items = "".join(f"<li>{escape(warning)}</li>" for warning in warnings)
    return f'<div class="warnings" role="note"><strong>Before you compare</strong><ul>{items}</ul></div>'


def _runs_table(comparison: Comparison) -> str:
    runs = comparison.runs

    def summary_cell(name: str, form: str) -> Callable[[int], str]:
        return lambda k: number(runs[k].summary.get(name), form)

    def ratio(k: int) -> str:
        value = speedup(runs[k], runs[0])
        return MISSING if value is None else f"{value:.2f}×"

    def gain(k: int) -> str:
        value = speedup(runs[k], runs[0])
        return MISSING if value is None else f"{100 * (value - 1):.1f} %"

    columns: list[Column] = [
        ("run", lambda k: comparison.names[k]),
        ("algorithm", lambda k: runs[k].settings.algorithm),
        ("mode", lambda k: runs[k].settings.mode),
        ("game", lambda k: runs[k].task),
        ("seed", lambda k: str(runs[k].settings.env.seed)),
        ("cores", lambda k: str(runs[k].cores)),
        ("minutes", lambda k: f"{runs[k].summary['duration_seconds'] / 60:.1f}"),
        ("timesteps", summary_cell("total_timesteps", ",")),
        ("updates", summary_cell("total_updates", ",")),
        ("average fps", summary_cell("average_fps", ",.0f")),
        ("final fps", summary_cell("final_fps", ",.0f")),
        ("speed-up", ratio),
        ("initial reward", summary_cell("initial_reward", ".2f")),
        ("final reward", summary_cell("final_reward", ".2f")),
        ("best reward", summary_cell("best_reward", ".2f")),
        ("training levels", lambda k: evaluated_text(runs[k], "train")),
        ("unseen levels", lambda k: evaluated_text(runs[k], "test")),
        ("generalisation gap", lambda k: _gap(runs[k])),
        ("peak memory (GB)", summary_cell("peak_memory_gb", ".2f")),
        ("timesteps/hour", summary_cell("timesteps_per_hour", ",.0f")),
        ("efficiency gain", gain),
    ]
    rows = [[cell(k) for _, cell in columns] for k in range(len(runs))]
    return _table([heading for heading, _ in columns], rows)


def _gap(run: RecordedRun) -> str:
    return number(run.evaluation and run.evaluation.gap, ".2f")


def _curves_section(comparison: Comparison) -> str:
    choices = "".join(
        f'<label><input type="radio" name="axis" value="{axis}"{" checked" if axis == "steps" else ""}> {title}</label>'
        for axis, title in AXIS_TITLES.items()
    )
    per_point = np.mean([curve.per_point for curve in comparison.curves])
    return (
        f"<fieldset><legend>x-axis</legend>{choices}</fieldset>"
        '<div class="key" id="key" role="group" aria-label="methods; click to hide one"></div>'
        '<div class="charts" id="charts"></div>'
        f"<small>Each point of a reward curve is the mean of about {per_point:.0f} episodes, the band its 95 % "
        "interval; no other smoothing.</small><noscript><p>The curves need JavaScript; comparison.png shows them too."
        "</p></noscript>"
    )


def _scores(comparison: Comparison) -> str:
    scoring = comparison.scoring
    parts = [f"<p>{escape(comparison.why_unscored)}</p>"] if scoring is None else _scoring_parts(scoring)
    parts.append("<h3>Efficiency: mean reward until the shortest run of the game ends</h3>")
    rows = [
        [name, *(number(row[axis], ".2f") for axis in AXIS_TITLES)]
        for name, row in zip(comparison.names, comparison.efficiency, strict=True)
    ]
    parts.append(_table(["run", *(f"by {title}" for title in AXIS_TITLES.values())], rows))
    reached = [
        [name, reached_text(one)]
        for name, one in zip(comparison.names, comparison.reached, strict=True)
        if one is not None
    ]
    if reached:
        parts.append("<h3>Time to a reward (mean over 100 training episodes)</h3>")
        parts.append(_table(["run", "first reached"], reached))
    if comparison.references:
        parts.append("<h3>Compared with OpenAI's published PPO (easy, 200 training levels, mean of 3 runs)</h3>")
        parts += [f"<p>{escape(sentence)}</p>" for sentence in comparison.references]
    return "".join(parts)


def _scoring_parts(scoring: Scoring) -> list[str]:
    kind = "normalised by each game's range" if scoring.is_normalised else "not normalised"
    aggregates = list(next(iter(scoring.aggregates.values())))
    rows = []
    for method, values in scoring.aggregates.items():
        scores = scoring.scores[method]
        cells = [interval_text(values[name], scores) for name in aggregates]
        rows.append([method, str(sum(map(len, scores.values()))), str(len(scores)), *cells])
    headings = ["method", "runs", "games", *(AGGREGATE_TITLES[name] for name in aggregates)]
    parts = [
        f"<p>Score: {escape(scoring.source)}; {kind}. In brackets: 95 % intervals, stratified bootstrap over runs.</p>",
        _table(headings, rows),
    ]
    if scoring.left_out:
        parts.append(f"<p>Excluded, without a score: {escape(', '.join(scoring.left_out))}.</p>")
    if len(scoring.scores) > 1 and scoring.improvement:
        parts += ["<h3>Probability of improvement of the row over the column</h3>", _improvement(scoring)]
    if has_profile(scoring):
        parts.append(
            '<figure id="profile"><h3>Performance profile: share of runs above a score (band: 95 %)</h3></figure>'
        )
    return parts


def _improvement(scoring: Scoring) -> str:
    methods = list(scoring.scores)

    def cell(method: str, other: str) -> str:
        interval = scoring.improvement.get((method, other))
        return MISSING if interval is None else interval_text(interval, scoring.scores[method])

    return _table(["", *methods], [[method, *(cell(method, other) for other in methods)] for method in methods])


def _phases(comparison: Comparison) -> str:
    legend = " ".join(f'<span><span class="swatch {phase}"></span> {phase}</span>' for phase in PHASES)
    rows = []
    for name, run in zip(comparison.names, comparison.runs, strict=True):
        seconds = phase_seconds(run.metrics)
        total = sum(seconds.values()) or 1.0
        parts = "".join(
            f'<span class="{phase}" style="width:{100 * value / total:.2f}%" '
            f'title="{phase}: {1000 * value:.1f} ms, {value / total:.1%}">{value / total:.0%}</span>'
            for phase, value in seconds.items()
            if value > 0
        )
        rows.append(f'<span>{escape(name)}</span><div class="bar" title="{1000 * total:.1f} ms">{parts}</div>')
    return f'<p class="faint">{legend}; share of the mean update</p><div class="phases">{"".join(rows)}</div>'


def _clips(comparison: Comparison) -> str:
    chosen = [(name, clips.choose(run.clips)) for name, run in zip(comparison.names, comparison.runs, strict=True)]
    found = [(name, clip) for name, clip in chosen if clip is not None]
    figures = []
    for name, clip in found:
        content = clips.shrink(clip, min(MAX_CLIP_BYTES, CLIP_BYTES // len(found)))
        if content is None:
            figures.append(
                f"<figure><figcaption>{escape(name)}: {escape(clip.name)} cannot be shown</figcaption></figure>"
            )
            continue
        source = base64.b64encode(content).decode()
        figures.append(
            f'<figure><video controls muted loop playsinline preload="metadata" src="data:video/mp4;base64,{source}">'
            f"</video><figcaption>{escape(name)}</figcaption></figure>"
        )
    return f'<div class="clips">{"".join(figures)}</div>' if figures else ""


def _differences(comparison: Comparison) -> str:
    rows = [
        [row.key, *(MISSING if value is None else str(value) for value in row.values)] for row in comparison.differences
    ]
    return _table(["setting", *comparison.names], rows) if rows else "<p>None.</p>"


def _machines(comparison: Comparison) -> str:
    machines = [run.machine for run in comparison.runs]
    keys = [key for key in dict.fromkeys(key for machine in machines for key in machine) if key != "versions"]
    rows = [[key, *(str(machine.get(key, MISSING)) for machine in machines)] for key in keys]
    versions = [machine.get("versions") or {} for machine in machines]
    names = dict.fromkeys(key for one in versions for key in one)
    rows += [[name, *(str(one.get(name, MISSING)) for one in versions)] for name in names]
    loads = [run.summary.get("background_load") for run in comparison.runs]
    rows.append(["background load (share of cores)", *(number(load, ".0%") for load in loads)])
    if all(len(set(row[1:])) == 1 for row in rows) and len(machines) > 1:
        return _table(["", "all runs"], [row[:2] for row in rows])
    return _table(["", *comparison.names], rows, marked=[len(set(row[1:])) > 1 for row in rows])


def _definitions() -> str:
    return "".join(f"<p><strong>{escape(term)}</strong>: {escape(text)}</p>" for term, text in DEFINITIONS.items())


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], marked: Sequence[bool] = ()) -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = []
    for k, row in enumerate(rows):
        kind = ' class="differs"' if k < len(marked) and marked[k] else ""
        body.append(f"<tr{kind}>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _asset(name: str) -> str:
    return (resources.files("rlcluster.reports") / "assets" / name).read_text(encoding="utf-8")


def _embedded(data: dict[str, Any]) -> str:
    """JSON that cannot close its own script element."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
