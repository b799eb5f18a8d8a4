"""The style of all figures: colours, lines and hatches that stay distinct for colour-blind readers and in greyscale.

The colours are those of Okabe and Ito; line styles and markers differ as well, so nothing depends on colour alone. A
figure is as wide as a page of text, with the type of a caption: it needs no scaling in a paper.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlcluster.system.atomic_file import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PHASE_STYLES: dict[str, dict[str, Any]] = {
    "rollout": {"color": "#56B4E9", "hatch": ""},
    "learn": {"color": "#E69F00", "hatch": "//"},
    "sync": {"color": "#FFFFFF", "hatch": "xx"},
    "idle": {"color": "#BBBBBB", "hatch": ".."},
}


class Backend(NamedTuple):
    """What of matplotlib writes a format, and the metadata that make a file reproducible."""

    module: str
    metadata: dict[str, Any]


BACKENDS = {
    "png": Backend("agg", {}),
    "pdf": Backend("pdf", {"CreationDate": None}),
    "svg": Backend("svg", {"Date": None}),
}
FORMATS = tuple(f".{kind}" for kind in BACKENDS)
WIDTH = 7.0  # inches
STYLE: Any = {
    **{"font.size": 8, "axes.titlesize": 8.5, "axes.labelsize": 8, "legend.fontsize": 8, "figure.titlesize": 9.5},
    **{"xtick.labelsize": 7.5, "ytick.labelsize": 7.5, "lines.linewidth": 1.2, "lines.markersize": 3.2},
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6, "axes.edgecolor": "#444444"},
    **{
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
        "grid.linewidth": 0.5,
        "grid.alpha": 0.35,
        "axes.axisbelow": True,
    },
    **{"legend.frameon": False, "hatch.linewidth": 0.5},
    **{"pdf.fonttype": 42, "svg.hashsalt": "rlcluster"},  # fonts that publishers accept; the same file each time
}
DOTS_PER_INCH = 200
PUBLISHED_COLOR, PUBLISHED_MARKER = "#555555", "x"
# OpenAI's is the first, then ours, as many as configs/suite_procgen.yaml has recipes; page.js has the same
PUBLISHED_LINES = (":", (0, (6, 3)), (0, (5, 2, 1, 2)), "-", (0, (3, 5)), (0, (8, 2, 1, 2, 1, 2)))
MARGIN = 0.06  # of the data's height, between the data and the frame


def style(position: int) -> dict[str, Any]:
    """Colour, line style and marker of a curve, the same in every figure; on the page too, but for the brightness of
    the colours. Combinations repeat after 7 x 4 curves. -1 and below are published results, in grey.
    """
    if position < 0:
        line = PUBLISHED_LINES[(-1 - position) % len(PUBLISHED_LINES)]
        return {"color": PUBLISHED_COLOR, "linestyle": line, "marker": PUBLISHED_MARKER}
    return {
        "color": COLORS[position % len(COLORS)],
        "linestyle": LINES[(position % len(COLORS) + position // len(COLORS)) % len(LINES)],
        "marker": MARKERS[position % len(MARKERS)],
    }


@contextmanager
def figure_for(paths: Sequence[Path], height: float) -> Iterator[Figure]:
    """An empty figure, `height` inches high, to be drawn on within the context, then written to all paths. It needs
    no display, and leaves matplotlib's settings as they are.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), dpi=DOTS_PER_INCH, layout="constrained")
        yield figure
        _save(figure, paths)


def label(axis: Axes, title: str, x_label: str, y_label: str) -> None:
    axis.set_title(title)
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    axis.grid()


def lift_from_frame(axis: Axes, is_from_zero: bool = False) -> None:
    """Leaves room between the data and the frame: nothing touches it, not even a line at 0."""
    low, high = axis.dataLim.intervaly
    if not low <= high:  # no data: the limits are infinite
        return
    low, high = (min(0.0, low), max(0.0, high)) if is_from_zero else (low, high)
    room = MARGIN * ((high - low) or abs(high) or 1.0)
    axis.set_ylim(low - room / 2 if is_from_zero and low == 0 else low - room, high + room)


def escaped(name: str) -> str:
    """For matplotlib: $ would start a formula, and legends ignore labels that start with _."""
    text = name.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _save(figure: Figure, paths: Sequence[Path]) -> None:
    """In the format of each path's suffix. The layout is computed once, and each format is drawn once: `savefig` would
    do both several times.
    """
    layout = figure.get_layout_engine()
    assert layout is not None
    layout.execute(figure)
    figure.set_layout_engine("none")
    for path in paths:
        kind, image = path.suffix.removeprefix("."), io.BytesIO()
        backend = BACKENDS[kind]
        figure.set_dpi(DOTS_PER_INCH)  # PDF and SVG change it
        canvas = import_module(f"matplotlib.backends.backend_{backend.module}").FigureCanvas(figure)
        getattr(canvas, f"print_{kind}")(image, metadata=backend.metadata)
        write_atomically(path, image.getvalue())
