"""The two charts of the page, as SVG."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from rlcluster.profiling.analysis import ProcessProfile, Profile
from rlcluster.profiling.roofline import LayerRate

WIDTH, HEIGHT, LEFT, BOTTOM = 640.0, 260.0, 56.0, 34.0
MAX_GRID_LINES = 12
NUM_COLORS = 6  # of processes, in the style sheet
MARKED_PHASES = ("rollout",)  # shown as bands behind the memory of rank 0


def roofline_chart(layers: Sequence[LayerRate], flops: float, cache: float) -> str:
    """Rate over intensity (operations per byte), both logarithmic: the roof is the smaller of both limits."""
    intensities = [layer.flops / layer.bandwidth for layer in layers]
    ridge = flops / cache  # where both limits meet
    low, high = math.floor(math.log2(min(ridge, *intensities))) - 1, math.ceil(math.log2(max(ridge, *intensities))) + 1
    top = math.ceil(math.log2(max(flops, *(layer.flops for layer in layers)) / 1e9))
    bottom = math.floor(math.log2(min(layer.flops for layer in layers) / 1e9)) - 1

    def x(intensity: float) -> float:
        return LEFT + (math.log2(intensity) - low) / (high - low) * (WIDTH - LEFT - 10)

    def y(rate: float) -> float:
        return 10 + (top - math.log2(rate / 1e9)) / (top - bottom) * (HEIGHT - BOTTOM - 10)

    step = 1 + (top - bottom) // MAX_GRID_LINES
    lines = [_grid_y(y(2.0**k * 1e9), _power_of_two(k)) for k in range(bottom, top + 1, step)]
    lines += [_tick_x(x(2.0**k), _power_of_two(k)) for k in range(low, high + 1)]
    start = max(2.0**low, 2.0**bottom * 1e9 / cache)
    path = " ".join(f"{x(a):.1f},{y(min(flops, a * cache)):.1f}" for a in (start, ridge, 2.0**high))
    lines.append(f'<polyline class="roof" points="{path}"/>')
    for layer, intensity in zip(layers, intensities, strict=True):
        title = f"{layer.name}, {layer.direction}: {layer.flops / 1e9:,.0f} GFLOP/s, {layer.bandwidth / 1e9:,.1f} GB/s"
        lines.append(
            f'<circle class="dot {layer.direction}" cx="{x(intensity):.1f}" cy="{y(layer.flops):.1f}" r="4">'
            f"<title>{escape(title)}</title></circle>"
        )
    return _figure(
        "GFLOP/s of a thread over operations per byte (filled: forward, open: backward; line: what a core can do)",
        "".join(lines),
    )


def _power_of_two(exponent: int) -> str:
    return f"{2.0**exponent:g}" if exponent > -4 else f"{2.0**exponent:.1g}"


class MemoryLine(NamedTuple):
    """One line of the chart of memory."""

    name: str
    kind: str  # its class in the style sheet
    values: Sequence[float]  # GB, at each time of the chart


def memory_chart(profile: Profile) -> str:
    """Each process, their sum, and /dev/shm; bands mark the rollouts of rank 0."""
    first = profile.processes[0]
    end = max([first.seconds, *(at - first.begin for one in profile.processes for at, *_ in one.memory)])
    times = sorted({max(first.begin, at) for one in profile.processes for at, *_ in one.memory})
    if len(times) < 2:
        return ""
    memory = memory_lines(profile, times)
    top = 1.15 * max([0.01, *(value for line in memory[:-1] for value in line.values)])

    def x(at: float) -> float:
        return LEFT + (at - first.begin) / end * (WIDTH - LEFT - 10)

    def y(gigabytes: float) -> float:
        return 10 + (1 - min(1.0, gigabytes / top)) * (HEIGHT - BOTTOM - 10)

    lines = [_grid_y(y(top * k / 4), f"{top * k / 4:.2f}") for k in range(5)]
    lines += [_tick_x(LEFT + k / 4 * (WIDTH - LEFT - 10), f"{end * k / 4:.1f} s") for k in range(5)]
    lines += _marks(first, x)
    for line in memory:
        points = [(x(at), y(value)) for at, value in zip(times, line.values, strict=True)]
        lines.append(_line(f"line {line.kind}", points, line.name))
    title = "GB of each process and of all; bands: rollouts of rank 0"
    return _figure(title, "".join(lines), _legend(memory))


def memory_lines(profile: Profile, times: Sequence[float]) -> list[MemoryLine]:
    """As many of the largest processes as there are colours, the others together, all, and /dev/shm."""
    values = {one.name: _values_at(one.memory, times) for one in profile.processes}
    largest = sorted(values, key=lambda name: -max(values[name]))[:NUM_COLORS]
    named = [name for name in values if name in largest]
    others = [values[name] for name in values if name not in largest]
    total = [sum(column) for column in zip(*values.values(), strict=True)]
    found = [MemoryLine(name, f"p{k}", values[name]) for k, name in enumerate(named)]
    if others:
        found.append(MemoryLine(f"{len(others)} others", "others", [sum(row) for row in zip(*others, strict=True)]))
    if len(found) > 1:
        found.append(MemoryLine("all processes", "total", total))
    else:
        found = [found[0]._replace(kind="total")]
    shared = [(at, held) for at, _, held in profile.processes[0].memory]
    return [*found, MemoryLine("/dev/shm of rank 0's host", "shared", _values_at(shared, times))]


def _values_at(memory: Sequence[Sequence[float]], times: Sequence[float]) -> list[float]:
    """At each time, of the last sample until then, or of the first."""
    if not memory:
        return [0.0] * len(times)
    taken = [row[0] for row in memory]
    return [memory[max(0, bisect_right(taken, at) - 1)][1] for at in times]


def _marks(process: ProcessProfile, x: Callable[[float], float]) -> list[str]:
    found = []
    for path, begin, finish in process.events:
        if process.paths[int(path)][-1] in MARKED_PHASES:
            left, right = x(process.begin + 1e-6 * begin), x(process.begin + 1e-6 * finish)
            found.append(
                f'<rect class="mark" x="{left:.1f}" y="10" width="{right - left:.1f}" height="{HEIGHT - BOTTOM - 10}"/>'
            )
    return found


def _legend(lines: Sequence[MemoryLine]) -> str:
    keys = [f'<span><span class="key {line.kind}"></span> {escape(line.name, quote=False)}</span>' for line in lines]
    return f'<p class="faint legend">{" ".join(keys)}</p>'


def _grid_y(y: float, label: str) -> str:
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    )


def _tick_x(x: float, label: str) -> str:
    return f'<text x="{x:.1f}" y="{HEIGHT - 14}" text-anchor="middle">{label}</text>'


def _line(kind: str, points: Sequence[tuple[float, float]], name: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{kind}" points="{path}"><title>{escape(name)}</title></polyline>'


def _figure(title: str, content: str, legend: str = "") -> str:
    return (
        f'<figure><h3>{escape(title)}</h3>{legend}<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" '
        f'aria-label="{escape(title)}">{content}</svg></figure>'
    )
