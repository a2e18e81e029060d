"""Who took part when: the map of clients × rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from muster.arrays import Floats, Ints
from muster.errors import ConfigError
from muster.report.cases import seed_of
from muster.report.plots.canvas import WHOLE, panels, picture, shortened
from muster.report.plots.data import participants, population, required
from muster.report.style import shades

if TYPE_CHECKING:
    from muster.result import Result

#: A map with more rows or columns than this shows means over neighbours.
MOST_ROWS, MOST_COLUMNS = 200, 300


@picture
def plot_selection_map(results: Sequence[Result], *, order: Literal["id", "count"] = "id") -> Figure:
    """Clients × rounds: how often each client trained in each round. One panel a run.

    More than 200 clients or 300 rounds are drawn as means over neighbours. `order="count"` puts the clients that
    trained most on top, which shows how evenly a method selects.
    """
    if order not in ("id", "count"):
        raise ConfigError(f"unknown order '{order}'", expected="id or count")
    figure, axes = panels(len(required(results)), columns=2, size=(5.4, 3.4))
    for panel, result in zip(axes, results, strict=True):
        clients, chosen = population(result), participants(result)
        place = np.arange(clients)
        if order == "count":
            times = np.bincount(np.concatenate(chosen), minlength=clients)
            place[np.argsort(-times, kind="stable")] = np.arange(clients)
        values = binned([place[ids] for ids in chosen], clients, MOST_ROWS, MOST_COLUMNS)
        image = draw_map(panel, values, clients, len(chosen))
        binned_clients, binned_rounds = clients > MOST_ROWS, len(chosen) > MOST_COLUMNS
        what = "trainings" if not (binned_clients or binned_rounds) else "trainings a client and round, mean"
        bar = figure.colorbar(image, ax=panel, pad=0.02)
        bar.set_label(what)
        if not (binned_clients or binned_rounds):
            bar.set_ticks(list(range(int(values.max(initial=1)) + 1)))
        panel.set_ylabel("client" if order == "id" else "clients, most used first")
        if order == "count":
            panel.set_yticks([])
        panel.set_title(f"{shortened(result.name)}, seed {seed_of(result)}", loc="left")
    return figure


def binned(chosen: Sequence[Ints], clients: int, most_rows: int, most_columns: int) -> Floats:
    """Clients × rounds: trainings; where there are more than can be shown, means over neighbours."""
    rows, columns = min(clients, most_rows), min(len(chosen), most_columns)
    client = np.concatenate([np.empty(0, dtype=np.int64), *chosen])
    round = np.repeat(np.arange(len(chosen)), [len(ids) for ids in chosen])
    cells = (client * rows // max(1, clients)) * columns + round * columns // max(1, len(chosen))
    sums = np.bincount(cells, minlength=rows * columns).reshape(rows, columns)
    return np.asarray(sums / np.outer(_members(clients, rows), _members(len(chosen), columns)))


def _members(items: int, bins: int) -> Ints:
    """How many of `items` neighbours share each bin."""
    return np.bincount(np.arange(items) * bins // max(1, items), minlength=bins)


def draw_map(axes: Axes, values: Floats, clients: int, rounds: int) -> AxesImage:
    """Shades for a clients × rounds matrix; whole numbers get one shade each."""
    top = float(values.max(initial=0))
    whole = bool((values == np.round(values)).all()) and top <= 12
    levels = max(1, int(top))
    colours = shades()
    # One shade for each whole number, from nothing at 0 to the darkest at the top.
    norm = BoundaryNorm(np.arange(-0.5, levels + 1), colours.N) if whole and levels > 1 else Normalize(0, top or 1)
    image = axes.imshow(
        values,
        aspect="auto",
        interpolation="nearest",
        cmap=colours,
        norm=norm,
        extent=(0.5, rounds + 0.5, clients - 0.5, -0.5),
    )
    axes.grid(visible=False)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(WHOLE)
    axes.yaxis.set_major_formatter(WHOLE)
    return image
