"""What all pictures share: figures, legends that cover nothing, units on axes, files."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, PercentFormatter

from muster.core.errors import ConfigError, OutputError
from muster.report.style import muster_style
from muster.results.cases import seed_of
from muster.server.result import Result

P = ParamSpec("P")

#: Inches of one panel: wide enough for labels, small enough to stay readable on a phone.
PANEL = (5.4, 3.6)

WHOLE = FuncFormatter(lambda value, _: f"{value:,.0f}")

COUNTS = ("round", "client_trainings", "local_steps", "samples", "longest_wait", "wasted_trainings")
#: Work that is told in seconds, minutes, hours or days.
_TIMES = {"virtual_seconds": "virtual time", "wasted_seconds": "clients' wasted time"}
NAMES = {
    "client_trainings": "client trainings",
    "local_steps": "local steps",
    "samples": "samples trained on",
    "bytes": "bytes sent, up and down",
    "bytes_up": "bytes sent up",
    "bytes_down": "bytes sent down",
    "wasted_trainings": "wasted trainings",
    **_TIMES,
    "accuracy": "accuracy, global test set",
    "loss": "loss, global test set",
    "participant_accuracy": "accuracy, participants' test data",
    "last_iteration_accuracy": "accuracy, test data of the last iteration's clients",
    "client_accuracy_mean": "accuracy, mean of clients",
    "client_accuracy_worst": "accuracy, worst client",
    "client_accuracy_worst_tenth": "accuracy, worst tenth of clients",
    "client_accuracy_std": "spread of clients' accuracies (std)",
    "worst_group_accuracy": "accuracy, worst group",
}


class ShownFigure(Figure):
    """A figure that notebooks show, even if pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()


def picture(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorates the functions that draw: everything in them has the one style."""

    @functools.wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with muster_style():
            return draw(*args, **kwargs)

    return styled


def panels(
    count: int, columns: int = 1, size: tuple[float, float] = PANEL, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels, row by row."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = ShownFigure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **options).ravel().tolist()
    for place, unused in enumerate(axes[count:], start=count):
        unused.set_visible(False)
        # The panel above is the last of its column: with shared axes it would have no numbers.
        axes[place - columns].tick_params(labelbottom=True)
    return figure, axes[:count]


def legend_below(figure: Figure, axes: Sequence[Axes], title: str = "") -> None:
    """One legend for all panels, under them and in as many columns as the names leave room for."""
    shown = [zip(*panel.get_legend_handles_labels(), strict=True) for panel in axes]
    named = {name: handle for panel in shown for handle, name in panel}
    handles, labels = list(named.values()), list(named)
    widest = 0.55 + 0.08 * max(map(len, labels))
    columns = max(1, min(len(labels), int(figure.get_figwidth() / widest)))
    rows = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.2 * (rows - 1))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, title=title, title_fontsize=9)


def label(name: str) -> str:
    """A metric or a unit of work in words."""
    return NAMES.get(name, name.replace("_", " "))


def is_share(metric: str) -> bool:
    return "accuracy" in metric or metric in ("precision", "recall", "f1")


def show_unit(axis: Axis, name: str) -> None:
    """Label and numbers of an axis that shows a metric or work."""
    axis.set_label_text(label(name))
    if is_share(name):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    elif name.startswith("bytes"):
        axis.set_major_formatter(EngFormatter(unit="B"))
        axis.set_major_locator(MaxNLocator(5))
    elif name in COUNTS:
        axis.set_major_locator(whole_ticks())
        axis.set_major_formatter(WHOLE)


def show_work(axis: Axis, name: str, largest: float) -> float:
    """The same for work of up to `largest`; what to divide it by: seconds may become minutes, hours or days."""
    show_unit(axis, name)
    if name not in _TIMES:
        return 1.0
    seconds, unit = time_unit(largest)
    axis.set_label_text(f"{_TIMES[name]}, {unit}")
    return seconds


def whole_ticks(most: int = 6) -> MaxNLocator:
    return MaxNLocator(most, integer=True, steps=[1, 2, 5, 10])


_SHORT = {"seconds": "s", "minutes": "min", "hours": "h", "days": "d"}


def time_unit(largest: float) -> tuple[float, str]:
    """Seconds of the unit in which times up to `largest` seconds are best told, and its name."""
    for seconds, unit in ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes")):
        if largest >= 3 * seconds:
            return seconds, unit
    return 1.0, "seconds"


def amount(name: str, value: float, largest: float) -> str:
    """An amount of work in a few letters: 1,200; 3.5 MB; 12 min. `largest` decides between minutes and hours."""
    if name.startswith("bytes"):
        return EngFormatter(unit="B", places=1)(value)
    if name in _TIMES:
        seconds, unit = time_unit(largest)
        return f"{value / seconds:,.3g} {_SHORT[unit]}"
    return f"{value:,.0f}"


def run_labels(results: Sequence[Result]) -> list[str]:
    """What single runs that are shown together are called."""
    names = labels([result.name for result in results])
    return [f"{name}, seed {seed_of(result)}" for name, result in zip(names, results, strict=True)]


def labels(names: Sequence[str], limit: int = 32) -> list[str]:
    """Names that are shown together, shortened to about `limit` characters.

    On one line, without what matplotlib takes for formulas or hides from legends.

    Names that differ in more than spaces never look the same: where cutting the end would make two alike, they
    lose their middle instead, and no more of it than they can spare.
    """
    whole = [" ".join(name.split()) for name in names]
    ends = {name: _cut(name, limit) for name in whole}
    alike = [name for name, text in ends.items() if list(ends.values()).count(text) > 1]
    shown = ends | {name: _without_middle(name, alike, limit) for name in alike}
    if len(set(shown.values())) < len(shown):
        shown = {name: name for name in whole}
    return [_drawable(shown[name]) for name in whole]


def _cut(name: str, limit: int) -> str:
    return name if len(name) <= limit else name[: limit - 1] + "…"


def _without_middle(name: str, among: Sequence[str], limit: int) -> str:
    """The shortest form without its middle, from `limit` characters up, that no other name has."""
    for length in range(limit, len(name)):
        head = (length - 1) // 2
        short = f"{name[:head]}…{name[head - length + 1 :]}"
        if all(other == name or not _fits(short, other) for other in among):
            return short
    return name


def _fits(short: str, name: str) -> bool:
    head, _, tail = short.partition("…")
    return name.startswith(head) and name.endswith(tail)


def _drawable(name: str) -> str:
    name = name.replace("$", r"\$")
    return f"\u200a{name}" if name.startswith("_") else name


def spread(items: Sequence[int] | np.ndarray[Any, Any], count: int) -> list[int]:
    """At most `count` evenly spaced items, the first and the last among them."""
    chosen = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(np.int64)
    return [int(items[place]) for place in chosen]


def check_picture(path: Path) -> None:
    """Refuse a file whose ending no picture can have, before it is drawn."""
    known = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        raise ConfigError(
            f"cannot draw into {path}: pictures of the kind '{path.suffix}' cannot be written",
            expected=f"a file that ends in .png, .svg or .pdf; also {', '.join(sorted(known))}",
        )


def save_figure(figure: Figure, path: Path) -> None:
    check_picture(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with muster_style():
            figure.savefig(path)
    except OSError as error:
        raise OutputError(f"cannot write the picture {path}: {error.strerror or error}") from error
