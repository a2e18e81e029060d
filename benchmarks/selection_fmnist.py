"""Every selection method on Fashion-MNIST, scenario 1* of the Terraform paper: docs/results/selection-fmnist.md.

    python benchmarks/selection_fmnist.py                        run what is missing, write page and picture
    python benchmarks/selection_fmnist.py --methods random oort  only these
    python benchmarks/selection_fmnist.py --seeds 0 1 2          three seeds, mean ± deviation in all cells
    python benchmarks/selection_fmnist.py --rounds 2 --docs /tmp/try --runs /tmp/try     does it work?

Needs the data set in MUSTER_DATA. Can be stopped (Ctrl-C) and goes on with the same command.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from _runs import (
    Case,
    Results,
    Study,
    band,
    column,
    last_rounds,
    options,
    ordered,
    percent,
    run_missing,
    table,
    write_measured,
)
from muster.report.compare.measures import Budget, participation, value
from muster.report.plots import save_figure
from muster.report.style import COLOURS, muster_style
from muster.report.tables import markdown
from muster.selection.base import selectors
from muster.server.ledger import Costs
from muster.server.result import Result

CLIENTS, CLIENTS_PER_ROUND, ROUNDS = 50, 15, 30
COMBINATORS = {"limit-gap", "mix", "warmup", "within"}
#: Its tables of class × attribute need attributes, which Fashion-MNIST does not have.
IMPOSSIBLE = {"feddiverse-qp"}
#: Where the defaults are meant for longer runs or larger models.
CHANGES: dict[str, dict[str, Any]] = {
    "fedcor": {"selection": {"warmup": 10}},
    "fedcs": {"selection": {"candidates": 0.5, "deadline": 60.0}, "devices": {"model": "lognormal"}},
    "hcsfed": {"selection": {"ratio": 0.001}},
    "hics": {"selection": {"temperature": "auto"}},
}
SHARED: dict[str, Any] = {
    "workload": "terraform-fmnist-1-star",
    "model": {"name": "mlp", "hidden": [64]},
    "training": {"lr": 0.05, "schedule": "constant"},
    "selection": {"clients_per_round": CLIENTS_PER_ROUND},
}


def cases() -> list[Case]:
    """One case for each registered method that chooses by itself and that this data set can serve."""
    names = [name for name in selectors.names() if name not in COMBINATORS | IMPOSSIBLE]
    return [Case(name, _changes(name)) for name in names]


def _changes(name: str) -> dict[str, Any]:
    changes = CHANGES.get(name, {})
    return {**changes, "selection": {"method": name, **changes.get("selection", {})}}


def costs(result: Result) -> Costs:
    return result.ledger.total()


def accuracies(results: Results, rounds: int) -> str:
    budget = Budget("client_trainings", rounds * CLIENTS_PER_ROUND)
    columns: dict[str, Sequence[str]] = {
        "method": [f"[{name}](../methods/{name}.md)" for name in results],
        "mean of all rounds": percent(results, lambda result: float(np.mean(result.series("accuracy")[1]))),
        "last 5 rounds": percent(results, last_rounds("accuracy")),
        "last round": percent(results, lambda result: result.final("accuracy")),
        f"after {budget.amount:.0f} trainings": percent(
            results, lambda result: value(result, "accuracy", within=budget)
        ),
        "clients, mean": percent(results, last_rounds("client_accuracy_mean")),
        "worst tenth of clients": percent(results, last_rounds("client_accuracy_worst_tenth")),
        "participants": percent(results, last_rounds("participant_accuracy")),
    }
    return markdown(*table(columns))


def efforts(results: Results) -> str:
    columns: dict[str, Sequence[str]] = {
        "method": list(results),
        "client trainings": column(results, lambda result: costs(result).client_trainings, ",.0f"),
        "MB down": column(results, lambda result: costs(result).bytes_down / 1e6, ",.1f"),
        "MB up": column(results, lambda result: costs(result).bytes_up / 1e6, ",.1f"),
        "probe samples, thousands": column(results, lambda result: costs(result).probe_samples / 1e3, ",.0f"),
        "Gini": column(results, lambda result: participation(result)["gini"], ".2f"),
        "coverage, %": column(results, lambda result: 100 * participation(result)["coverage"], ".0f"),
        "longest wait, rounds": column(results, lambda result: participation(result)["longest_wait"], ".0f"),
    }
    return markdown(*table(columns))


def plot(results: Results, path: Path) -> None:
    """One panel a method, best first, with random selection in grey for comparison."""
    wide = 6
    tall = -(-len(results) // wide)
    with muster_style():
        figure = Figure(figsize=(2.3 * wide, 1.75 * tall + 0.6), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(tall, wide, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, (name, runs) in zip(panels, results.items(), strict=False):
            if "random" in results:
                band(axes, results["random"], color="#9aa5b1", linewidth=1.2)
            band(axes, runs, color=COLOURS[0], linewidth=1.8)
            score = np.mean([last_rounds("accuracy")(result) for result in runs])
            axes.set_title(f"{name}  {score:.1%}", fontsize=9)
        for axes in panels[len(results) :]:
            axes.set_visible(False)
        figure.supxlabel("round")
        figure.supylabel("accuracy on the global test set")
        figure.suptitle("Fashion-MNIST 1*: mean accuracy of the last five rounds in the titles; grey: random")
        save_figure(figure, path)


def main() -> None:
    chosen = options(__doc__, ROUNDS, seeds=[0])
    study = Study("selection-fmnist", SHARED, cases())
    results = ordered(run_missing(study, chosen), last_rounds("accuracy"))
    content = f"### Accuracy, %\n\n{accuracies(results, chosen.rounds)}\n\n"
    content += f"### Cost and participation\n\n{efforts(results)}"
    print(content)
    write_measured(chosen.docs / "results" / "selection-fmnist.md", content)
    plot(results, chosen.docs / "images" / "selection-fmnist.png")


if __name__ == "__main__":
    main()
