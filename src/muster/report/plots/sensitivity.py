"""How a result depends on a hyper-parameter: one line for each of the other settings, with a band over seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from muster.core.arrays import Floats
from muster.core.errors import ConfigError
from muster.report.intervals import mean_interval
from muster.report.looks import looks
from muster.report.plots.canvas import labels, legend_below, panels, picture, show_unit
from muster.report.plots.curves import seeds_note
from muster.report.plots.data import required
from muster.results.cases import Case, by_settings, cases, differing, flat, names

if TYPE_CHECKING:
    from muster.server.result import Result

#: A parameter whose values span at least this factor is shown on a logarithmic axis.
_WIDE = 20


@picture
def plot_sensitivity(results: Sequence[Result], key: str, *, metric: str = "accuracy") -> Figure:
    """The final value of a metric over a setting such as `selection.min_clients`; mean and its 95 % interval."""
    values = _values(required(results), key)
    groups = by_settings(results, free=(key,))
    figure, (axes,) = panels(1)
    places = _axis(axes, values)
    lines = [cases(runs) for runs in groups]
    called = names(groups, free=(key,))
    for name, look, line in zip(labels(called), looks(called), lines, strict=True):
        x, mean, low, high = _line(line, key, places, metric)
        axes.plot(x, mean, label=name, marker="o", ms=5, linewidth=1.8, **look.line)
        axes.fill_between(x, low, high, color=look.colour, alpha=0.16, linewidth=0)
    axes.set_xlabel(key)
    show_unit(axes.yaxis, metric)
    note = seeds_note([case for line in lines for case in line])
    if len(lines) > 1:
        legend_below(figure, [axes], note)
    else:
        axes.set_title(note, loc="left", fontsize=9, fontweight="normal")
    return figure


def _values(results: Sequence[Result], key: str) -> list[Any]:
    """The different values of a setting; numbers in order, other values as they come."""
    settings = [flat(result.config) for result in results]
    if not any(key in own for own in settings):
        raise ConfigError(f"no run has a setting '{key}'", expected=_candidates(results))
    for result, own in zip(results, settings, strict=True):
        if key not in own:
            raise ConfigError(f"the run '{result.name}' does not set '{key}'", fix="leave it out, or set the key")
    distinct = {json.dumps(own[key]): own[key] for own in settings}
    if len(distinct) < 2:
        raise ConfigError(
            f"'{key}' is {next(iter(distinct))} in all runs: there is no line to draw",
            expected=_candidates(results),
        )
    found = list(distinct.values())
    return sorted(found) if _numeric(found) else found


def _candidates(results: Sequence[Result]) -> str:
    keys = [key for key in differing([result.config for result in results]) if key not in ("name", "seed")]
    return f"a setting that differs between the runs: {', '.join(keys) or 'there is none'}"


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _axis(axes: Axes, values: Sequence[Any]) -> dict[str, float]:
    """Set up the axis of the parameter; where each value stands on it."""
    if not _numeric(values):
        axes.set_xticks(range(len(values)), labels([str(value) for value in values], 16))
        return {json.dumps(value): float(place) for place, value in enumerate(values)}
    if values[0] > 0 and values[-1] / values[0] >= _WIDE:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    if len(values) <= 8:
        axes.xaxis.set_major_locator(FixedLocator([float(value) for value in values]))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    return {json.dumps(value): float(value) for value in values}


def _line(line: Sequence[Case], key: str, places: dict[str, float], metric: str) -> tuple[Floats, ...]:
    """Places, means and the two ends of their intervals, in the order of the axis."""
    finals = [np.array([run.final(metric) for run in case.runs]) for case in line]
    x = np.array([places[json.dumps(flat(case.runs[0].config)[key])] for case in line])
    mean = np.array([final.mean() for final in finals])
    ends = [mean_interval(final) if len(final) > 1 else (final[0], final[0]) for final in finals]
    low, high = np.array(ends).T
    order = np.argsort(x)
    return x[order], mean[order], low[order], high[order]
