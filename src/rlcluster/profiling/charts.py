"""The two charts of the page, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from rlcluster.profiling.analysis import Profile
from rlcluster.profiling.roofline import LayerRate

WIDTH, HEIGHT, LEFT, BOTTOM = 640.0, 260.0, 56.0, 34.0
MAX_GRID_LINES = 12
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
    lines = [_grid_y(y(2.0**k * 1e9), f"{2.0**k:g}") for k in range(bottom, top + 1, step)]
    lines += [_tick_x(x(2.0**k), f"{2.0**k:g}") for k in range(low, high + 1)]
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


def memory_chart(profile: Profile) -> str:
    """The sum over processes, and /dev/shm; bands mark the rollouts of rank 0."""
    first = profile.processes[0]
    times = sorted({at for process in profile.processes for at, *_ in process.memory})
    totals = [sum(_value_at(process.memory, at) for process in profile.processes) for at in times]
    shared = [(at, held) for at, _, held in first.memory]
    if len(times) < 2:
        return ""
    end, top = max(first.seconds, times[-1] - first.begin), 1.15 * max([*totals, 0.01])

    def x(at: float) -> float:
        return LEFT + (at - first.begin) / end * (WIDTH - LEFT - 10)

    def y(gigabytes: float) -> float:
        return 10 + (1 - gigabytes / top) * (HEIGHT - BOTTOM - 10)

    lines = [_grid_y(y(top * k / 4), f"{top * k / 4:.2f}") for k in range(5)]
    lines += [_tick_x(LEFT + k / 4 * (WIDTH - LEFT - 10), f"{end * k / 4:.1f} s") for k in range(5)]
    for path, begin, finish in first.events:
        if first.paths[int(path)][-1] in MARKED_PHASES:
            left, right = x(first.begin + 1e-6 * begin), x(first.begin + 1e-6 * finish)
            lines.append(
                f'<rect class="mark" x="{left:.1f}" y="10" width="{right - left:.1f}" height="{HEIGHT - BOTTOM - 10}"/>'
            )
    rows = [(at, total) for at, total in zip(times, totals, strict=True) if 0 <= at - first.begin <= end]
    lines.append(_line("line", [(x(at), y(total)) for at, total in rows]))
    lines.append(_line("line shared", [(x(max(at, first.begin)), y(min(held, top))) for at, held in shared]))
    title = "GB of all processes (line) and in /dev/shm of rank 0's host (dashed); bands: rollouts of rank 0"
    return _figure(title, "".join(lines))


def _value_at(memory: Sequence[Sequence[float]], at: float) -> float:
    """Of the last sample until then, or of the first."""
    earlier = [row[1] for row in memory if row[0] <= at]
    return earlier[-1] if earlier else memory[0][1] if memory else 0.0


def _grid_y(y: float, label: str) -> str:
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    )


def _tick_x(x: float, label: str) -> str:
    return f'<text x="{x:.1f}" y="{HEIGHT - 14}" text-anchor="middle">{label}</text>'


def _line(kind: str, points: Sequence[tuple[float, float]]) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{kind}" points="{path}"/>'


def _figure(title: str, content: str) -> str:
    return (
        f'<figure><h3>{escape(title)}</h3><svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" '
        f'aria-label="{escape(title)}">{content}</svg></figure>'
    )
