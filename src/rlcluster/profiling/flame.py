"""A flame graph of one process, from the stacks that py-spy has sampled in all processes of a run (its format "raw"):

    process 12:"python -m rlcluster ...";process 15:"python -c ...";main (a.py);work (b.py) 7

Each process of a line is the parent of the next, then come the frames, then the number of samples.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

PROCESS = re.compile(r'process (\d+):"[^"]*";?')
# Where training begins: what is above is start-up, and the same in every stack.
LOOPS = ("run (rlcluster/training/loop.py)", "serve (rlcluster/training/helpers.py)")
CONSTRUCTION = "_construct (rlcluster/training/loop.py)"
WIDTH, ROW, TOP, MARGIN = 1200.0, 18.0, 48.0, 10.0
MIN_WIDTH = 1.0  # narrower frames are not drawn
CHARACTER = 6.3  # width of one
STYLE = """
:root { color-scheme: light dark; }
svg { background: #ffffff; font: 11px system-ui, sans-serif; }
text { fill: #1b1e23; } .faint { fill: #5c6470; } .title { font-size: 15px; font-weight: 600; }
rect { stroke: #ffffff; stroke-width: .5; }
.ours { fill: #f2b84b; } .torch { fill: #86c5ea; } .other { fill: #dca6c4; }
@media (prefers-color-scheme: dark) {
  svg { background: #14171b; } rect { stroke: #14171b; }
  text { fill: #e8eaed; } .faint { fill: #a3abb6; }
  .ours { fill: #8a5e00; } .torch { fill: #2a6a90; } .other { fill: #7d4868; }
}
"""


class Stack(NamedTuple):
    """Frames from the outermost to the innermost, in one process."""

    processes: tuple[int, ...]  # its ancestors and itself
    frames: tuple[str, ...]
    samples: int


class Frame:
    """A node of the graph: a function, called by the one above it."""

    def __init__(self) -> None:
        self.samples = 0
        self.inner: dict[str, Frame] = {}


def read_stacks(raw: str) -> list[Stack]:
    stacks = []
    for line in raw.splitlines():
        text, _, samples = line.rpartition(" ")
        processes = tuple(int(number) for number in PROCESS.findall(text))
        frames = tuple(PROCESS.sub("", text).split(";"))
        if samples.isdigit() and processes:
            stacks.append(Stack(processes, frames, int(samples)))
    return stacks


def training_of(stacks: Sequence[Stack], depth: int) -> list[Stack]:
    """What the first process at this depth did in its training loop: 1 is the command itself, 2 its ranks, 3 their
    workers. Ranks are started in order, so rank 0 has the lowest number.
    """
    in_loop = [stack for stack in map(_from_loop, stacks) if stack is not None and len(stack.processes) == depth]
    first = min((stack.processes[-1] for stack in in_loop), default=None)
    return [stack for stack in in_loop if stack.processes[-1] == first]


def flame_graph(stacks: Sequence[Stack], title: str, rate: int) -> str:
    """As SVG without scripts: callers above, width by samples, `rate` of them a second; a tooltip for every frame."""
    root, depth = _tree(stacks), max(len(stack.frames) for stack in stacks)
    height = TOP + ROW * depth + MARGIN
    note = (
        f"{root.samples} samples, {rate} a second, of threads that were not idle; callers above what they call; "
        "yellow: rlcluster, blue: torch, red: the rest"
    )
    parts: list[str] = []
    _draw(parts, root.inner, (MARGIN, TOP), (WIDTH - 2 * MARGIN) / root.samples, root.samples)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="100%" '
        f'preserveAspectRatio="xMidYMin meet"><style>{STYLE}</style>'
        f'<text class="title" x="{MARGIN:g}" y="20">{escape(title)}</text>'
        f'<text class="faint" x="{MARGIN:g}" y="38">{escape(note)}</text>{"".join(parts)}</svg>\n'
    )


def _from_loop(stack: Stack) -> Stack | None:
    """Without the frames around the loop; None if the process was not in it, or still made its environments."""
    places = [place for place, frame in enumerate(stack.frames) if frame in LOOPS]
    if not places or CONSTRUCTION in stack.frames:
        return None
    return stack._replace(frames=stack.frames[places[-1] :])


def _tree(stacks: Sequence[Stack]) -> Frame:
    root = Frame()
    for stack in stacks:
        node = root
        node.samples += stack.samples
        for name in stack.frames:
            node = node.inner.setdefault(name, Frame())
            node.samples += stack.samples
    return root


def _draw(parts: list[str], frames: Mapping[str, Frame], corner: tuple[float, float], scale: float, total: int) -> None:
    """`frames` side by side, the widest first, each with its own below it."""
    left, top = corner
    for name, frame in sorted(frames.items(), key=lambda item: (-item[1].samples, item[0])):
        width = frame.samples * scale
        if width < MIN_WIDTH:
            break
        label = escape(_shortened(name, width))
        parts.append(
            f"<g><title>{escape(name)}: {frame.samples} samples, {frame.samples / total:.1%}</title>"
            f'<rect class="{_kind(name)}" x="{left:.1f}" y="{top:g}" width="{width:.1f}" height="{ROW:g}" rx="2"/>'
            f'<text x="{left + 4:.1f}" y="{top + 13:g}">{label}</text></g>'
        )
        _draw(parts, frame.inner, (left, top + ROW), scale, total)
        left += width


def _kind(name: str) -> str:
    file = name.partition(" (")[2]
    return "ours" if file.startswith("rlcluster/") else "torch" if file.startswith("torch/") else "other"


def _shortened(name: str, width: float) -> str:
    room = int((width - 8) / CHARACTER)
    if len(name) <= room:
        return name
    return f"{name[: room - 1]}…" if room > 3 else ""
