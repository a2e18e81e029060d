"""How many clusters a selector found, round by round: one row per run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from muster.core.arrays import Floats
from muster.core.errors import ConfigError
from muster.report.plots.canvas import labels, panels, picture, spread, whole_ticks
from muster.report.plots.data import required
from muster.report.style import shades
from muster.results.cases import cases

if TYPE_CHECKING:
    from muster.server.result import Result

#: More runs than this have no room for their names.
MAX_RUNS = 40
#: Inches of a row.
_ROW = 0.28
#: More rounds than this have no room for a number in each cell.
_MAX_NUMBERED = 30


@picture
def plot_cluster_numbers(results: Sequence[Result]) -> Figure:
    """A heat map of the number of clusters: rounds to the right, runs downwards, those of one setting together.

    Counted are the clusters that a selector leaves in `View.notes["clusters"]`; cells of rounds in which it left
    none are empty, and runs that never had any are left out.
    """
    known = cases([result for result in required(results) if np.isfinite(numbers([result])).any()])
    runs = [run for case in known for run in case.runs]
    called = labels([case.name for case in known])
    names = [f"{name}, seed {seed}" for name, case in zip(called, known, strict=True) for seed in case.seeds]
    if not runs:
        raise ConfigError(
            "the runs have no clusters: none are noted",
            fix="choose runs of cluster, astrafl, hics, hcsfed or another clustering method",
        )
    if len(runs) > MAX_RUNS:
        raise ConfigError(f"{len(runs)} runs are too many for one picture", expected=f"at most {MAX_RUNS}")
    counts = numbers(runs)
    rounds, most = counts.shape[1], int(np.nanmax(counts))
    figure, (axes,) = panels(1, size=(7.6, 1.5 + _ROW * len(runs)))
    # One cluster is a value like any other: even the lightest cell differs from an empty one.
    colours = ListedColormap(shades()(np.linspace(0.15, 0.95, most)))
    image = axes.imshow(
        np.ma.masked_invalid(counts),
        aspect="auto",
        interpolation="nearest",
        cmap=colours,
        norm=BoundaryNorm(np.arange(0.5, most + 1), most),
        extent=(0.5, rounds + 0.5, len(runs) - 0.5, -0.5),
    )
    if rounds <= _MAX_NUMBERED:
        for row, column in np.argwhere(np.isfinite(counts)).tolist():
            value = int(counts[row, column])
            tint = "white" if value > 0.45 * most else "black"
            axes.text(column + 1, row, str(value), ha="center", va="center", fontsize=7, color=tint)
    axes.grid(visible=False)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(whole_ticks())
    axes.set_yticks(range(len(runs)), names)
    bar = figure.colorbar(image, ax=axes, pad=0.02)
    bar.set_ticks(spread(np.arange(1, most + 1), 8))
    bar.set_label("clusters")
    bar.minorticks_off()
    return figure


def numbers(results: Sequence[Result]) -> Floats:
    """Runs × rounds: how many clusters were noted; NaN where none were, or the run was shorter."""
    counts = np.full((len(results), max(len(result.records) for result in results)), np.nan)
    for row, result in enumerate(results):
        for column, record in enumerate(result.records):
            labels = np.asarray(record.notes.get("clusters", []), dtype=np.int64)
            found = len(np.unique(labels[labels >= 0]))
            counts[row, column] = found if found else np.nan
    return counts
