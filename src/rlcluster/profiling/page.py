"""profile.html: one self-contained page without scripts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from importlib import resources

from rlcluster.profiling.analysis import ProcessProfile, Profile
from rlcluster.profiling.charts import memory_chart, roofline_chart
from rlcluster.profiling.findings import Findings
from rlcluster.system.console import counted
from rlcluster.system.phases import PHASES

LABELLED_SHARE = 0.05  # of a bar: a narrower part has no room for its label
OPEN_PROCESSES = 2  # whose phases are shown unfolded
MAX_MATRIX = 32  # ranks of the table of who waited for whom

DEFINITIONS = {
    "native, torch, Python, simulator": "who works: our kernels; PyTorch's operations, with their calls from Python; "
    "everything else in the process; the environments' step. Measured around each call, without sampling.",
    "exchange and idle": "a collective starts when its last rank arrives: until then the others are idle, afterwards "
    "data moves. Idle is also waiting for actors, workers or commands.",
    "share with a name": "time in phases with a meaning of their own; the rest is what update, rollout and learn "
    "spend outside their inner phases.",
    "GFLOP/s": "convolutions are counted as direct, two operations per multiply-add. Winograd's algorithm needs a "
    "quarter of the products, so a layer can exceed 100 % of the peak.",
    "layers": "each of our convolutions, by the time that its threads took; what torch computes, by the time of all "
    "threads of the process: forward alone, with activations, and with the calls from Python.",
    "peaks": "multiply-adds in registers, and reading from the second-level cache and from memory: by our library, on "
    "the same cores, right after the profiled updates, in all ranks at once.",
    "memory": "proportional set size: a page that several processes share counts once in their sum.",
}


def page_text(findings: Findings) -> str:
    """The whole page."""
    profile = findings.profile
    sections = [
        ("Who works", _splits(profile)),
        ("Ranks and hosts: computing and waiting", _imbalance(profile)),
        ("Who waited for whom", _waits(profile)),
        ("Phases", "".join(_phases(process, k, findings) for k, process in enumerate(profile.processes))),
        ("Roofline", _roofline(findings)),
        ("Memory", memory_chart(profile)),
        ("Definitions", "".join(f"<p><strong>{escape(a)}</strong>: {escape(b)}</p>" for a, b in DEFINITIONS.items())),
    ]
    body = "".join(f"<section><h2>{heading}</h2>{content}</section>" for heading, content in sections if content)
    settings, facts = findings.facts.settings, findings.facts
    title = f"Profile: {settings.algorithm} on {settings.env.name}, {settings.mode}"
    note = (
        f"{time.strftime('%Y-%m-%d %H:%M')}; {facts.processor}; {facts.updates} updates in {profile.seconds:.1f} s, "
        f"{findings.steps / profile.seconds:,.0f} steps/s; {counted(len(profile.processes), 'process')}, "
        f"kernels: {facts.kernels}"
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<style>\n{_style()}</style></head>\n<body><h1>{escape(title)}</h1>"
        f'<p class="faint">{escape(note)}</p>\n<p class="verdict">{escape(findings.sentence())}</p>\n{body}'
        "</body></html>\n"
    )


def _splits(profile: Profile) -> str:
    names = list(profile.processes[0].split)
    legend = " ".join(f'<span><span class="swatch {name.lower()}"></span> {name}</span>' for name in names)
    rows = []
    for process in profile.processes:
        parts = "".join(
            f'<span class="{name.lower()}" style="width:{100 * seconds / process.seconds:.2f}%" '
            f'title="{name}: {seconds:.2f} s">{_label(seconds / process.seconds)}</span>'
            for name, seconds in process.split.items()
            if seconds > 0
        )
        rows.append(f'<span>{escape(process.name)}</span><div class="bar">{parts}</div>')
    return f'<p class="faint">{legend}</p><div class="splits">{"".join(rows)}</div>'


def _label(share: float) -> str:
    return f"{share:.0%}" if share >= LABELLED_SHARE else ""


def _imbalance(profile: Profile) -> str:
    if len(profile.ranks) == 1:
        return ""
    caused = profile.waits_caused()
    latest = max(range(len(caused)), key=caused.__getitem__)
    rows = [
        [
            f"rank {rank.rank}",
            rank.host,
            f"{rank.busy_seconds:.2f}",
            f"{rank.waiting_seconds:.2f}",
            f"{rank.waiting_seconds / rank.seconds:.1%}",
            f"{caused[rank.rank]:.2f}",
            f"{profile.slowness(rank.rank):.2f}",
        ]
        for rank in profile.ranks
    ]
    headings = [
        "rank",
        "host",
        "computing (s)",
        "waiting (s)",
        "waiting",
        "others waited for it (s)",
        "vs. others",
    ]
    return _table(headings, rows, late=latest) + _hosts(profile)


def _hosts(profile: Profile) -> str:
    """The means of each host, where there are several."""
    hosts = sorted({rank.host for rank in profile.ranks})
    if len(hosts) == 1:
        return ""
    rows = []
    for host in hosts:
        own = [rank for rank in profile.ranks if rank.host == host]
        busy, waiting = (
            sum(values) / len(own)
            for values in ([rank.busy_seconds for rank in own], [rank.waiting_seconds for rank in own])
        )
        rows.append([host, str(len(own)), f"{busy:.2f}", f"{waiting:.2f}"])
    return _table(["host", "ranks", "computing (s), mean", "waiting (s), mean"], rows)


def _waits(profile: Profile) -> str:
    size = len(profile.ranks)
    if not 1 < size <= MAX_MATRIX:
        return ""
    headings = ["seconds", *(f"for rank {rank}" for rank in range(size))]
    rows = [[f"rank {rank} waited", *(f"{value:.2f}" for value in row)] for rank, row in enumerate(profile.waits)]
    return _table(headings, rows)


def _phases(process: ProcessProfile, position: int, findings: Findings) -> str:
    updates = findings.facts.updates or 1
    rows = []
    for node in process.nodes:
        indent = "&nbsp;" * 4 * (len(node.path) - 1)
        share = node.seconds / process.seconds
        cells = [
            f'<td title="{escape(PHASES[node.name].meaning)}">{indent}{escape(node.name)}</td>',
            f"<td>{PHASES[node.name].kind.value}</td>",
            f"<td>{1000 * node.seconds / updates:,.1f}</td>",
            f"<td>{1000 * node.own_seconds / updates:,.1f}</td>",
            f"<td>{share:.1%}</td>",
            f'<td><span class="meter"><span style="width:{100 * share:.1f}%"></span></span></td>',
            f"<td>{node.calls / updates:,.0f}</td>",
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    headings = ("phase", "who", "ms/update", "own ms", "share", "", "times/update")
    head = "".join(f'<th scope="col">{heading}</th>' for heading in headings)
    opened = " open" if position < OPEN_PROCESSES else ""
    note = f"{process.name} ({process.host}): {process.attributed:.1%} of its time has a name"
    return (
        f"<details{opened}><summary>{escape(note)}</summary>"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div></details>'
    )


def _roofline(findings: Findings) -> str:
    peak, layers = findings.peak, findings.layers
    if peak is None:
        return "<p>No roofline: our kernels, which measure the peaks, are not compiled here (make clean setup).</p>"
    if not layers:
        return "<p>No roofline: the network of this run records no times of its layers.</p>"
    threads = findings.facts.plan.learner_threads
    flops, cache = peak.flops / threads, peak.cache_bandwidth / threads
    total = sum(layer.seconds for layer in layers)
    rows = [
        [
            layer.name,
            layer.direction,
            f"{layer.seconds / total:.1%}",
            _short(layer.flops / 1e9),
            f"{_short(100 * layer.flops / flops)}%",
            _short(layer.bandwidth / 1e9),
            f"{_short(100 * layer.bandwidth / cache)}%",
        ]
        for layer in layers
    ]
    headings = ["layer", "pass", "share of these", "GFLOP/s", "of peak", "GB/s", "of cache"]
    text = (
        f"One thread can do {flops / 1e9:,.0f} GFLOP/s, and read {cache / 1e9:,.0f} GB/s from the second-level cache "
        f"and {peak.memory_bandwidth / threads / 1e9:,.1f} GB/s from memory."
    )
    return f"<p>{text}</p>{roofline_chart(layers, flops, cache)}{_table(headings, rows)}"


def _short(value: float) -> str:
    """Small rates keep two digits: the layers of an MLP are far below the peak."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], late: int | None = None) -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = []
    for k, row in enumerate(rows):
        kind = ' class="late"' if k == late else ""
        body.append(f"<tr>{''.join(f'<td{kind}>{escape(cell)}</td>' for cell in row)}</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _style() -> str:
    return (resources.files("rlcluster.profiling") / "assets" / "profile.css").read_text(encoding="utf-8")
