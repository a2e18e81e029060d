"""Fairness against accuracy: one point per case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from muster.core.inequality import summary
from muster.report.looks import looks
from muster.report.plots.canvas import PANEL, label, labels, legend_below, panels, picture, show_unit
from muster.report.plots.curves import seeds_note
from muster.report.plots.data import never_measured, participants, population, required
from muster.results.cases import cases

if TYPE_CHECKING:
    from muster.server.result import Result

#: Measures of participation; everything else is a metric of the run.
PARTICIPATION = {
    "jain": "participation, Jain's index (1: all alike)",
    "gini": "participation, Gini coefficient (0: all alike)",
    "evenness": "participation, evenness (1: all alike)",
    "coverage": "clients that ever took part",
    "longest_wait": "longest wait of a client, rounds",
}


@picture
def plot_fairness(results: Sequence[Result], x: str = "jain", y: str = "accuracy") -> Figure:
    """A scatter of a measure of fairness (x) against a metric (y): small dots are seeds, large ones their mean.

    x is a measure of participation (`jain`, `gini`, `evenness`, `coverage`, `longest_wait`), or a metric such as
    `client_accuracy_worst` or `client_accuracy_std`.
    """
    found = cases(required(results))
    figure, (axes,) = panels(1, size=(PANEL[0], PANEL[1] + 0.4))
    names = [case.name for case in found]
    for case, name, look in zip(found, labels(names), looks(names), strict=True):
        points = np.array([[_measured(run, x), _measured(run, y)] for run in case.runs])
        mean = points.mean(axis=0)
        axes.plot(*mean, label=name, linestyle="none", ms=9, mew=0, **look.dots)
        if len(points) > 1:
            axes.plot(*points.T, linestyle="none", ms=4, mew=0, alpha=0.55, **look.dots)
            for point in points:
                axes.plot(*zip(mean, point, strict=True), color=look.colour, linewidth=0.6, alpha=0.5)
    show_unit(axes.xaxis, x)
    show_unit(axes.yaxis, y)
    axes.set_xlabel(PARTICIPATION.get(x, label(x)))
    axes.margins(0.08)
    if len(found) > 1:
        legend_below(figure, [axes], seeds_note(found).replace("and its 95 % interval over", "(large) of"))
    return figure


def _measured(result: Result, name: str) -> float:
    if name in PARTICIPATION:
        return summary(participants(result), population(result))[name]
    value = result.final(name)
    if np.isnan(value):
        raise never_measured(name, result)
    return value
