"""Results and comparisons in a notebook: short, so that a cell that shows one stays readable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from muster.core.arrays import Floats
from muster.report import html
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
_TEMPLATE = "notebook.html"


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
    lines = [("accuracy", curve(result, "accuracy"))] if result.records else []
    return html.part("result", result.name or "run", facts, _sparklines(lines), template=_TEMPLATE)


def comparison_html(comparison: Comparison) -> str:
    """The headline, the curves, and the table of scores."""
    lines = [
        (case.name, curve(case.runs[0], comparison.options.metric)) for case in comparison.cases[: len(COLOURS)]
    ]
    said = " ".join(sentence for sentences in headlines(comparison) for sentence in sentences)
    # Of several problems, the table over all of them; of one, its scores.
    scores = next(iter((comparison.across or comparison.tables).values()), None)
    table, more = "", 0
    if scores is not None:
        table, more = to_html(replace(scores, rows=scores.rows[:_ROWS])), max(0, len(scores.rows) - _ROWS)
    return html.part("comparison", said, _sparklines(lines), table, more, template=_TEMPLATE)


def _scores(result: Result) -> list[tuple[str, str]]:
    measured = result.records[-1].metrics if result.records else {}
    found = []
    for metric in ("accuracy", "loss", "client_accuracy_worst_tenth", "worst_group_accuracy"):
        if metric in measured and not math.isnan(value := result.final(metric)):
            column = metric_column(metric)
            found.append((column.title, f"{column.shown(value)}{f' {column.unit}' if column.unit else ''}"))
    return found


def _sparklines(lines: Sequence[tuple[str, tuple[Floats, Floats]]]) -> dict[str, Any]:
    """Curves without axes, as a template draws them; nothing where no line has two points."""
    known = [(name, work, values) for name, (work, values) in lines if len(work) > 1]
    if not known:
        return {}
    low, high = (float(pick([pick(values) for _, _, values in known])) for pick in (np.min, np.max))
    end = max(float(work[-1]) for _, work, _ in known)
    drawn = []
    for number, (name, work, values) in enumerate(known):
        places = np.unique(np.linspace(0, len(work) - 1, _POINTS).astype(np.int64))
        x = _WIDTH * work[places] / end
        y = _HEIGHT - 4 - (_HEIGHT - 8) * (values[places] - low) / ((high - low) or 1)
        points = " ".join(f"{a:.0f},{b:.0f}" for a, b in zip(x, y, strict=True))
        drawn.append({"name": name, "points": points, "stroke": COLOURS[number % len(COLOURS)]})
    return {"width": _WIDTH, "height": _HEIGHT, "label": f"from {low:.3g} to {high:.3g}", "drawn": drawn}
