"""The critical-difference picture: mean ranks over problems, and which methods cannot be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from muster.core.errors import ConfigError
from muster.report.compare.across import ranked, reached
from muster.report.compare.measures import metric_column
from muster.report.compare.ranking import LEVEL, Ranking, alike
from muster.report.looks import looks
from muster.report.plots.canvas import labels, panels, picture
from muster.report.plots.data import required
from muster.results.problems import problems

if TYPE_CHECKING:
    from muster.server.result import Result

#: Inches between two rows.
_ROW = 0.24
#: Where the critical difference is drawn; the axis is at 0, a row of names takes 0.8.
_TOP = 1.5


@picture
def plot_ranks(results: Sequence[Result], metric: str = "accuracy", *, last: int = 1, title: str = "") -> Figure:
    """Mean ranks of methods over problems; bars join methods that Nemenyi's test cannot tell apart."""
    found = problems(required(results))
    ranking = ranked(found, reached(found, metric, last=last), metric)
    if ranking is None:
        raise ConfigError(
            f"there are no ranks: problems {len(found)}, and not two methods that all of them have with all seeds",
            fix="choose runs of at least two methods on the same two problems or more",
        )
    return draw_ranks(ranking, title or f"{metric_column(metric).title} over {ranking.problems} problems")


@picture
def draw_ranks(ranking: Ranking, title: str) -> Figure:
    """The picture of a ranking that is known: the best on the right, as a good rank should be."""
    count = len(ranking.methods)
    order = np.argsort(ranking.mean, kind="stable")
    stretches = alike(ranking.mean, ranking.critical)
    rows = -(-count // 2)
    figure, (axes,) = panels(1, size=(7.2, 1.6 + _ROW * (rows + 0.6 * len(stretches))))
    _axis(axes, count)
    _critical(axes, ranking)
    for level, (first, last) in enumerate(stretches):
        ends = ranking.mean[order[[first, last]]]
        axes.plot([ends[0] - 0.04, ends[1] + 0.04], [-0.55 - 0.45 * level] * 2, color="0.45", linewidth=3.2)
    _names(axes, ranking, order, rows, below=0.45 * len(stretches))
    axes.set_title(title, loc="left")
    return figure


def _axis(axes: Axes, count: int) -> None:
    axes.set_xlim(count + 0.15, 0.85)
    axes.xaxis.tick_top()
    axes.set_xticks(range(1, count + 1) if count <= 12 else np.linspace(1, count, 8).round().astype(int))
    axes.spines[["left", "right", "bottom"]].set_visible(False)
    # The axis lies among the rest, so that marks stand on it; above it is room for the critical difference.
    axes.spines["top"].set(visible=True, position=("data", 0))
    axes.set_yticks([])
    axes.grid(visible=False)


def _critical(axes: Axes, ranking: Ranking) -> None:
    """The critical difference as a length, with what Friedman's test says."""
    count = len(ranking.methods)
    tested = "" if np.isnan(ranking.friedman_p) else f"; Friedman's p = {ranking.friedman_p:.2g}"
    if ranking.decidable:
        axes.plot([count, count - ranking.critical], [_TOP] * 2, color="0.45", linewidth=1.4, marker="|", ms=7)
        words = f"critical difference {ranking.critical:.2f} ({LEVEL:.0%}){tested}"
    else:
        words = f"too few problems: the critical difference is {ranking.critical:.2f}{tested}"
    axes.text(count, _TOP + 0.35, words, fontsize=8.5, color="0.45", va="bottom", ha="left")


def _names(axes: Axes, ranking: Ranking, order: np.ndarray, rows: int, below: float) -> None:
    """Lines from each mean rank to its name: the better half on the right, the worse on the left."""
    count = len(ranking.methods)
    names = [ranking.methods[place] for place in order]
    shown, looked = labels(names, 30), looks(names)
    edges = {True: 0.85, False: count + 0.15}
    for at, place in enumerate(order):
        good = at < count - rows
        row = at if good else count - 1 - at
        height = -0.9 - below - row * 0.8
        rank, look = float(ranking.mean[place]), looked[at]
        axes.plot([rank, rank, edges[good]], [0, height, height], linewidth=1.1, clip_on=False, **look.line)
        axes.plot([rank], [0], ms=6, clip_on=False, zorder=3, **look.dots)
        gap = -1 if not good else 1
        text = f"{rank:.2f}  {shown[at]}" if good else f"{shown[at]}  {rank:.2f}"
        axes.annotate(
            text,
            (edges[good], height),
            xytext=(5 * gap, 0),
            textcoords="offset points",
            va="center",
            ha="left" if good else "right",
            fontsize=9,
            annotation_clip=False,
        )
    axes.set_ylim(-1.4 - below - 0.8 * (rows - 1), _TOP + 1.1)
