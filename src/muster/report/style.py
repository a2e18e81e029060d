"""One look for all pictures: colours that colour-blind people can tell apart, quiet axes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib as mpl

#: Okabe and Ito's palette, yellow last because it is faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#F0E442")
LINES = ("-", "--", "-.", ":")

_STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "legend.frameon": False,
    "figure.dpi": 110,
    "savefig.dpi": 160,
}


#: For pages with a dark background: the background itself is left transparent.
_DARK = {
    "text.color": "#e6e9ec",
    "axes.labelcolor": "#e6e9ec",
    "axes.edgecolor": "#aab2ba",
    "axes.facecolor": "none",
    "xtick.color": "#aab2ba",
    "ytick.color": "#aab2ba",
    "grid.color": "#aab2ba",
    "grid.alpha": 0.12,
}


@contextmanager
def muster_style(*, dark: bool = False) -> Iterator[None]:
    with mpl.rc_context(_STYLE | (_DARK if dark else {})):  # type: ignore[arg-type]
        yield


def line_style(number: int) -> dict[str, str]:
    """Colour and dash of the n-th line: both change, so that lines differ in grey too."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": LINES[(number // len(COLOURS) + number) % len(LINES)],
    }
