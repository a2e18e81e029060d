"""Curves of a metric over rounds and over work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from muster.errors import OutputError
from muster.report.style import line_style, muster_style

if TYPE_CHECKING:
    from muster.result import Result

_NAMES = {
    "round": "round",
    "client_trainings": "client trainings",
    "local_steps": "local steps",
    "samples": "samples trained on",
    "bytes_up": "bytes up",
    "bytes_down": "bytes down",
    "virtual_seconds": "virtual seconds",
    "accuracy": "accuracy on the global test set",
    "loss": "loss on the global test set",
    "participant_accuracy": "accuracy on participants' test data",
    "client_accuracy_mean": "mean accuracy on clients' test data",
}


def plot_curves(
    results: Sequence[Result],
    metric: str = "accuracy",
    *,
    per: Sequence[str] = ("round", "client_trainings"),
    path: Path | str | None = None,
    title: str = "",
) -> Figure:
    """One panel for each unit of work, one line for each result."""
    with muster_style():
        figure = Figure(figsize=(5.2 * len(per), 3.8), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(1, len(per), sharey=True, squeeze=False)[0]
        for panel, unit in zip(panels, per, strict=True):
            for number, result in enumerate(results):
                x, y = result.series(metric, unit)
                marker = "o" if len(x) < 30 else None
                panel.plot(
                    x, y, label=result.name or "run", linewidth=1.8, marker=marker, ms=3, **line_style(number)
                )
            panel.set_xlabel(_NAMES.get(unit, unit))
        panels[0].set_ylabel(_NAMES.get(metric, metric.replace("_", " ")))
        if title:
            figure.suptitle(title, fontweight="bold")
        if len(results) > 1:
            handles, labels = panels[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(results)))
        if path is not None:
            save_figure(figure, Path(path))
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise OutputError(f"cannot write the picture {path}: {error.strerror or error}") from error
