"""A metric over rounds and over work: one line a case, with a band over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from muster.report.plots.canvas import PANEL, legend_below, panels, picture, shortened, show_unit, show_work
from muster.report.plots.data import averaged, required, series
from muster.report.style import line_style
from muster.results.cases import Case, cases

if TYPE_CHECKING:
    from muster.server.result import Result

#: Fewer measurements than this are marked one by one.
_FEW = 30


@picture
def plot_curves(
    results: Sequence[Result],
    metric: str = "accuracy",
    *,
    per: str | Sequence[str] = ("round", "client_trainings"),
    title: str = "",
) -> Figure:
    """One panel for each unit of work (`round`, `client_trainings`, `bytes`, `virtual_seconds`, …).

    A line is the mean over a case's seeds, its band one standard deviation to both sides.
    """
    found = cases(required(results))
    units = (per,) if isinstance(per, str) else tuple(per)
    figure, axes = panels(len(units), columns=2, size=PANEL, sharey=True)
    for panel, unit in zip(axes, units, strict=True):
        lines = [averaged([series(run, metric, unit) for run in case.runs]) for case in found]
        one = show_work(panel.xaxis, unit, max(float(x[-1]) for x, _, _ in lines))
        for number, (case, (work, mean, deviation)) in enumerate(zip(found, lines, strict=True)):
            x, look = work / one, line_style(number)
            name = shortened(case.name)
            panel.plot(x, mean, label=name, linewidth=1.8, marker="o" if len(x) < _FEW else None, ms=3, **look)
            if len(case.runs) > 1:
                panel.fill_between(
                    x, mean - deviation, mean + deviation, color=look["color"], alpha=0.16, linewidth=0
                )
    for left in axes[::2]:
        show_unit(left.yaxis, metric)
    if title:
        figure.suptitle(title, fontweight="bold")
    if len(found) > 1:
        legend_below(figure, axes[0], seeds_note(found))
    elif note := seeds_note(found):
        axes[0].set_title(note, loc="left", fontsize=9, fontweight="normal")
    return figure


def seeds_note(found: Sequence[Case]) -> str:
    """What lines and bands are, in a few words; empty where there is one seed only."""
    counts = {len(case.runs) for case in found}
    if counts == {1}:
        return ""
    low, high = min(counts), max(counts)
    return f"mean ± standard deviation over {high if low == high else f'{low} to {high}'} seeds"
