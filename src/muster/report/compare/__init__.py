"""Methods side by side: means over seeds, equal budgets, targets, tests, participation and overhead."""

from muster.report.compare.comparison import TABLES, Comparison, Options, compare
from muster.report.compare.output import FORMATS, for_terminal, format_of, render, write_comparison

__all__ = [
    "FORMATS",
    "TABLES",
    "Comparison",
    "Options",
    "compare",
    "for_terminal",
    "format_of",
    "render",
    "write_comparison",
]
