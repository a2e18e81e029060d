"""A look at a partition: who has how much of what, as a table for the terminal and as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from rich.table import Table

from muster.core.arrays import Floats, Ints
from muster.data.federated import FederatedData
from muster.heterogeneity.metrics import entropies, summary
from muster.report.plots import save_figure
from muster.report.plots.canvas import ShownFigure, labels
from muster.report.style import COLOURS, muster_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Rows of the table; columns of the heat map; what bubbles can still show.
_TABLE_ROWS, _HEAT_COLUMNS, _BUBBLE_CLIENTS, _BUBBLE_ROWS = 30, 400, 40, 20
_BARS = " ▁▂▃▄▅▆▇█"
_MAX_BARS = 40
_STRIPS, _PER_STRIP = 5, 12
#: Inches.
_WIDTH = 11.0
_WHOLE = FuncFormatter(lambda value, _: f"{value:,.0f}")


@dataclass(frozen=True)
class Composition:
    """What clients have: counts of classes, or of classes with attribute values where there are few of them."""

    counts: Ints
    names: list[str]
    kind: str

    @classmethod
    def of(cls, fed: FederatedData) -> Composition:
        dataset = fed.dataset
        classes = _names(dataset.class_names, dataset.classes)
        groups = fed.group_counts
        if groups is None or groups[0].size > _BUBBLE_ROWS:
            return cls(fed.label_histograms, classes, "class")
        values = _names(dataset.attribute_names, groups.shape[2])
        names = [f"{label}, {value}" for label in classes for value in values]
        return cls(groups.reshape(len(groups), -1), names, "group")


def partition_table(fed: FederatedData) -> Table:
    """One row per client; of many clients, evenly spaced ones from the smallest to the largest."""
    composition = Composition.of(fed)
    shown = _spread(np.argsort(fed.sizes, kind="stable"), _TABLE_ROWS) if fed.clients > _TABLE_ROWS else None
    clients = np.arange(fed.clients) if shown is None else shown
    counts = composition.counts[clients]
    table = Table(title=_title(fed, shown), caption="\n".join(partition_summary(fed)), caption_justify="left")
    for heading in ("client", "samples", "test", "classes", "evenness"):
        table.add_column(heading, justify="right")
    table.add_column("most frequent", overflow="ellipsis", no_wrap=True, max_width=28)
    bars = len(composition.names) <= _MAX_BARS
    if bars:
        table.add_column(f"each {composition.kind}", no_wrap=True)
    tests = fed.test_index.sizes if fed.test_index is not None else None
    evenness = _evenness(fed.label_histograms[clients])
    for client, own, even in zip(clients.tolist(), counts, evenness.tolist(), strict=True):
        top = int(own.argmax())
        table.add_row(
            str(client),
            f"{fed.sizes[client]:,}",
            "–" if tests is None else f"{tests[client]:,}",
            str(np.count_nonzero(fed.label_histograms[client])),
            f"{even:.2f}",
            f"{composition.names[top]} ({own[top] / own.sum():.0%})",
            *([_bars(own)] if bars else []),
        )
    return table


def partition_summary(fed: FederatedData) -> list[str]:
    """The partition in a few lines of text."""
    sizes = fed.sizes
    held = np.count_nonzero(fed.label_histograms, axis=1)
    free = int(fed.unassigned().sum())
    lines = [
        f"samples per client: {_range(sizes)}, median {np.median(sizes):,.0f}; "
        f"{free:,} of {len(fed.dataset.train):,} training samples belong to no client",
        f"classes per client: {_range(held)}, mean {held.mean():.1f} of {fed.classes}; "
        f"mean evenness {_evenness(fed.label_histograms).mean():.2f} (0: one class, 1: all alike)",
    ]
    if fed.test_index is None:
        lines.append("clients have no test samples of their own")
    elif not fed.test_index.sizes.all():
        empty = np.count_nonzero(fed.test_index.sizes == 0)
        lines.append(f"{empty:,} of {fed.clients:,} clients have no test samples")
    if fed.group_counts is not None:
        strengths = ", ".join(f"{name} {value:.3f}" for name, value in summary(fed.group_counts).items())
        lines.append(f"class imbalance, attribute imbalance, spurious correlation (whole, clients): {strengths}")
    return lines


def plot_partition(fed: FederatedData, path: Path | str | None = None) -> Figure:
    """Who has what (bubbles for few clients, a heat map for many), sizes, classes per client, and pictures.

    Of more than 400 clients the heat map shows 400 evenly spaced ones, ordered by their most frequent class.
    """
    composition = Composition.of(fed)
    pictures = _is_pictures(fed)
    height = float(np.clip(0.22 * len(composition.names), 3.0, 6.5))
    with muster_style():
        heights = [height, 2.6] + [2.9] * pictures
        figure = ShownFigure(figsize=(_WIDTH, sum(heights) + 0.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplot_mosaic("mm;sc;pp" if pictures else "mm;sc", height_ratios=heights)
        if fed.clients <= _BUBBLE_CLIENTS and len(composition.names) <= _BUBBLE_ROWS:
            _bubbles(axes["m"], composition, height)
        else:
            _heat_map(axes["m"], composition)
        size_histogram(axes["s"], fed.sizes)
        _class_histogram(axes["c"], np.count_nonzero(fed.label_histograms, axis=1), fed.classes)
        if pictures:
            _pictures(axes["p"], fed)
        figure.suptitle(_title(fed, None), fontweight="bold")
        if path is not None:
            save_figure(figure, Path(path))
    return figure


def _names(names: tuple[str, ...], count: int) -> list[str]:
    return list(names) if len(names) == count else [str(number) for number in range(count)]


def _title(fed: FederatedData, shown: Ints | None) -> str:
    title = f"{fed.dataset.name}: {fed.clients:,} clients, {len(fed.train_index.samples):,} samples"
    return title if shown is None else f"{title} ({len(shown)} clients shown, from the smallest to the largest)"


def _range(values: Ints) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _spread(items: Ints, count: int) -> Ints:
    """`count` evenly spaced items, the first and the last among them."""
    return items[np.linspace(0, len(items) - 1, count).round().astype(np.int64)]


def _evenness(counts: Ints) -> Floats:
    """Entropy of each client's labels as a share of the largest possible."""
    if counts.shape[1] < 2:
        return np.ones(len(counts))
    # Adding zero turns the −0 of one-class clients into 0.
    return np.asarray(entropies(counts.astype(np.float64)) / np.log(counts.shape[1]) + 0.0)


def _bars(counts: Ints) -> str:
    """One character per class; classes with a few samples never look empty."""
    return "".join(_BARS[int(np.ceil(8 * share))] for share in counts / counts.max())


def _bubbles(axes: Axes, composition: Composition, height: float) -> None:
    counts = composition.counts
    clients, rows = np.nonzero(counts)
    # The widest circle just fits its place; 72 points are an inch.
    diameter = 72 * min(0.8 * _WIDTH / len(counts), 0.75 * height / counts.shape[1])
    sizes = diameter**2 * counts[clients, rows] / counts.max()
    axes.scatter(clients, rows, s=np.maximum(sizes, 1.0), color=COLOURS[0], alpha=0.85, linewidths=0)
    axes.set_title(f"samples of each {composition.kind} (area; largest circle: {counts.max():,})", loc="left")
    axes.set_xlim(-0.7, len(counts) - 0.3)
    axes.set_xlabel("client")
    axes.xaxis.set_major_locator(MaxNLocator(20, integer=True))
    _row_labels(axes, composition.names)


def _heat_map(axes: Axes, composition: Composition) -> None:
    counts, note = composition.counts, "clients in their order"
    if len(counts) > _HEAT_COLUMNS:
        counts = counts[_spread(np.arange(len(counts)), _HEAT_COLUMNS)]
        note = f"{_HEAT_COLUMNS} of {len(composition.counts):,} clients, by most frequent {composition.kind}"
        counts = counts[np.lexsort((-counts.max(axis=1) / counts.sum(axis=1), counts.argmax(axis=1)))]
    shares = counts / counts.sum(axis=1, keepdims=True)
    image = axes.imshow(shares.T, aspect="auto", cmap="Blues", norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    axes.grid(visible=False)
    axes.set_title(f"share of each {composition.kind} in a client ({note})", loc="left")
    axes.set_xlabel("client" if len(counts) == len(composition.counts) else "clients")
    if len(counts) == len(composition.counts):
        axes.xaxis.set_major_locator(MaxNLocator(20, integer=True))
    else:
        axes.set_xticks([])
    bar = axes.figure.colorbar(image, ax=axes, pad=0.01, ticks=[0, 0.05, 0.25, 0.5, 1])
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
    _row_labels(axes, composition.names)


def _row_labels(axes: Axes, names: list[str]) -> None:
    step = -(-len(names) // 25)
    positions = range(0, len(names), step)
    axes.set_yticks(list(positions), labels([names[row] for row in positions], 24))
    axes.set_ylim(len(names) - 0.4, -0.6)


def size_histogram(axes: Axes, sizes: Ints) -> None:
    """How many clients have how many samples, with a logarithmic axis where sizes differ very much."""
    axes.set_title("samples per client", loc="left")
    axes.set_ylabel("clients")
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    low, high = int(sizes.min()), int(sizes.max())
    if high > 50 * low:
        axes.set_xscale("log")
        edges = (np.unique(np.geomspace(low, high + 1, 25).round()) - 0.5).tolist()
    else:
        # Whole-number widths, so that no bar covers more sizes than its neighbour.
        width = -(-(high + 1 - low) // 25)
        edges = (np.arange(low, high + 1 + width, width) - 0.5).tolist()
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(_WHOLE)
    axes.yaxis.set_major_formatter(_WHOLE)
    axes.hist(sizes, bins=edges, color=COLOURS[0])
    if low == high:
        axes.set_xlim(low - 3, low + 3)


def _class_histogram(axes: Axes, held: Ints, classes: int) -> None:
    axes.set_title(f"classes a client has, of {classes}", loc="left")
    axes.set_ylabel("clients")
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(_WHOLE)
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes.bar(*np.unique(held, return_counts=True), color=COLOURS[1], width=0.85)
    axes.set_xlim(min(0.4, held.min() - 0.6), min(classes, held.max() + 1) + 0.6)


def _is_pictures(fed: FederatedData) -> bool:
    shape = fed.dataset.sample_shape
    return not fed.dataset.tokens and len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) > 3


def _pictures(axes: Axes, fed: FederatedData) -> None:
    """A strip of pictures of each of a few clients."""
    clients = _spread(np.arange(fed.clients), min(_STRIPS, fed.clients))
    _, height, width = fed.dataset.sample_shape
    wall = np.full(((height + 2) * len(clients), (width + 2) * _PER_STRIP, 3), np.nan)
    for row, client in enumerate(clients.tolist()):
        mine = fed.train_index[client].astype(np.int64)
        for column, sample in enumerate(_spread(mine, min(_PER_STRIP, len(mine))).tolist()):
            picture = _visible(fed.dataset.train.features[sample], fed.dataset.normalisation.scale)
            top, left = row * (height + 2), column * (width + 2)
            wall[top : top + height, left : left + width] = picture.transpose(1, 2, 0)
    axes.imshow(np.nan_to_num(wall, nan=1.0), interpolation="nearest")
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.set_yticks(np.arange(len(clients)) * (height + 2) + height / 2, [f"client {k}" for k in clients.tolist()])
    axes.set_title("some of their samples", loc="left")
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _visible(picture: npt.NDArray[np.generic], scale: float) -> Floats:
    """Values between 0 and 1: by the data's own scale, or stretched where it has none."""
    values = np.asarray(picture, dtype=np.float64)
    if scale != 1.0:
        return np.clip(values * scale, 0, 1)
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.zeros_like(values)
