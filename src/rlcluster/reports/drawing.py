"""The style of all figures: colours, lines and hatches that stay distinct for colour-blind readers and in greyscale.

The colours are those of Okabe and Ito; line styles and markers differ as well, so nothing depends on colour alone.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
FORMATS = (".png", ".pdf", ".svg")
DOTS_PER_INCH = 150


def style(position: int) -> dict[str, Any]:
    """Colour, line style and marker of a curve; combinations repeat after 7 x 4 curves."""
    line = (position % len(COLORS) + position // len(COLORS)) % len(LINES)
    return {
        "color": COLORS[position % len(COLORS)],
        "linestyle": LINES[line],
        "marker": MARKERS[position % len(MARKERS)],
    }


def four_panels(title: str | None = None) -> tuple[Figure, Any]:
    """A figure of 2 x 2 panels; needs no display."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7.5), layout="constrained")
    if title is not None:
        figure.suptitle(title)
    return figure, axes


def label(axis: Axes, title: str, x_label: str, y_label: str) -> None:
    axis.set_title(title, fontsize="medium")
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    axis.grid(alpha=0.3)


def save(figure: Figure, path: Path) -> None:
    from matplotlib import pyplot

    image = io.BytesIO()
    figure.savefig(image, format=path.suffix.removeprefix("."), dpi=DOTS_PER_INCH)
    pyplot.close(figure)
    write_atomically(path, image.getvalue())
