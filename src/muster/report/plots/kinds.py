"""The pictures by name, for `Result.plot`, `muster plot` and the report."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from muster.core.errors import ConfigError, nearest
from muster.report.plots.canvas import check_picture, save_figure
from muster.report.plots.cluster_numbers import plot_cluster_numbers
from muster.report.plots.clusters import plot_clusters
from muster.report.plots.curves import plot_curves, plot_curves_apart
from muster.report.plots.fairness import plot_fairness
from muster.report.plots.histograms import plot_client_accuracy, plot_selection_frequency
from muster.report.plots.participation import plot_selection_map
from muster.report.plots.ranks import plot_ranks
from muster.report.plots.sensitivity import plot_sensitivity
from muster.report.plots.staleness import plot_staleness
from muster.report.plots.targets import plot_time_to_target
from muster.report.plots.timeline import plot_timeline
from muster.report.plots.weights import plot_weights

if TYPE_CHECKING:
    from muster.server.result import Result

KINDS: dict[str, Callable[..., Figure]] = {
    "curves": plot_curves,
    "curves-apart": plot_curves_apart,
    "selection-map": plot_selection_map,
    "selection-frequency": plot_selection_frequency,
    "client-accuracy": plot_client_accuracy,
    "clusters": plot_clusters,
    "cluster-numbers": plot_cluster_numbers,
    "fairness": plot_fairness,
    "time-to-target": plot_time_to_target,
    "sensitivity": plot_sensitivity,
    "ranks": plot_ranks,
    "weights": plot_weights,
    "timeline": plot_timeline,
    "staleness": plot_staleness,
}


def check_kind(kind: str, options: Mapping[str, Any]) -> None:
    """Refuse unknown pictures, and options that they do not have or that are missing."""
    if kind not in KINDS:
        raise ConfigError(f"unknown picture '{kind}'", expected=nearest(kind, KINDS))
    _, *allowed = inspect.signature(KINDS[kind]).parameters.values()
    names = [option.name for option in allowed]
    for option in options:
        if option not in names:
            raise ConfigError(
                f"'{kind}' has no option '{option}'", expected=nearest(option, names) if names else "none"
            )
    for needed in (option.name for option in allowed if option.default is option.empty):
        if needed not in options:
            raise ConfigError(f"'{kind}' needs the option '{needed}'", fix=f"see docs/plots.md#{kind}")


def draw(kind: str, results: Sequence[Result], *, path: Path | str | None = None, **options: Any) -> Figure:
    """The picture of a kind; saved when a path is given (PNG, SVG or PDF, by its ending)."""
    check_kind(kind, options)
    if path is not None:
        check_picture(Path(path))
    figure = KINDS[kind](results, **options)
    if path is not None:
        save_figure(figure, Path(path))
    return figure
