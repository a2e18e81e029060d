"""Who took part when: the map of clients × rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from muster.core.arrays import Floats, Ints
from muster.core.errors import ConfigError
from muster.report.plots.canvas import WHOLE, panels, picture, run_labels, spread, whole_ticks
from muster.report.plots.data import participants, population, required
from muster.report.style import colour, shades

if TYPE_CHECKING:
    from muster.server.result import Result

#: A map of more clients or rounds than this shows means over neighbours …
MAX_CLIENTS, MAX_ROUNDS = 200, 300
#: … in this many rows and columns: few enough that single selections add up to something visible.
_ROWS, _COLUMNS = 100, 150
#: Whole numbers up to this get a shade each; more are a scale.
_MAX_LEVELS = 12


@picture
def plot_selection_map(
    results: Sequence[Result], *, order: Literal["id", "count"] = "id", bands: bool | None = None
) -> Figure:
    """Clients × rounds: how often each client trained in each round. One panel per run.

    More than 200 clients or 300 rounds are drawn as means over neighbours. `order="count"` puts the clients that
    trained most on top, which shows how evenly a method selects. `bands` marks groups of clients whose labels were
    drawn with a Dirichlet parameter β of their own, and each group's share of all trainings; None: where there are
    such groups and clients are ordered by id.
    """
    if order not in ("id", "count"):
        raise ConfigError(f"unknown order '{order}'", expected="id or count")
    if bands and order != "id":
        raise ConfigError("bands are of neighbouring ids", fix="leave order = 'id'")
    figure, axes = panels(len(required(results)), columns=2, size=(5.4, 3.4))
    for panel, result, name in zip(axes, results, run_labels(results), strict=True):
        chosen = participants(result)
        events = Events(
            np.concatenate(chosen), np.repeat(np.arange(len(chosen)), [len(ids) for ids in chosen]), None
        )
        shape = (population(result), len(chosen))
        draw_events(panel, events, shape, "trainings", ranked=order == "count")
        panel.set_title(name, loc="left")
        groups = dirichlet_groups(result)
        if bands and not groups:
            raise ConfigError(
                f"the clients of the run '{result.name}' have no groups with parameters of their own",
                fix="choose runs with partition.scheme = 'fixed-size-dirichlet' and several betas",
            )
        if groups and bands is not False and order == "id":
            _draw_bands(panel, groups, events.clients)
    return figure


def dirichlet_groups(result: Result) -> list[tuple[float, int]]:
    """β and number of clients of each group, in the order of ids; empty where all clients are of one group."""
    partition = result.config.get("partition", {})
    betas, clients = partition.get("betas") or [], population(result)
    if len(betas) < 2:
        return []
    sizes = partition.get("group_sizes") or [clients // len(betas)] * len(betas)
    return [(float(beta), int(size)) for beta, size in zip(betas, sizes, strict=True) if size]


def _draw_bands(axes: Axes, groups: Sequence[tuple[float, int]], trained: Ints) -> None:
    ends = np.cumsum([size for _, size in groups])
    starts = ends - [size for _, size in groups]
    for edge in ends[:-1].tolist():
        axes.axhline(edge - 0.5, color=colour(1), linewidth=1.2)
    shares = np.histogram(trained, bins=[0, *ends])[0] / max(1, len(trained))
    names = [f"β = {beta:g}\n{share:.0%}" for (beta, _), share in zip(groups, shares, strict=True)]
    axes.set_yticks((starts + ends - 1) / 2, names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel("clients by β; share of trainings")


class Events(NamedTuple):
    """What happened to whom when: one entry for each client that trained in a round."""

    clients: Ints
    #: From 0.
    rounds: Ints
    #: None: each counts 1.
    weights: Floats | None


def draw_events(axes: Axes, events: Events, shape: tuple[int, int], what: str, *, ranked: bool) -> None:
    """A map of clients × rounds with its scale; `ranked` puts the clients with the largest sums on top."""
    clients, rounds = shape
    if ranked:
        sums = np.bincount(events.clients, events.weights, minlength=clients)
        place = np.empty(clients, dtype=np.int64)
        place[np.argsort(-sums, kind="stable")] = np.arange(clients)
        events = events._replace(clients=place[events.clients])
    few_clients, few_rounds = clients <= MAX_CLIENTS, rounds <= MAX_ROUNDS
    values = binned(events, shape, (clients if few_clients else _ROWS, rounds if few_rounds else _COLUMNS))
    bar = axes.figure.colorbar(draw_map(axes, values, clients, rounds), ax=axes, pad=0.02)
    bar.minorticks_off()
    if few_clients and few_rounds:
        bar.set_label(what)
        bar.set_ticks(spread(np.arange(max(1, int(values.max(initial=0))) + 1), 9))
    else:
        bar.set_label(f"{what} a client and round, mean")
    axes.set_ylabel("clients, most used first" if ranked else "client")
    if ranked:
        axes.set_yticks([])


def binned(events: Events, shape: tuple[int, int], bins: tuple[int, int]) -> Floats:
    """Clients × rounds, or fewer rows and columns that hold means over neighbours."""
    rows = events.clients * bins[0] // shape[0]
    columns = events.rounds * bins[1] // shape[1]
    sums = np.bincount(rows * bins[1] + columns, events.weights, minlength=bins[0] * bins[1]).reshape(bins)
    members = [np.bincount(np.arange(items) * count // items) for items, count in zip(shape, bins, strict=True)]
    return np.asarray(sums / np.outer(*members))


def draw_map(axes: Axes, values: Floats, clients: int, rounds: int) -> AxesImage:
    """Shades for a clients × rounds matrix; whole numbers get one shade each."""
    top = float(values.max(initial=0))
    extent = (0.5, rounds + 0.5, clients - 0.5, -0.5)
    look: dict[str, Any] = {"cmap": shades(), "norm": Normalize(0, top or 1)}
    if top <= _MAX_LEVELS and bool((values == np.round(values)).all()):
        levels = max(1, int(top))
        # The fewer levels there are, the lighter is the last: a map of yes and no need not be black and white.
        colours = ListedColormap(shades()(np.linspace(0, levels / (levels + 1), levels + 1)))
        look = {"cmap": colours, "norm": BoundaryNorm(np.arange(-0.5, levels + 1), levels + 1)}
    image = axes.imshow(values, aspect="auto", interpolation="nearest", extent=extent, **look)
    axes.grid(visible=False)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(whole_ticks())
    axes.yaxis.set_major_locator(whole_ticks())
    axes.xaxis.set_major_formatter(WHOLE)
    axes.yaxis.set_major_formatter(WHOLE)
    return image
