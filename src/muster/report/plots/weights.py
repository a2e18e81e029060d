"""How unequal the weights of the aggregation were, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from muster.core.arrays import Floats
from muster.core.errors import ConfigError
from muster.report.looks import looks
from muster.report.plots.canvas import PANEL, labels, legend_below, panels, picture, show_unit
from muster.report.plots.data import averaged, required
from muster.results.cases import cases

if TYPE_CHECKING:
    from muster.server.result import Result


@picture
def plot_weights(results: Sequence[Result], *, title: str = "") -> Figure:
    """From the smallest to the largest weight of each training, times its clients: 1 is an equal share.

    One band per case, means over seeds; where a round trains several times, the smallest and the largest of all.
    """
    found = cases(required(results))
    figure, (axes,) = panels(1, size=(PANEL[0] + 1, PANEL[1]))
    axes.axhline(1.0, color="0.5", linewidth=0.8, linestyle=":")
    names = [case.name for case in found]
    for case, name, look in zip(found, labels(names), looks(names), strict=True):
        ends = [_shares(run) for run in case.runs]
        low, high = (averaged([(rounds, shares[:, side]) for rounds, shares in ends])[:2] for side in (0, 1))
        axes.fill_between(low[0], low[1], high[1], color=look.colour, alpha=0.25, linewidth=0, label=name)
        for rounds, shares in (low, high):
            axes.plot(rounds, shares, color=look.colour, linewidth=0.9)
    show_unit(axes.xaxis, "round")
    axes.set_ylabel("smallest to largest weight\n(1: an equal share)")
    axes.set_ylim(0, None)
    if title:
        figure.suptitle(title, fontweight="bold")
    legend_below(figure, [axes])
    return figure


def _shares(result: Result) -> tuple[Floats, Floats]:
    """Rounds that aggregated at least one update, and rounds × (smallest, largest) weight times clients."""
    rounds, ends = [], []
    for record in result.records:
        shares = [len(training.weights) * np.array(training.weights) for training in record.trainings]
        if values := [share for share in shares if len(share)]:
            rounds.append(float(record.round))
            ends.append([min(share.min() for share in values), max(share.max() for share in values)])
    if not rounds:
        raise ConfigError(f"the run '{result.name}' has no weights of clients", fix="leave it out")
    return np.array(rounds), np.array(ends)
