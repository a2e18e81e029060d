"""Who worked, waited, came too late or left, by virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from muster.core.arrays import Bools, Floats, Ints
from muster.core.errors import ConfigError
from muster.report.flights import FlightTable, at_work, flights_of
from muster.report.plots.canvas import panels, picture, run_labels, spread, time_unit, whole_ticks
from muster.report.plots.data import required
from muster.report.style import colour

if TYPE_CHECKING:
    from muster.server.result import Result

#: What becomes of a training: its name in the legend, the number of its colour, and how strong that is.
_FATES = (
    ("used, up to date", 0, 1.0),
    ("used, 1–2 behind", 4, 1.0),
    ("used, 3–5 behind", 4, 0.65),
    ("used, more behind", 4, 0.35),
    ("too stale", 5, 1.0),
    ("given up on: late", 1, 1.0),
    ("left before it answered", 3, 1.0),
    ("failed, refused or left out", 6, 1.0),
)
#: Aggregations that each of the first kinds may have missed.
_BEHIND = (0, 2, 5)
#: Rows of a run, alone and among others.
_ROWS_ALONE, _ROWS_AMONG = 60, 30
#: Rounds that are parted by lines; of more, the lines would hide what is between them.
_MAX_LINES = 60
_MOMENTS = 600


@picture
def plot_timeline(
    results: Sequence[Result], *, clients: int | None = None, first: int = 1, last: int | None = None
) -> Figure:
    """Trainings as bars over virtual time, one row per client, the fastest clients on top; two panels per run.

    Above: how many clients are at work, by what becomes of their training. A thin line after a bar: the answer is
    there, and waits for the server to go on. At most `clients` rows (60, or 30 of each of several runs), from the
    fastest to the slowest; `first` and `last` are the rounds that are shown.
    """
    tables = [_shown(result, first, last) for result in required(results)]
    most = (_ROWS_ALONE if len(tables) == 1 else _ROWS_AMONG) if clients is None else clients
    if most < 1:
        raise ConfigError(f"bad value for 'clients': {clients}", expected="at least 1")
    heights = [1.3 + 0.058 * min(len(np.unique(table.clients)), most) for table in tables]
    figure, axes = panels(
        2 * len(tables),
        size=(8.0, (sum(heights) + 1.5 * len(tables)) / (2 * len(tables))),
        height_ratios=[share for height in heights for share in (1.0, height)],
    )
    fates = np.zeros(len(_FATES), dtype=np.bool_)
    rows = zip(results, run_labels(results), tables, axes[::2], axes[1::2], strict=True)
    for result, name, table, above, below in rows:
        rounds = slice(first - 1, last)
        ends = np.array([record.ended for record in result.records[rounds]])
        fates |= _draw(above, below, table, ends, most)
        above.set_title(name, loc="left")
    handles: list[Patch | Line2D] = [
        Patch(color=to_rgba(colour(shade), strength), label=name, linewidth=0)
        for (name, shade, strength), there in zip(_FATES, fates, strict=True)
        if there
    ]
    handles.append(Line2D([], [], color="0.6", linewidth=0.8, label="answered, waits"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)))
    return figure


def fates_of(flights: FlightTable) -> Ints:
    """What became of each training, as a position in the legend."""
    used = flights.ended_as("used")
    conditions = [
        *(used & (flights.staleness <= most) for most in _BEHIND),
        used,
        flights.ended_as("stale"),
        flights.ended_as("late"),
        flights.ended_as("left"),
    ]
    return np.select(conditions, range(len(conditions)), default=len(_FATES) - 1)


def _shown(result: Result, first: int, last: int | None) -> FlightTable:
    table = flights_of(result)
    if not len(table):
        raise ConfigError(
            f"the run '{result.name}' has no virtual time", fix="give the experiment a section [devices]"
        )
    inside = (table.rounds >= first) & (table.rounds <= (len(result.records) if last is None else last))
    if not inside.any():
        raise ConfigError(
            f"the run '{result.name}' has no trainings in the rounds {first} to {last}",
            expected=f"rounds between 1 and {len(result.records)}",
        )
    return table.rows(inside)


def _draw(above: Axes, below: Axes, table: FlightTable, ends: Floats, most: int) -> Bools:
    """Both panels of a run; which fates there are."""
    start, end = float(table.started.min()), float(max(table.taken.max(), table.ended.max()))
    one, unit = time_unit(end)
    fates = fates_of(table)
    _draw_counts(above, table, fates, np.linspace(start, end, _MOMENTS), one)
    rows = _rows(table, most)
    _draw_bars(below, table, fates, rows, one)
    for panel in (above, below):
        panel.set_xlim(start / one, end / one)
        if len(ends) <= _MAX_LINES:
            for moment in ends.tolist():
                panel.axvline(moment / one, color="0.5", linewidth=0.5, alpha=0.5, zorder=0)
    above.tick_params(labelbottom=False)
    below.set_xlabel(f"virtual time, {unit}")
    return np.bincount(fates, minlength=len(_FATES)) > 0


def _draw_counts(axes: Axes, table: FlightTable, fates: Ints, moments: Floats, one: float) -> None:
    layers = [at_work(table.rows(fates == fate), moments) for fate in range(len(_FATES))]
    shades = [to_rgba(colour(shade), strength) for _, shade, strength in _FATES]
    axes.stackplot(moments / one, layers, colors=shades, step="post", linewidth=0)
    axes.set_ylabel("at work")
    axes.set_ylim(0)
    axes.yaxis.set_major_locator(whole_ticks(4))


def _rows(table: FlightTable, most: int) -> dict[int, int]:
    """Client → row: the fastest on top; of many, some from the fastest to the slowest."""
    who, which = np.unique(table.clients, return_inverse=True)
    seconds = np.bincount(which, table.ended - table.started) / np.bincount(which)
    ranked = who[np.argsort(seconds, kind="stable")]
    return {client: row for row, client in enumerate(spread(ranked, most))}


def _draw_bars(axes: Axes, table: FlightTable, fates: Ints, rows: dict[int, int], one: float) -> None:
    ids = np.array(list(rows))
    shown = np.flatnonzero(np.isin(table.clients, ids))
    place = np.array([rows[client] for client in table.clients[shown].tolist()])
    part = table.rows(shown)
    thickness = max(1.2, min(5.0, 200 / len(rows)))
    waiting = (part.taken > part.ended) & ~part.ended_as("left", "late")
    spans = np.column_stack([part.started, part.ended, part.taken]) / one
    _lines(axes, spans[waiting, 1:], place[waiting], "0.6", 0.8)
    for fate, (_, shade, strength) in enumerate(_FATES):
        mine = fates[shown] == fate
        _lines(axes, spans[mine, :2], place[mine], to_rgba(colour(shade), strength), thickness)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks([])
    axes.grid(axis="y", visible=False)
    every = len(np.unique(table.clients))
    some = f"{len(rows)} of {every:,} clients" if len(rows) < every else f"{every} clients"
    axes.set_ylabel(f"{some}, fastest first")


def _lines(
    axes: Axes, spans: Floats, place: Ints, shade: str | tuple[float, float, float, float], thickness: float
) -> None:
    """A line from each span's beginning to its end, in its row."""
    segments = np.stack([spans, np.column_stack([place, place])], axis=2)
    axes.add_collection(LineCollection(list(segments), colors=shade, linewidths=thickness, capstyle="butt"))
