"""Results and comparisons in a notebook: short, so that a cell that shows one stays readable."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from muster.report.compare.comparison import Comparison
from muster.report.compare.measures import curve, metric_column
from muster.report.headline import headlines
from muster.report.render import to_html
from muster.report.style import COLOURS
from muster.report.tables import readable_bytes
from muster.server.result import Result

#: Points of a line, and rows of a table: a glance, not a report.
_POINTS, _ROWS = 60, 12
_WIDTH, _HEIGHT = 260, 70


def result_html(result: Result) -> str:
    """Name, rounds, scores and costs in a table of one row, with the curve of the accuracy."""
    costs = result.ledger.total()
    facts = [
        ("rounds", f"{len(result.records):,}{'' if result.complete else ', not complete'}"),
        *_scores(result),
        ("client trainings", f"{costs.client_trainings:,}"),
        ("sent", readable_bytes(costs.bytes_down + costs.bytes_up)),
        *([("virtual time", f"{costs.virtual_seconds:,.1f} s")] if costs.virtual_seconds else []),
    ]
    head = "".join(f"<th>{html.escape(name)}</th>" for name, _ in facts)
    row = "".join(f"<td>{html.escape(text)}</td>" for _, text in facts)
    lines = [curve(result, "accuracy")] if result.records else []
    return (
        f"<div><strong>{html.escape(result.name or 'run')}</strong>{_sparklines(lines)}"
        f"<table><tr>{head}</tr><tr>{row}</tr></table></div>"
    )


def comparison_html(comparison: Comparison) -> str:
    """The headline, the curves, and the table of scores."""
    lines = [curve(case.runs[0], comparison.options.metric) for case in comparison.cases[: len(COLOURS)]]
    said = " ".join(sentence for sentences in headlines(comparison) for sentence in sentences)
    body = ""
    # Of several problems, the table over all of them; of one, its scores.
    tables = comparison.across or comparison.tables
    if (scores := next(iter(tables.values()), None)) is not None:
        body = to_html(replace(scores, rows=scores.rows[:_ROWS]))
        if len(scores.rows) > _ROWS:
            body += f"<p>and {len(scores.rows) - _ROWS} more cases</p>"
    return f"<div><p><strong>{html.escape(said)}</strong></p>{_sparklines(lines)}{body}</div>"


def _scores(result: Result) -> list[tuple[str, str]]:
    measured = result.records[-1].metrics if result.records else {}
    found = []
    for metric in ("accuracy", "loss", "client_accuracy_worst_tenth", "worst_group_accuracy"):
        if metric in measured and not math.isnan(value := result.final(metric)):
            column = metric_column(metric)
            found.append((column.title, f"{column.shown(value)}{f' {column.unit}' if column.unit else ''}"))
    return found


def _sparklines(lines: Sequence[tuple[np.ndarray, np.ndarray]]) -> str:
    """Curves without axes; nothing where no line has two points."""
    drawn = [(work, values) for work, values in lines if len(work) > 1]
    if not drawn:
        return ""
    low, high = min(float(v.min()) for _, v in drawn), max(float(v.max()) for _, v in drawn)
    end = max(float(work[-1]) for work, _ in drawn)
    paths = []
    for number, (work, values) in enumerate(drawn):
        places = np.unique(np.linspace(0, len(work) - 1, _POINTS).astype(np.int64))
        x = _WIDTH * work[places] / end
        y = _HEIGHT - 4 - (_HEIGHT - 8) * (values[places] - low) / ((high - low) or 1)
        points = " ".join(f"{a:.0f},{b:.0f}" for a, b in zip(x, y, strict=True))
        stroke = COLOURS[number % len(COLOURS)]
        paths.append(f'<polyline points="{points}" fill="none" stroke="{stroke}" stroke-width="2"/>')
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'aria-label="from {low:.3g} to {high:.3g}" style="display:block">{"".join(paths)}</svg>'
    )
