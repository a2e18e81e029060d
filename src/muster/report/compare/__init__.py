"""Methods side by side: means over seeds, equal budgets, targets, tests, ranks over problems."""

from muster.report.compare.comparison import TABLES, Comparison, Judged, Options, compare, judge
from muster.report.compare.output import FORMATS, for_terminal, format_of, render, write_comparison

__all__ = [
    "FORMATS",
    "TABLES",
    "Comparison",
    "Judged",
    "Options",
    "compare",
    "for_terminal",
    "format_of",
    "judge",
    "render",
    "write_comparison",
]
