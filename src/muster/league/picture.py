"""Gains over the baseline as a map: methods × problems."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from muster.league.gains import Gains, points
from muster.report.plots.canvas import panels, picture

#: Inches of a cell, and of the names beside.
_WIDTH, _HEIGHT, _NAMES = 0.62, 0.25, 2.2
#: So that the title has room.
_LEAST_CELLS = 8


@picture
def draw_gains(gains: Gains, methods: Sequence[str], title: str) -> Figure:
    """Points over the baseline; bold where the interval over seeds does not contain zero."""
    problems = list(gains)
    values = np.array([[100 * gains[p][m].value if m in gains[p] else np.nan for p in problems] for m in methods])
    known = np.abs(values[~np.isnan(values)])
    # A few large ones would leave no colour for the others.
    limit = max(0.5, float(np.quantile(known, 0.9))) if len(known) else 1.0
    size = (_NAMES + _WIDTH * max(len(problems), _LEAST_CELLS), 1.9 + _HEIGHT * len(methods))
    figure, (axes,) = panels(1, size=size)
    axes.imshow(values, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    axes.grid(visible=False)
    axes.set_xticks(range(len(problems)), problems, rotation=35, ha="right", fontsize=8.5)
    axes.set_yticks(range(len(methods)), methods, fontsize=8.5)
    for row, method in enumerate(methods):
        for column, problem in enumerate(problems):
            gain = gains[problem].get(method)
            if gain is None:
                continue
            strong = abs(100 * gain.value) > 0.65 * limit
            axes.text(
                column,
                row,
                points(gain.value),
                ha="center",
                va="center",
                fontsize=7.5,
                fontweight="bold" if gain.clearly_better or gain.clearly_worse else "normal",
                color="white" if strong else "black",
            )
    axes.set_title(title, loc="left")
    return figure
