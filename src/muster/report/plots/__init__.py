"""Pictures of results. One function per picture: it takes results and returns a figure."""

from muster.report.plots.canvas import save_figure
from muster.report.plots.cluster_numbers import plot_cluster_numbers
from muster.report.plots.clusters import plot_clusters
from muster.report.plots.curves import plot_curves, plot_curves_apart
from muster.report.plots.fairness import plot_fairness
from muster.report.plots.histograms import plot_client_accuracy, plot_selection_frequency
from muster.report.plots.kinds import KINDS, check_kind, draw
from muster.report.plots.participation import plot_selection_map
from muster.report.plots.ranks import draw_ranks, plot_ranks
from muster.report.plots.sensitivity import plot_sensitivity
from muster.report.plots.staleness import plot_staleness
from muster.report.plots.targets import plot_time_to_target
from muster.report.plots.timeline import plot_timeline
from muster.report.plots.weights import plot_weights

__all__ = [
    "KINDS",
    "check_kind",
    "draw",
    "draw_ranks",
    "plot_client_accuracy",
    "plot_cluster_numbers",
    "plot_clusters",
    "plot_curves",
    "plot_curves_apart",
    "plot_fairness",
    "plot_ranks",
    "plot_selection_frequency",
    "plot_selection_map",
    "plot_sensitivity",
    "plot_staleness",
    "plot_time_to_target",
    "plot_timeline",
    "plot_weights",
    "save_figure",
]
