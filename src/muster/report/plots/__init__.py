"""Pictures of results. One function a picture: it takes results and returns a figure."""

from muster.report.plots.canvas import save_figure
from muster.report.plots.curves import plot_curves
from muster.report.plots.kinds import KINDS, draw
from muster.report.plots.participation import plot_selection_frequency, plot_selection_map

__all__ = ["KINDS", "draw", "plot_curves", "plot_selection_frequency", "plot_selection_map", "save_figure"]
