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


def plot_ratios(ratios: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """For every workload, how many times as fast Muster is as each side: one is level."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    from muster.report.style import COLOURS, muster_style

    sides = list(dict.fromkeys(side for row in ratios.values() for side in row))
    colours = {side: COLOURS[number % len(COLOURS)] for number, side in enumerate(sides)}
    rows = [(workload, side, ratio) for workload, row in ratios.items() for side, ratio in row.items()][::-1]
    with muster_style():
        figure, axes = plt.subplots(figsize=(7.6, 0.3 * len(rows) + 1.2), layout="constrained")
        for place, (_, side, ratio) in enumerate(rows):
            axes.plot([1, ratio], [place, place], color=colours[side], lw=3, solid_capstyle="butt")
            axes.plot(ratio, place, "o", color=colours[side])
            axes.annotate(f"{ratio:.3g}", (ratio, place), xytext=(7, 0), textcoords="offset points", va="center")
        axes.axvline(1, color="#222222", lw=1)
        axes.set_xscale("log")
        axes.set_xlim(0.5, 3 * max(ratio for _, _, ratio in rows))
        axes.set_yticks(range(len(rows)), [f"{workload} | {side}" for workload, side, _ in rows])
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("Muster is … times as fast (logarithmic)")
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        figure.savefig(path)
        plt.close(figure)
