"""A metric over rounds and over work: one line per case, with a band over its seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from muster.core.arrays import Floats
from muster.core.errors import ConfigError, nearest
from muster.report.looks import Look, looks
from muster.report.plots.canvas import (
    PANEL,
    is_share,
    label,
    labels,
    legend_below,
    panels,
    picture,
    show_unit,
    show_work,
)
from muster.report.plots.data import banded, required, series, units
from muster.report.tables import SHARES, UNBOUNDED
from muster.results.cases import Case, cases
from muster.results.problems import Problem, problems
from muster.server.metrics import lower_is_better

if TYPE_CHECKING:
    from muster.server.result import Result

#: Fewer measurements than this are marked one by one.
_FEW = 30


@picture
def plot_curves(
    results: Sequence[Result],
    metric: str = "accuracy",
    *,
    per: str | Sequence[str] | None = None,
    title: str = "",
) -> Figure:
    """One panel for each unit of work (`round`, `client_trainings`, `bytes`, `virtual_seconds`, …).

    By default by rounds, and by virtual time where all runs have it, else by client trainings. A line is the mean
    over a case's seeds, its band the mean's 95 % interval (Student's, from 30 seeds on BCa bootstrap).
    Each problem has panels of its own, and a method looks the same in all of them.
    """
    found, shown = problems(required(results)), units(results, per)
    methods = list(dict.fromkeys(case.name for problem in found for case in problem.cases))
    styles = dict(zip(methods, zip(labels(methods), looks(methods), strict=True), strict=True))
    single = len(found) == 1
    # Within a problem heights are to be compared; those of two problems may differ much.
    figure, axes = panels(len(found) * len(shown), columns=2, size=PANEL, sharey=single)
    for panel, (problem, unit) in zip(axes, product(found, shown), strict=True):
        _curves(panel, problem, metric, unit, styles)
        if not single:
            panel.set_title("\n".join(wrap(problem.name, 44)), loc="left", fontsize=9)
    for panel in axes[::2] if single else axes:
        show_unit(panel.yaxis, metric)
    if title:
        figure.suptitle(title, fontweight="bold")
    note = seeds_note([case for problem in found for case in problem.cases])
    if len(methods) > 1:
        legend_below(figure, axes, note)
    elif note:
        axes[0].set_title(note, loc="left", fontsize=9, fontweight="normal")
    return figure


def _curves(panel: Axes, problem: Problem, metric: str, unit: str, styles: Mapping[str, tuple[str, Look]]) -> None:
    """The lines of a problem's cases over one unit of work."""
    lines = [_line(case, metric, unit) for case in problem.cases]
    one = show_work(panel.xaxis, unit, max(float(x[-1]) for x, *_ in lines))
    for case, line in zip(problem.cases, lines, strict=True):
        name, look = styles[case.name]
        marker = "o" if len(line[0]) < _FEW else None
        _band(panel, line, one, label=name, linewidth=1.8, marker=marker, ms=3, **look.line)


@picture
def plot_curves_apart(
    results: Sequence[Result],
    metric: str = "accuracy",
    *,
    per: str = "round",
    behind: str = "",
    last: int = 1,
    title: str = "",
) -> Figure:
    """One panel per case, best at the end first, for more cases than one panel can show.

    In grey behind all of them: the case `behind`, by default `random` where there is one. The mean of the `last`
    evaluations stands in the titles and decides the order.
    """
    found = cases(required(results))
    if behind and behind not in (known := [case.name for case in found]):
        raise ConfigError(f"no case is called '{behind}'", expected=nearest(behind, known))
    if last < 1:
        raise ConfigError(f"bad value for 'last': {last}", expected="at least 1")
    lines = {case.name: _line(case, metric, per) for case in found}
    ends = {name: float(mean[-last:].mean()) for name, (_, mean, *_) in lines.items()}
    order = sorted(ends, key=ends.__getitem__, reverse=not lower_is_better(metric))
    largest = max(float(work[-1]) for work, *_ in lines.values())
    figure, axes = panels(len(found), columns=6, size=(2.3, 1.8), sharex=True, sharey=True)
    for panel, name, short, look in zip(axes, order, labels(order, 26), looks(order), strict=True):
        one = show_work(panel.xaxis, per, largest)
        show_unit(panel.yaxis, metric)
        for line, shade in ((behind or "random", "0.6"), (name, look.colour)):
            if line in lines:
                _band(panel, lines[line], one, color=shade, linewidth=1.5)
        end = f"{ends[name]:.1%}" if is_share(metric) else f"{ends[name]:.3g}"
        panel.set_title(f"{short}\n", loc="left", fontsize=9)
        panel.text(0, 1.03, end, transform=panel.transAxes, fontsize=8)
        panel.set(ylabel="")
    work = axes[0].get_xlabel()
    for panel in axes:
        panel.set(xlabel="")
    figure.supxlabel(work, fontsize=10)
    figure.supylabel(label(metric), fontsize=10)
    if title:
        figure.suptitle(title, fontweight="bold")
    return figure


def _line(case: Case, metric: str, unit: str) -> tuple[Floats, Floats, Floats, Floats]:
    runs = [series(run, metric, unit) for run in case.runs]
    return banded(runs, limits=SHARES if is_share(metric) else UNBOUNDED)


def _band(axes: Axes, line: tuple[Floats, Floats, Floats, Floats], one: float, **look: Any) -> None:
    """A mean over work, and its interval where there is any."""
    work, mean, low, high = line
    axes.plot(work / one, mean, **look)
    if (high > low).any():
        axes.fill_between(work / one, low, high, color=look["color"], alpha=0.16, linewidth=0)


def seeds_note(found: Sequence[Case]) -> str:
    """What lines and bands are, in a few words; empty where there is one seed only."""
    counts = {len(case.runs) for case in found}
    if counts == {1}:
        return ""
    low, high = min(counts), max(counts)
    return f"mean and its 95 % interval over {high if low == high else f'{low} to {high}'} seeds"
