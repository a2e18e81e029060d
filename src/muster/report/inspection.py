"""A federation's heterogeneity for people: tables for the terminal, pictures, and a page of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from muster.core.arrays import Ints
from muster.core.errors import ConfigError, OutputError, nearest
from muster.heterogeneity.inspection import Inspection, Unusual, compared
from muster.report import html
from muster.report.partition import size_histogram
from muster.report.plots import save_figure
from muster.report.plots.canvas import ShownFigure, labels
from muster.report.style import COLOURS, muster_style

_MEANINGS = {"CI": "class imbalance", "AI": "attribute imbalance", "SC": "spurious correlation"}
#: Places along an edge of the triangle: clients between two of them are drawn as one circle.
_PLACES = 40
_MAX_DOTS, _MAX_NAMES = 2_000, 25
#: Corners of the triangle for CI, AI, SC.
_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])
#: Inches: wide enough for labels, small enough to stay readable on a phone.
_SIZE = (5.4, 4.4)


def rows_of_metrics(inspection: Inspection) -> list[list[str]]:
    """What is measured, of all data and of clients."""
    metrics = inspection.metrics
    return [
        [meaning, f"{metrics[f'G{short}']:.3f}", f"{metrics[f'C{short}']:.3f}"]
        for short, meaning in _MEANINGS.items()
        if f"G{short}" in metrics
    ]


def rows_of_divergences(inspection: Inspection) -> list[list[str]]:
    return [[name, f"{s.mean:.3f}", f"{s.largest:.3f}"] for name, s in inspection.divergences.items()]


def rows_of_unusual(inspection: Inspection) -> list[list[str]]:
    counts = inspection.counts
    return [
        [counts.client(u.client), f"{u.size:,.0f}", f"{u.divergence:.3f}", _stands_out(inspection, u)]
        for u in inspection.unusual
    ]


def _stands_out(inspection: Inspection, unusual: Unusual) -> str:
    group = inspection.counts.group_name(*unusual.group)
    return f"{group}: {unusual.share:.0%} of its samples, {unusual.pooled_share:.0%} of all"


def rows_of_sizes(inspection: Inspection) -> list[list[str]]:
    sizes = inspection.counts.sizes
    low, high = f"{sizes.min():,.0f}", f"{sizes.max():,.0f}"
    return [
        ["samples in all", f"{sizes.sum():,.0f}"],
        ["samples per client", low if low == high else f"{low} to {high}, median {np.median(sizes):,g}"],
        ["Gini coefficient of sizes", f"{inspection.size_gini:.3f}"],
        ["effective number of clients", f"{inspection.effective_clients:,.1f} of {inspection.clients:,}"],
    ]


_METRICS = ("skew (0: none, 1: total)", "all data", "clients, mean")
_DIVERGENCES = ("labels of a client against all data", "mean", "largest")
_UNUSUAL = ("client", "samples", "divergence", "what stands out")
_SIZES = ("sizes", "all clients")
_NOBODY = "None differs from all data by more than chance."


def title(inspection: Inspection) -> str:
    """What was inspected, in one line."""
    kinds = [("client", "clients"), ("class", "classes"), ("attribute value", "attribute values")]
    named = zip(inspection.counts.table.shape, kinds, strict=True)
    parts = [f"{count:,} {one if count == 1 else many}" for count, (one, many) in named]
    return f"{inspection.counts.title}: {', '.join(parts if inspection.counts.has_attributes else parts[:2])}"


def _note(inspection: Inspection) -> str:
    return (
        f"By chance alone, clients of these sizes would be {inspection.chance:.3f} bits from all data on average."
    )


# --- terminal --------------------------------------------------------------------------------------------


def inspection_text(inspection: Inspection) -> RenderableType:
    """Everything as text."""
    advice = [Padding(_advice(found.finding, found.text), (0, 0, 1, 2)) for found in inspection.advice]
    unusual = rows_of_unusual(inspection)
    return Group(
        Text(f"{title(inspection)}\n", style="bold"),
        _rich_table(_METRICS, rows_of_metrics(inspection)),
        _rich_table(_DIVERGENCES, rows_of_divergences(inspection)),
        Text(f"{_note(inspection)}\n", style="dim"),
        _rich_table(_SIZES, rows_of_sizes(inspection)),
        Text.assemble(("Most unusual clients", "bold"), " (divergence from all data in bits)"),
        _rich_table(_UNUSUAL, unusual) if unusual else f"{_NOBODY}\n",
        Text.assemble(("What stands out", "bold"), " (by the rules in docs/inspect.md)"),
        *advice,
        *_recommendation_text(inspection),
    )


def _recommendation_text(inspection: Inspection) -> list[RenderableType]:
    if (found := inspection.recommendation) is None:
        return []
    shown: list[RenderableType] = [
        Text.assemble(("What to try", "bold"), " (from the league, docs/league.md)"),
        Padding(_advice(found.finding, found.text), (0, 0, 1, 2)),
    ]
    if found.rows:
        shown.append(Padding(_rich_table(found.header, [*map(list, found.rows)]), (0, 0, 0, 2)))
    return shown


def _rich_table(header: tuple[str, ...], rows: list[list[str]]) -> Padding:
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(header):
        last = number == len(header) - 1
        words = header == _UNUSUAL and last
        table.add_column(name, justify="left" if number == 0 or words else "right", no_wrap=not words)
    for row in rows:
        table.add_row(*map(Text, row))
    return Padding(table, (0, 0, 1, 0))


def _advice(finding: str, text: str) -> Text:
    """A finding and what it means, with `code` in its colour."""
    shown = Text()
    for part, style in ((finding, "bold"), ("\n", ""), (text, "")):
        for place, piece in enumerate(part.split("`")):
            shown.append(piece, style=f"{style} cyan" if place % 2 else style)
    return shown


# --- pictures --------------------------------------------------------------------------------------------


def plot_kinds(inspection: Inspection) -> Figure:
    """Every client in the triangle of CI, AI and SC; without attributes, class imbalance over size."""
    figure, axes = _figure()
    if inspection.counts.has_attributes:
        _triangle(axes, inspection)
    else:
        _imbalance_over_size(axes, inspection)
    return figure


def _triangle(axes: Axes, inspection: Inspection) -> None:
    skewed = inspection.triplets[inspection.triplets.sum(axis=1) > 1e-9]
    strength = skewed.sum(axis=1)
    places = np.round(_PLACES * skewed / strength[:, None])
    distinct, which, times = np.unique(places, axis=0, return_inverse=True, return_counts=True)
    mean_strength = np.bincount(which.ravel(), weights=strength, minlength=len(times)) / times
    at = distinct / distinct.sum(axis=1, keepdims=True) @ _CORNERS
    outline = np.vstack([_CORNERS, _CORNERS[:1]])
    quiet = axes.xaxis.label.get_color()
    axes.plot(*outline.T, color=quiet, linewidth=1, zorder=1)
    largest = float(np.clip(9000 / max(1, len(times)), 60, 420))
    areas = _areas(times, int(times.max(initial=1)), largest)
    dots = axes.scatter(
        at[:, 0],
        at[:, 1],
        s=areas,
        c=mean_strength,
        cmap="viridis_r",
        vmin=0,
        vmax=max(1.0, float(strength.max(initial=0))),
        edgecolors=quiet,
        linewidths=0.6,
        zorder=3,
        clip_on=False,
    )
    bar = axes.figure.colorbar(dots, ax=axes, shrink=0.7, pad=0.02)
    bar.set_label("strength, CI + AI + SC")
    for (x, y), name, down in zip(_CORNERS, _MEANINGS.values(), (True, True, False), strict=True):
        axes.annotate(
            name, (x, y), xytext=(0, -20 if down else 20), textcoords="offset points", ha="center", va="center"
        )
    unskewed = inspection.clients - len(skewed)
    note = f"{unskewed:,} of {inspection.clients:,} clients have no skew and no place here" if unskewed else ""
    axes.annotate(note, (0.5, 0), xytext=(0, -38), textcoords="offset points", ha="center", fontsize=9)
    _area_legend(axes, int(times.max(initial=1)), largest)
    axes.set_title("which skew each client has", loc="left", pad=24)
    axes.set_aspect("equal")
    axes.set_xlim(-0.15, 1.15)
    axes.set_ylim(-0.05, 0.92)
    axes.set_axis_off()


def _areas(times: Ints, most: int, largest: float) -> list[float]:
    """Areas of circles in points²; a single client never vanishes."""
    if most < 2:
        return [min(60.0, largest)] * len(times)
    smallest = 16.0 if most <= 50 else 4.0
    areas: list[float] = np.maximum(smallest, largest * times / most).tolist()
    return areas


def _area_legend(axes: Axes, most: int, largest: float) -> None:
    if most < 2:
        return
    shown = sorted({1, max(1, most // 4), most})
    edge = axes.xaxis.label.get_color()
    handles = [
        Line2D([], [], ls="", marker="o", color="none", markeredgecolor=edge, ms=area**0.5, label=f"{times:,}")
        for times, area in zip(shown, _areas(np.array(shown), most, largest), strict=True)
    ]
    axes.legend(
        handles=handles,
        title="clients",
        loc="upper left",
        bbox_to_anchor=(-0.08, 1.0),
        labelspacing=1.1,
        fontsize=9,
    )


def _imbalance_over_size(axes: Axes, inspection: Inspection) -> None:
    sizes, imbalance = inspection.counts.sizes, inspection.triplets[:, 0]
    logarithmic = sizes.max() > 50 * sizes.min()
    if inspection.clients > _MAX_DOTS:
        cells = axes.hexbin(
            sizes,
            imbalance,
            gridsize=35,
            xscale="log" if logarithmic else "linear",
            bins="log",
            mincnt=1,
            cmap="viridis_r",
        )
        axes.figure.colorbar(cells, ax=axes, pad=0.02).set_label("clients")
    else:
        axes.scatter(sizes, imbalance, s=28, alpha=0.8, color=COLOURS[4], edgecolors=COLOURS[0], linewidths=0.7)
        if logarithmic:
            axes.set_xscale("log")
    if not logarithmic:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("samples of the client")
    axes.set_ylabel("class imbalance CI (1: one class only)")
    axes.set_title("class imbalance over size", loc="left")


def plot_divergence(inspection: Inspection) -> Figure:
    """Heat map of the divergences between clients' labels, similar clients next to each other."""
    clients, matrix = compared(inspection.counts)
    figure, axes = _figure()
    image = axes.imshow(
        matrix, cmap="viridis", vmin=0, vmax=max(0.05, float(matrix.max())), interpolation="nearest"
    )
    axes.grid(visible=False)
    figure.colorbar(image, ax=axes, shrink=0.85, pad=0.02).set_label("Jensen–Shannon divergence (bits)")
    if len(clients) <= _MAX_NAMES:
        names = labels([inspection.counts.client(client) for client in clients.tolist()], 12)
        size = 7 if len(names) > 12 else 9
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=size)
        axes.set_yticks(range(len(names)), names, fontsize=size)
    else:
        axes.set_xticks([])
        axes.set_yticks([])
    drawn = len(clients) < inspection.clients
    who = f"{len(clients)} drawn of {inspection.clients:,} clients" if drawn else f"{len(clients)} clients"
    axes.set_xlabel(f"{who}, alike next to each other")
    axes.set_title("how different two clients' labels are", loc="left")
    return figure


def plot_sizes(inspection: Inspection) -> Figure:
    """How many clients have how many samples."""
    figure, axes = _figure((_SIZE[0], 3.2))
    size_histogram(axes, np.maximum(np.round(inspection.counts.sizes), 1).astype(np.int64))
    axes.set_xlabel("samples")
    return figure


def _figure(size: tuple[float, float] = _SIZE) -> tuple[Figure, Axes]:
    figure = ShownFigure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


PICTURES: dict[str, tuple[str, Callable[[Inspection], Figure]]] = {
    "kinds": ("Which skew each client has", plot_kinds),
    "divergence": ("How different two clients' labels are", plot_divergence),
    "sizes": ("How many clients have how many samples", plot_sizes),
}


def draw_inspection(inspection: Inspection, kind: str = "kinds") -> Figure:
    """One of the pictures by its name."""
    if kind not in PICTURES:
        raise ConfigError(f"unknown picture '{kind}'", expected=nearest(kind, PICTURES))
    with muster_style():
        return PICTURES[kind][1](inspection)


# --- files -----------------------------------------------------------------------------------------------


def inspection_html(inspection: Inspection) -> str:
    """For a notebook: numbers and advice, without pictures."""
    advice = "".join(
        f"<dt><strong>{html.marked(a.finding)}</strong></dt><dd>{html.marked(a.text)}</dd>"
        for a in inspection.advice
    )
    return (
        f"<div><p><strong>{html.marked(title(inspection))}</strong></p>"
        f"{html.table(_METRICS, rows_of_metrics(inspection), numbers=(1, 2))}"
        f"{html.table(_DIVERGENCES, rows_of_divergences(inspection), numbers=(1, 2))}"
        f"<p>{html.marked(_note(inspection))}</p>"
        f"{html.table(_SIZES, rows_of_sizes(inspection))}<dl>{advice}</dl>"
        f"{_recommendation_html(inspection)}</div>"
    )


def _recommendation_html(inspection: Inspection) -> str:
    if (found := inspection.recommendation) is None:
        return ""
    table = html.table(found.header, [*map(list, found.rows)]) if found.rows else ""
    return f"<p><strong>{html.marked(found.finding)}</strong></p><p>{html.marked(found.text)}</p>{table}"


def inspection_page(inspection: Inspection) -> str:
    """One self-contained HTML page."""
    return html.rendered(
        "inspection.html",
        title=title(inspection),
        advice=inspection.advice,
        recommendation=Markup(_recommendation_html(inspection)),
        metrics=(_METRICS, rows_of_metrics(inspection)),
        divergences=(_DIVERGENCES, rows_of_divergences(inspection)),
        note=_note(inspection),
        sizes=(_SIZES, rows_of_sizes(inspection)),
        pictures=[Markup(html.figure(partial(draw, inspection), alt)) for alt, draw in PICTURES.values()],
        unusual=(_UNUSUAL, rows_of_unusual(inspection)),
        nobody=_NOBODY,
    )


def save_inspection(inspection: Inspection, folder: Path) -> list[Path]:
    """Write inspection.html and the pictures; the paths."""
    page, written = folder / "inspection.html", []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        page.write_text(inspection_page(inspection), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {page}: {error.strerror or error}", fix="choose another --out") from error
    with muster_style():
        for name, (_, draw) in PICTURES.items():
            written.append(folder / f"{name}.png")
            save_figure(draw(inspection), written[-1])
    return [page, *written]
