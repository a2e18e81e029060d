"""Comparisons as rows of text, for terminals, Markdown and CSV."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from muster.result import Result


def accuracy_at_work(
    result: Result, work: float, unit: str = "client_trainings", metric: str = "accuracy"
) -> float:
    """The last measured value at or before an amount of work; NaN when nothing was measured by then."""
    x, y = result.series(metric, unit)
    reached = np.flatnonzero(x <= work)
    return float(y[reached[-1]]) if len(reached) else float("nan")


def comparison_rows(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """Accuracy per round and per client training, and what it cost. The best of each column is marked with *."""
    least = min(result.ledger.total().client_trainings for result in results)
    header = ["method", "accuracy", "at equal work", "clients, mean", "worst client", "trainings", "sent up"]
    scores = np.array(
        [
            [
                result.final("accuracy"),
                accuracy_at_work(result, least),
                result.final("client_accuracy_mean"),
                result.final("client_accuracy_worst"),
            ]
            for result in results
        ]
    )
    rows = []
    for result, own in zip(results, scores, strict=True):
        costs = result.ledger.total()
        best = [len(results) > 1 and value == column for value, column in zip(own, _best(scores), strict=True)]
        cells = [
            "– " if np.isnan(value) else f"{value:.1%}{'*' if top else ' '}"
            for value, top in zip(own, best, strict=True)
        ]
        rows.append([result.name, *cells, f"{costs.client_trainings:,}", readable_bytes(costs.bytes_up)])
    return header, rows


def _best(scores: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[float]:
    return [float(np.nanmax(column)) if not np.isnan(column).all() else float("nan") for column in scores.T]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(cell.strip() for cell in row) + " |" for row in rows)])


def readable_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
