"""Groups of clients over rounds: clusters that a selector made, or the clients that it kept training on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap, to_rgb
from matplotlib.figure import Figure
from scipy.optimize import linear_sum_assignment

from muster.core.arrays import Ints
from muster.core.errors import ConfigError
from muster.report.plots.canvas import WHOLE, panels, picture, run_labels, spread, whole_ticks
from muster.report.plots.data import population, required
from muster.report.plots.participation import MAX_CLIENTS, MAX_ROUNDS, Events, draw_events
from muster.report.style import COLOURS, colour

if TYPE_CHECKING:
    from muster.server.result import Result

#: Label of a client that was in no cluster in a round.
NOBODY = -1


@picture
def plot_clusters(results: Sequence[Result]) -> Figure:
    """Two panels per run: which group every client is in, round by round, and how large the groups are.

    Groups are the clusters that a selector leaves in `View.notes["clusters"]` (a label for every client, −1 for
    none), numbered so that a cluster keeps its number and colour from round to round. For selectors that train
    several times in a round, such as Terraform, they are the clients that were still there in each iteration.
    """
    figure, axes = panels(2 * len(required(results)), columns=2, size=(5.4, 3.4))
    for result, name, left, right in zip(results, run_labels(results), axes[::2], axes[1::2], strict=True):
        if any("clusters" in record.notes for record in result.records):
            labels = aligned(_noted(result))
            _draw_labels(left, labels, len(result.records))
            _draw_sizes(right, labels, len(result.records))
            left.set_title(f"{name}: cluster", loc="left")
            right.set_title("clients in each cluster", loc="left")
        elif any(len(trainings) > 1 for trainings in result.selections):
            shape = (population(result), len(result.records))
            many = shape[0] > MAX_CLIENTS
            draw_events(left, depths(result.selections), shape, "last iteration", ranked=many)
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
    """Clients × rounds: the noted labels; −1 where there is none. Of many rounds, evenly spaced ones."""
    rounds = spread(np.arange(len(result.records)), MAX_ROUNDS)
    labels = np.full((population(result), len(rounds)), NOBODY, dtype=np.int64)
    for column, place in enumerate(rounds):
        own = np.asarray(result.records[place].notes.get("clusters", []), dtype=np.int64)
        labels[: len(own), column] = own
    return labels


def aligned(labels: Ints) -> Ints:
    """The same clusters under numbers that last: each takes that of the earlier one most of its clients were in.

    Methods number their clusters afresh in every round. `labels` is clients × rounds, −1 for none. A client's last
    known cluster is what a new one is compared with; the matching is the one with the most clients in common.
    There are no more numbers than clusters at one time, so a number that has become free is used again.
    """
    result = np.full_like(labels, NOBODY)
    last = np.full(len(labels), NOBODY, dtype=np.int64)
    numbers = max(len(np.setdiff1d(own, [NOBODY])) for own in labels.T)
    for column in range(labels.shape[1]):
        own = labels[:, column]
        present = own != NOBODY
        if not present.any():
            continue
        kinds, which = np.unique(own[present], return_inverse=True)
        before = last[present]
        shared = np.zeros((len(kinds), numbers))
        np.add.at(shared, (which[before != NOBODY], before[before != NOBODY]), 1)
        _, taken = linear_sum_assignment(shared, maximize=True)
        result[present, column] = taken[which]
        last[present] = result[present, column]
    return result


def _draw_labels(axes: Axes, labels: Ints, rounds: int) -> None:
    clients = len(labels)
    # Clients with the same clusters stand together, whatever their ids are.
    order = np.lexsort((labels[:, -1], _usual(labels)))[::-1]
    shown = labels[spread(order, MAX_CLIENTS)]
    count = int(labels.max()) + 1
    colours = ListedColormap([_fill(number) for number in range(count)])
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
    axes.xaxis.set_major_locator(whole_ticks())
    axes.set_yticks([])
    axes.set_ylabel(f"{clients:,} clients, by usual cluster")
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02)
    bar.set_ticks(spread(np.arange(count), 8))
    bar.set_label("cluster")
    bar.minorticks_off()


def _fill(number: int) -> tuple[float, float, float]:
    """The n-th colour of an area; after one pass through the palette half as strong."""
    strength = 0.5 ** (number // len(COLOURS))
    red, green, blue = (strength * part + (1 - strength) * 0.75 for part in to_rgb(colour(number)))
    return red, green, blue


def _usual(labels: Ints) -> Ints:
    """The cluster in which each client is most often; −1: never in one."""
    count = int(labels.max()) + 1
    clients, rounds = np.nonzero(labels != NOBODY)
    times = np.zeros((len(labels), max(1, count)), dtype=np.int64)
    np.add.at(times, (clients, labels[clients, rounds]), 1)
    return np.where(times.any(axis=1), times.argmax(axis=1), NOBODY)


def _draw_sizes(axes: Axes, labels: Ints, rounds: int) -> None:
    count, columns = int(labels.max()) + 1, labels.shape[1]
    sizes = np.array([(labels == number).sum(axis=0) for number in range(count)])
    measured = np.flatnonzero(sizes.any(axis=0))
    fills = [_fill(number) for number in range(count)]
    at = 0.5 + (measured + 0.5) * rounds / columns
    axes.stackplot(at, sizes[:, measured], colors=fills, step="mid", linewidth=0)
    axes.set_xlim(0.5, rounds + 0.5)
    axes.set_xlabel("round")
    axes.set_ylabel("clients")
    axes.xaxis.set_major_locator(whole_ticks())
    axes.yaxis.set_major_formatter(WHOLE)


# --- iterations ------------------------------------------------------------------------------------------


def depths(selections: Sequence[Sequence[Sequence[int]]]) -> Events:
    """The last iteration, from 1, in which each client of a round trained."""
    clients, rounds, last = [], [], []
    for number, trainings in enumerate(selections):
        deepest = {client: step for step, ids in enumerate(trainings, start=1) for client in ids}
        clients += list(deepest)
        rounds += [number] * len(deepest)
        last += list(deepest.values())
    return Events(np.array(clients), np.array(rounds), np.array(last, dtype=np.float64))


def _draw_halving(axes: Axes, selections: Sequence[Sequence[Sequence[int]]]) -> None:
    """Mean and range over rounds of the number of clients in each iteration, and how many rounds got that far."""
    most = max(map(len, selections))
    sizes = [[len(trainings[i]) for trainings in selections if len(trainings) > i] for i in range(most)]
    iterations = np.arange(1, most + 1)
    axes.fill_between(iterations, *_range(sizes), color=colour(0), alpha=0.16, lw=0, label="range over rounds")
    axes.plot(iterations, [np.mean(own) for own in sizes], "o-", color=colour(0), ms=4, label="mean over rounds")
    axes.set_ylim(0, None)
    axes.set_xlabel("iteration (share of rounds that got there)")
    axes.set_ylabel("clients that trained")
    got_there = [f"{step}\n{len(own) / len(selections):.0%}" for step, own in enumerate(sizes, start=1)]
    shown = spread(np.arange(most), 10)
    axes.set_xticks([place + 1 for place in shown], [got_there[place] for place in shown])
    axes.yaxis.set_major_locator(whole_ticks())
    axes.legend(loc="upper right", fontsize=9)


def _range(sizes: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    return [min(own) for own in sizes], [max(own) for own in sizes]
