"""How much work until a target is reached: bars, with those that never got there told apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from muster.report.compare.measures import better, to_target
from muster.report.looks import looks
from muster.report.plots.canvas import amount, is_share, label, labels, panels, picture, show_work
from muster.report.plots.data import required, series, units
from muster.report.tables import Better
from muster.results.cases import Case, cases

if TYPE_CHECKING:
    from muster.server.result import Result


@picture
def plot_time_to_target(
    results: Sequence[Result],
    target: float | None = None,
    *,
    metric: str = "accuracy",
    per: str | Sequence[str] | None = None,
) -> Figure:
    """Bars: rounds, trainings, bytes or virtual seconds until a metric first reaches a target; mean over seeds.

    Where a seed never gets there its whole work counts: the bar is then a lower bound, and is hatched. Without a
    target it is the worst case's best value, which every case reaches. Wasted trainings (the client
    left, was late, or its answer too stale) follow the bar of client trainings in outline. By default two
    panels: virtual time (without it rounds), and client trainings.
    """
    found = cases(required(results))
    goal = reachable_target(found, metric) if target is None else target
    timed = per is None and "virtual_seconds" in units(results, None)
    shown = ("virtual_seconds", "client_trainings") if timed else units(results, per)
    height = 0.9 + 0.42 * len(found)
    figure, axes = panels(len(shown), columns=2, size=(5.4, height), sharey=True)
    for panel, unit in zip(axes, shown, strict=True):
        ends = [[_end(run, metric, unit, goal) for run in case.runs] for case in found]
        wasted = [0.0] * len(found)
        if unit == "client_trainings":
            wasted = [float(np.mean([_wasted(run, metric, goal) for run in case.runs])) for case in found]
        _bars(panel, unit, ends, wasted, [look.colour for look in looks([case.name for case in found])])
    axes[0].set_yticks(range(len(found)), labels([case.name for case in found], 24))
    axes[0].invert_yaxis()
    goal_text = f"{goal:.1%}" if is_share(metric) else f"{goal:.4g}"
    figure.suptitle(f"until {goal_text} {label(metric)}", fontweight="bold", fontsize=11)
    return figure


def reachable_target(found: Sequence[Case], metric: str) -> float:
    """The best value that every run of every case reached, rounded down to what reads well."""
    if better(metric) is Better.LOWER:
        return max(float(run.series(metric)[1].min()) for case in found for run in case.runs)
    best = min(run.best(metric) for case in found for run in case.runs)
    return float(np.floor(best * 200) / 200) if is_share(metric) else best


def _end(run: Result, metric: str, unit: str, goal: float) -> tuple[float, bool]:
    """The work at which a run first met the goal, and True; else all of its work, and False."""
    work, values = series(run, metric, unit)
    spent = to_target(work, values, goal, better(metric))
    return (float(work[-1]), False) if np.isnan(spent) else (spent, True)


def _wasted(run: Result, metric: str, goal: float) -> float:
    """Wasted trainings until a run first met the goal, or in all."""
    work, values = series(run, metric, "wasted_trainings")
    spent = to_target(work, values, goal, better(metric))
    return float(work[-1]) if np.isnan(spent) else spent


def _bars(
    axes: Axes,
    unit: str,
    ends: Sequence[Sequence[tuple[float, bool]]],
    wasted: Sequence[float],
    shades: Sequence[str],
) -> None:
    means = [float(np.mean([work for work, _ in runs])) for runs in ends]
    one = show_work(axes.xaxis, unit, max(means))
    for row, (runs, mean) in enumerate(zip(ends, means, strict=True)):
        missed = sum(not reached for _, reached in runs)
        bar = axes.barh(row, mean / one, height=0.62, color=shades[row], alpha=0.45 if missed else 0.9)
        if missed:
            bar.patches[0].set(hatch="///", edgecolor=shades[row])
        if len(runs) > 1:
            axes.plot([work / one for work, _ in runs], [row] * len(runs), "|", color="0.5", ms=9, mew=1.2)
        text = amount(unit, mean, max(means))
        if wasted[row]:
            axes.barh(row, wasted[row], left=mean, height=0.62, fill=False, edgecolor=shades[row], linewidth=1)
            text += f" + {amount(unit, wasted[row], wasted[row])} wasted"
        if missed:
            text = f"≥ {text}, {f'{missed} of {len(runs)} ' if len(runs) > 1 else ''}never"
        edge = max([mean + wasted[row], *(work for work, _ in runs)]) / one
        axes.annotate(text, (edge, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
    furthest = max(
        max([mean + more, *(work for work, _ in runs)])
        for runs, mean, more in zip(ends, means, wasted, strict=True)
    )
    # Room for the words behind the longest bar.
    axes.set_xlim(0, (1.8 if any(wasted) else 1.5) * furthest / one or 1)
    if unit == "round":
        axes.set_xlabel("rounds")
    axes.grid(axis="y", visible=False)
