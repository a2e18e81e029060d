"""Numbers with their spread, ratios of interleaved runs, the machine; as text, as Markdown and as a picture."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import psutil


@dataclass(frozen=True)
class Rates:
    """Samples per second of one side, one number a repeat."""

    title: str
    values: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)


def paired_ratio(mine: Rates, theirs: Rates) -> float:
    """Median of the ratios within repeats: what slows the machine for a while slows both and cancels."""
    return statistics.median(a / b for a, b in zip(mine.values, theirs.values, strict=True))


@dataclass(frozen=True)
class Target:
    """A ratio that Muster is to reach against a side."""

    against: str
    at_least: float


def rate_table(rates: Mapping[str, Rates], subject: str = "muster") -> list[list[str]]:
    """Rows (header first): side, median, spread, and how many times as fast Muster is."""
    rows = [["side", "samples/s, median", "smallest – largest", "Muster is … times as fast"]]
    for name, side in rates.items():
        ratio = "" if name == subject else f"{paired_ratio(rates[subject], side):.2f}"
        spread = f"{min(side.values):,.0f} – {max(side.values):,.0f}"
        rows.append([side.title, f"{side.median:,.0f}", spread, ratio])
    return rows


def as_text(rows: Sequence[Sequence[str]]) -> str:
    """A table for the terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """The same table for a page."""
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


def verdict(target: Target, rates: Mapping[str, Rates], subject: str = "muster") -> str:
    """One line: the ratio, the target, and whether it was reached."""
    ratio = paired_ratio(rates[subject], rates[target.against])
    word = "reached" if ratio >= target.at_least else "NOT reached"
    return f"{ratio:.2f} × {rates[target.against].title} (target ≥ {target.at_least}): {word}"


def machine() -> str:
    """The hardware in one line."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = psutil.virtual_memory().total / 2**30
    return f"{model}, {cores} cores, {memory:.0f} GiB, {platform.system()}, Python {platform.python_version()}"


def plot_rates(rates: Mapping[str, Rates], path: Path, title: str, subject: str = "muster") -> None:
    """Bars of the medians with whiskers from the smallest to the largest repeat."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    from muster.report.style import COLOURS, muster_style

    sides = list(rates.values())[::-1]
    colours = [COLOURS[0] if name == subject else "#9aa5b1" for name in rates][::-1]
    medians = [side.median for side in sides]
    whiskers = [
        [side.median - min(side.values) for side in sides],
        [max(side.values) - side.median for side in sides],
    ]
    with muster_style():
        figure, axes = plt.subplots(figsize=(7.2, 0.55 * len(sides) + 1.1), layout="constrained")
        axes.barh([side.title for side in sides], medians, color=colours, height=0.62)
        axes.errorbar(medians, range(len(sides)), xerr=whiskers, fmt="none", ecolor="#222222", capsize=3, lw=1)
        for row, side in enumerate(sides):
            axes.annotate(
                f"{side.median:,.0f}",
                (max(side.values), row),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
            )
        axes.set_xlim(0, 1.14 * max(max(side.values) for side in sides))
        axes.set_xlabel("training samples per second (median; whiskers: smallest and largest repeat)")
        axes.set_title(title, loc="left")
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        figure.savefig(path)
        plt.close(figure)
