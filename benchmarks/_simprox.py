"""SimProx and the methods that it is compared with in its paper; tables and pictures of such a comparison."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.stats import entropy

from _runs import (
    Case,
    Measure,
    Results,
    Study,
    band,
    column,
    last_rounds,
    percent,
    run_missing,
    spread,
    table,
    write_measured,
)
from muster.report.plots import save_figure
from muster.report.style import line_style, muster_style
from muster.report.tables import markdown
from muster.server.result import Result

METRICS = ("accuracy", "precision", "recall", "f1")
#: Averaging over so many last rounds: one round depends much on whose turn it was.
LAST = 5


def cases(mu: float) -> list[Case]:
    """The four methods of the paper, and equal weights: what SimProx comes to when its weights hardly differ."""
    return [
        Case("SimProx", {"aggregation": {"method": "simprox"}}),
        Case("SimAgg", {"aggregation": {"method": "simagg"}}),
        Case("FedProx", {"aggregation": {"method": "fedavg"}, "algorithm": {"method": "fedprox", "mu": mu}}),
        Case("FedAvg", {"aggregation": {"method": "fedavg"}}),
        Case("FedAvg-equal", {"aggregation": {"method": "fedavg", "weights": "equal"}}),
    ]


def scores(results: Results) -> str:
    """Accuracy, precision, recall and F1 of the last rounds, and the lead of SimProx seed by seed."""
    columns: dict[str, Sequence[str]] = {"method": list(results)}
    for metric in METRICS:
        columns[metric.capitalize()] = percent(results, last_rounds(metric, LAST))
    columns["best accuracy"] = percent(results, lambda result: result.best())
    if "SimProx" in results:
        columns["SimProx ahead by, accuracy"] = [_lead(results["SimProx"], runs) for runs in results.values()]
    return markdown(*table(columns))


def _lead(mine: Sequence[Result], theirs: Sequence[Result]) -> str:
    """Seed by seed: the same data, partition, initial model and clients."""
    if mine is theirs:
        return ""
    measure = last_rounds("accuracy", LAST)
    return spread([100 * (measure(a) - measure(b)) for a, b in zip(mine, theirs, strict=True)], "+.2f")


def weights_given(results: Results) -> str:
    """How unequal the aggregation weights were, over all rounds and seeds."""
    measures: dict[str, Measure] = {
        "smallest weight": lambda result: _weights(result).min(),
        "largest weight": lambda result: _weights(result).max(),
        "largest / smallest, mean": lambda result: _ratios(result).mean(),
        "largest / smallest, most": lambda result: _ratios(result).max(),
        "clients that count": lambda result: np.exp(entropy(_weights(result), axis=1)).mean(),
    }
    columns: dict[str, Sequence[str]] = {"method": list(results)}
    columns |= {name: column(results, measure, ".3f") for name, measure in measures.items()}
    return markdown(*table(columns))


def _weights(result: Result) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Rounds × clients of the round."""
    return np.array([training.weights for record in result.records for training in record.trainings])


def _ratios(result: Result) -> np.ndarray[Any, np.dtype[np.float64]]:
    weights = _weights(result)
    return np.asarray(weights.max(axis=1) / weights.min(axis=1))


def plot(results: Results, path: Path, title: str) -> None:
    """Accuracy over rounds; the range of the weights, with the bounds of SimProx's softmax (dashed)."""
    with muster_style():
        figure = Figure(figsize=(10.4, 3.9), layout="constrained")
        FigureCanvasAgg(figure)
        curves, weights = figure.subplots(1, 2)
        for number, (name, runs) in enumerate(results.items()):
            band(curves, runs, label=name, linewidth=1.8, **line_style(number))
        curves.set(xlabel="round", ylabel="accuracy on the global test set")
        curves.legend(fontsize=8)
        for number, name in enumerate(name for name in ("SimProx", "FedAvg") if name in results):
            rows = np.stack([np.sort(_weights(result), axis=1) for result in results[name]]).mean(axis=0)
            rounds = np.arange(1, len(rows) + 1)
            weights.fill_between(rounds, rows[:, 0], rows[:, -1], alpha=0.3, label=name, **_fill(number))
        clients = _weights(next(iter(results.values()))[0]).shape[1]
        weights.axhline(1 / clients, color="black", linewidth=0.8, linestyle=":", label="equal")
        for bound in (1 / (clients - 1 + np.e), np.e / (clients - 1 + np.e)):
            weights.axhline(bound, color="grey", linewidth=0.8, linestyle="--")
        weights.set(xlabel="round", ylabel="smallest to largest weight of a round", ylim=(0, None))
        weights.legend(fontsize=8)
        figure.suptitle(title, fontweight="bold")
        save_figure(figure, path)


def _fill(number: int) -> dict[str, Any]:
    return {"color": line_style(number)["color"], "linewidth": 0}


def make_page(study: Study, chosen: argparse.Namespace, title: str) -> None:
    """Run what is missing, then write tables into the page and draw the picture."""
    results = run_missing(study, chosen)
    content = f"### Mean of the last {LAST} rounds, %\n\n{scores(results)}\n\n"
    content += f"### Weights that clients got\n\n{weights_given(results)}"
    print(content)
    write_measured(chosen.docs / "results" / f"{study.name}.md", content)
    plot(results, chosen.docs / "images" / f"{study.name}.png", title)
