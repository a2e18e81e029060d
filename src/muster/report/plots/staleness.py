"""How old the models were that answers belonged to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from muster.core.errors import ConfigError
from muster.report.flights import FlightTable, flights_of
from muster.report.plots.canvas import WHOLE, labels, panels, picture, whole_ticks
from muster.report.plots.data import required
from muster.report.plots.histograms import whole_edges
from muster.report.style import colour
from muster.results.cases import cases

if TYPE_CHECKING:
    from muster.server.result import Result

_MAX_BARS = 30


@picture
def plot_staleness(results: Sequence[Result]) -> Figure:
    """Histograms of how many aggregations answers had missed, one panel per case, the mean over its seeds.

    What was thrown away because it was too old stands on top, in another colour.
    """
    found = cases(required(results))
    answers = [[_answered(run) for run in case.runs] for case in found]
    edges = whole_edges(np.concatenate([run.staleness for runs in answers for run in runs]), _MAX_BARS)
    columns = 3 if len(found) > 2 else 2
    figure, axes = panels(len(found), columns, size=(3.6, 2.5), sharex=True, sharey=True)
    names = labels([case.name for case in found], 28)
    for panel, name, runs in zip(axes, names, answers, strict=True):
        used, thrown = (
            np.mean(
                [np.histogram(run.staleness[run.ended_as(*kind)], edges)[0] / len(run) for run in runs], axis=0
            )
            for kind in (("used", "left out", "refused", "failed"), ("stale",))
        )
        panel.stairs(used, edges, fill=True, color=colour(0), alpha=0.85, label="used")
        if thrown.any():
            panel.stairs(used + thrown, edges, baseline=used, fill=True, color=colour(1), label="too stale")
            panel.legend(loc="upper right")
        panel.set_title(f"{name}\n", loc="left", fontsize=10)
        panel.text(0, 1.03, _in_words(runs), transform=panel.transAxes, fontsize=9)
        panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        panel.yaxis.set_major_locator(MaxNLocator(5))
        panel.xaxis.set_major_locator(whole_ticks(5))
        panel.xaxis.set_major_formatter(WHOLE)
    figure.supxlabel("staleness: aggregations between a training's start and its use", fontsize=10)
    figure.supylabel("share of answers", fontsize=10)
    return figure


def _answered(result: Result) -> FlightTable:
    """The trainings of a run that were answered."""
    table = flights_of(result)
    answers = table.rows(~table.ended_as("left", "late"))
    if not len(answers):
        raise ConfigError(
            f"the run '{result.name}' has no answers with a time",
            fix="give the experiment the sections [devices] and [pacing]",
        )
    return answers


def _in_words(runs: Sequence[FlightTable]) -> str:
    mean, high, most = (
        float(np.mean([measure(run.staleness) for run in runs]))
        for measure in (np.mean, lambda values: np.quantile(values, 0.95, method="higher"), np.max)
    )
    return f"mean {mean:.1f}, 95 % up to {high:.0f}, most {most:.0f}"
