"""Groups of clients over rounds: clusters that a selector made, or the clients that it kept training on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.optimize import linear_sum_assignment

from muster.arrays import Floats, Ints
from muster.errors import ConfigError
from muster.report.cases import seed_of
from muster.report.plots.canvas import WHOLE, panels, picture, shortened, spread
from muster.report.plots.data import population, required
from muster.report.plots.participation import MOST_COLUMNS, MOST_ROWS, draw_map
from muster.report.style import colour

if TYPE_CHECKING:
    from muster.result import Result

#: Label of a client that was in no cluster in a round.
NOBODY = -1


@picture
def plot_clusters(results: Sequence[Result]) -> Figure:
    """Two panels a run: which group every client is in, round by round, and how large the groups are.

    Groups are the clusters that a selector leaves in `View.notes["clusters"]` (a label for every client, −1 for
    none), numbered so that a cluster keeps its number and colour from round to round. For selectors that train
    several times in a round, such as Terraform, they are the clients that were still there in each iteration.
    """
    figure, axes = panels(2 * len(required(results)), columns=2, size=(5.4, 3.4))
    for result, left, right in zip(results, axes[::2], axes[1::2], strict=True):
        name = f"{shortened(result.name)}, seed {seed_of(result)}"
        if any("clusters" in record.notes for record in result.records):
            labels = aligned(_noted(result))
            _draw_labels(left, labels)
            _draw_sizes(right, labels)
            left.set_title(f"{name}: cluster", loc="left")
            right.set_title("clients in each cluster", loc="left")
        elif any(len(trainings) > 1 for trainings in result.selections):
            _draw_depth(left, depths(result.selections, population(result)))
            _draw_halving(right, result.selections)
            left.set_title(f"{name}: iterations", loc="left")
            right.set_title("clients left in each iteration", loc="left")
        else:
            raise ConfigError(
                f"the run '{result.name}' has no groups of clients: no clusters are noted, and rounds train once",
                fix="choose runs of terraform, cluster, astrafl, hics or another clustering method",
            )
    return figure


# --- clusters --------------------------------------------------------------------------------------------


def _noted(result: Result) -> Ints:
    """Clients × rounds: the noted labels; −1 for clients and rounds without."""
    labels = np.full((population(result), len(result.records)), NOBODY, dtype=np.int64)
    for column, record in enumerate(result.records):
        own = np.asarray(record.notes.get("clusters", []), dtype=np.int64)
        labels[: len(own), column] = own
    return labels


def aligned(labels: Ints) -> Ints:
    """The same clusters under numbers that last: each takes that of the earlier one most of its clients were in.

    Methods number their clusters afresh in every round. `labels` is clients × rounds, −1 for none. A client's last
    known cluster is what a new one is compared with; the matching is the one with the most clients in common.
    """
    result = np.full_like(labels, NOBODY)
    last = np.full(len(labels), NOBODY, dtype=np.int64)
    for column in range(labels.shape[1]):
        own = labels[:, column]
        present = own != NOBODY
        if not present.any():
            continue
        kinds, which = np.unique(own[present], return_inverse=True)
        known = int(last.max()) + 1
        shared = np.zeros((len(kinds), known + len(kinds)))
        before = last[present]
        np.add.at(shared, (which[before != NOBODY], before[before != NOBODY]), 1)
        # A new number is better than one whose clients are all elsewhere; small ones first.
        shared[:, known:] = 0.5 - 1e-6 * np.arange(len(kinds))
        _, numbers = linear_sum_assignment(shared, maximize=True)
        result[present, column] = numbers[which]
        last[present] = result[present, column]
    return result


def _draw_labels(axes: Axes, labels: Ints) -> None:
    clients, rounds = labels.shape
    # Clients with the same clusters stand together, whatever their ids are.
    order = np.lexsort((labels[:, -1], _usual(labels)))
    shown = labels[np.ix_(spread(order, MOST_ROWS), spread(np.arange(rounds), MOST_COLUMNS))]
    count = int(labels.max()) + 1
    colours = ListedColormap([colour(number) for number in range(count)])
    image = axes.imshow(
        np.ma.masked_equal(shown, NOBODY),
        aspect="auto",
        interpolation="nearest",
        cmap=colours,
        norm=BoundaryNorm(np.arange(-0.5, count), count),
        extent=(0.5, rounds + 0.5, clients - 0.5, -0.5),
    )
    axes.grid(visible=False)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_yticks([])
    axes.set_ylabel(f"{clients:,} clients, by usual cluster")
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02)
    bar.set_ticks(spread(np.arange(count), 8))
    bar.set_label("cluster")


def _usual(labels: Ints) -> Ints:
    """The cluster in which each client is most often; −1: never in one."""
    count = int(labels.max()) + 1
    clients, rounds = np.nonzero(labels != NOBODY)
    times = np.zeros((len(labels), max(1, count)), dtype=np.int64)
    np.add.at(times, (clients, labels[clients, rounds]), 1)
    return np.where(times.any(axis=1), times.argmax(axis=1), NOBODY)


def _draw_sizes(axes: Axes, labels: Ints) -> None:
    count, rounds = int(labels.max()) + 1, labels.shape[1]
    sizes = np.array([(labels == number).sum(axis=0) for number in range(count)])
    measured = np.flatnonzero(sizes.any(axis=0))
    axes.stackplot(
        measured + 1, sizes[:, measured], colors=[colour(number) for number in range(count)], alpha=0.9, step="mid"
    )
    axes.set_xlim(0.5, rounds + 0.5)
    axes.set_xlabel("round")
    axes.set_ylabel("clients")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_formatter(WHOLE)


# --- iterations ------------------------------------------------------------------------------------------


def depths(selections: Sequence[Sequence[Sequence[int]]], clients: int) -> Floats:
    """Clients × rounds: the last iteration in which a client trained, 0 for not at all."""
    deepest = np.zeros((clients, len(selections)))
    for column, trainings in enumerate(selections):
        for iteration, ids in enumerate(trainings, start=1):
            deepest[np.asarray(ids, dtype=np.int64), column] = iteration
    return deepest


def _draw_depth(axes: Axes, deepest: Floats) -> None:
    clients, rounds = deepest.shape
    rows, columns = min(clients, MOST_ROWS), min(rounds, MOST_COLUMNS)
    shown = np.zeros((rows, columns))
    place = np.ix_(np.arange(clients) * rows // clients, np.arange(rounds) * columns // rounds)
    np.maximum.at(shown, place, deepest)
    image = draw_map(axes, shown, clients, rounds)
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02)
    bar.set_ticks(spread(np.arange(int(deepest.max()) + 1), 9))
    merged = (rows, columns) != (clients, rounds)
    bar.set_label("deepest iteration of neighbours" if merged else "last iteration with this client")
    axes.set_ylabel("client")


def _draw_halving(axes: Axes, selections: Sequence[Sequence[Sequence[int]]]) -> None:
    """Mean and range over rounds of the number of clients in each iteration, and how many rounds got that far."""
    most = max(map(len, selections))
    sizes = [[len(trainings[i]) for trainings in selections if len(trainings) > i] for i in range(most)]
    iterations = np.arange(1, most + 1)
    axes.fill_between(iterations, *_range(sizes), color=colour(0), alpha=0.16, lw=0, label="range over rounds")
    axes.plot(iterations, [np.mean(own) for own in sizes], "o-", color=colour(0), ms=4, label="mean over rounds")
    for iteration, own in zip(iterations, sizes, strict=True):
        axes.annotate(
            f"{len(own) / len(selections):.0%}",
            (iteration, 0),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    axes.set_ylim(0, None)
    axes.set_xlabel("iteration (share of rounds that got there)")
    axes.set_ylabel("clients that trained")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.legend(loc="upper right", fontsize=9)


def _range(sizes: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    return [min(own) for own in sizes], [max(own) for own in sizes]
