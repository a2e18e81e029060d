"""The pictures by name, for `Result.plot`, `muster plot` and the report."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from muster.errors import ConfigError, nearest
from muster.report.plots.canvas import save_figure
from muster.report.plots.clusters import plot_clusters
from muster.report.plots.curves import plot_curves
from muster.report.plots.fairness import plot_fairness
from muster.report.plots.histograms import plot_client_accuracy, plot_selection_frequency
from muster.report.plots.participation import plot_selection_map
from muster.report.plots.sensitivity import plot_sensitivity
from muster.report.plots.targets import plot_time_to_target

if TYPE_CHECKING:
    from muster.result import Result

KINDS: dict[str, Callable[..., Figure]] = {
    "curves": plot_curves,
    "selection-map": plot_selection_map,
    "selection-frequency": plot_selection_frequency,
    "client-accuracy": plot_client_accuracy,
    "clusters": plot_clusters,
    "fairness": plot_fairness,
    "time-to-target": plot_time_to_target,
    "sensitivity": plot_sensitivity,
}


def draw(kind: str, results: Sequence[Result], *, path: Path | str | None = None, **options: Any) -> Figure:
    """The picture of a kind; saved when a path is given (PNG, SVG or PDF, by its ending)."""
    if kind not in KINDS:
        raise ConfigError(f"unknown picture '{kind}'", expected=nearest(kind, KINDS))
    allowed = list(inspect.signature(KINDS[kind]).parameters)[1:]
    for option in options:
        if option not in allowed:
            raise ConfigError(f"'{kind}' has no option '{option}'", expected=nearest(option, allowed))
    figure = KINDS[kind](results, **options)
    if path is not None:
        save_figure(figure, Path(path))
    return figure
