"""How clients differ: how often they trained, and how well the model does on their own data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from muster.core.arrays import Floats, Ints
from muster.core.inequality import counts_of, gini
from muster.report.looks import looks
from muster.report.plots.canvas import WHOLE, labels, panels, picture, whole_ticks
from muster.report.plots.data import client_accuracy, participants, population, required
from muster.results.cases import Case, cases

if TYPE_CHECKING:
    from muster.server.result import Result

_MAX_BARS = 30
#: Edges of the bars of accuracies: 5 % each.
_SHARES = [step / 20 for step in range(21)]


@picture
def plot_selection_frequency(results: Sequence[Result]) -> Figure:
    """Histograms of the rounds in which clients took part, one panel per case, the mean over its seeds."""
    found = cases(required(results))
    counts = [[_rounds(run) for run in case.runs] for case in found]
    edges = whole_edges(np.concatenate([run for runs in counts for run in runs]), _MAX_BARS)
    figure = _histograms(found, counts, edges, lambda runs: f"Gini {np.mean([gini(run) for run in runs]):.2f}")
    for panel in figure.axes:
        panel.xaxis.set_major_locator(whole_ticks(5))
        panel.xaxis.set_major_formatter(WHOLE)
    figure.supxlabel("rounds in which a client took part", fontsize=10)
    return figure


@picture
def plot_client_accuracy(results: Sequence[Result]) -> Figure:
    """Histograms of the final accuracy on clients' own test data, one panel per case, the mean over its seeds."""
    found = cases(required(results))
    accuracies = [[client_accuracy(run) for run in case.runs] for case in found]
    figure = _histograms(found, accuracies, _SHARES, _mean_and_spread)
    for panel in figure.axes:
        panel.set_xlim(0, 1)
        panel.xaxis.set_major_formatter(PercentFormatter(1.0))
    figure.supxlabel("accuracy on a client's own test data", fontsize=10)
    return figure


def _histograms(
    found: Sequence[Case],
    values: Sequence[Sequence[Floats] | Sequence[Ints]],
    edges: list[float],
    note: Callable[[Sequence[Floats] | Sequence[Ints]], str],
) -> Figure:
    """One panel per case, all on the same axes: the mean share of clients in each bar over the seeds."""
    columns = 3 if len(found) > 2 else 2
    figure, axes = panels(len(found), columns, size=(3.6, 2.5), sharex=True, sharey=True)
    names = [case.name for case in found]
    for panel, name, look, runs in zip(axes, labels(names, 28), looks(names), values, strict=True):
        heights = np.mean([np.histogram(run, edges)[0] / len(run) for run in runs], axis=0)
        panel.stairs(heights, edges, fill=True, color=look.colour, alpha=0.85)
        panel.set_title(f"{name}\n", loc="left", fontsize=10)
        panel.text(0, 1.03, note(runs), transform=panel.transAxes, fontsize=9)
        panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        panel.yaxis.set_major_locator(MaxNLocator(5))
    figure.supylabel("share of clients", fontsize=10)
    return figure


def _mean_and_spread(runs: Sequence[Floats] | Sequence[Ints]) -> str:
    mean, spread, worst = (np.mean([measure(run) for run in runs]) for measure in (np.mean, np.std, np.min))
    return f"mean {mean:.0%}, std {spread:.0%}, worst {worst:.0%}"


def _rounds(result: Result) -> Ints:
    return counts_of(participants(result), population(result))


def whole_edges(values: Ints, most: int) -> list[float]:
    """Edges of at most `most` bars that all cover the same number of whole numbers."""
    low, high = int(values.min()), int(values.max())
    width = -(-(high + 1 - low) // most)
    return [edge - 0.5 for edge in range(low, high + 1 + width, width)]
