"""FedDiverse and its baselines on coloured MNIST, worst-group accuracy: docs/results/feddiverse-cmnist.md.

    python benchmarks/feddiverse_cmnist.py                          run what is missing, write page and picture
    python benchmarks/feddiverse_cmnist.py --methods random feddiverse --seeds 0
    python benchmarks/feddiverse_cmnist.py --rounds 5 --seeds 0 --docs /tmp/try --runs /tmp/try     does it work?

Needs MNIST in MUSTER_DATA. Can be stopped (Ctrl-C) and goes on with the same command.
"""

from __future__ import annotations

import itertools
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
from muster.core.arrays import Floats
from muster.engine.base import AskOrder
from muster.engine.task import Place
from muster.experiment.runner import build_parts
from muster.heterogeneity.metrics import triplets
from muster.report.plots import save_figure
from muster.report.style import line_style, muster_style
from muster.report.tables import markdown
from muster.selection.feddiverse import FedDiverse
from muster.server.result import Result

CLIENTS, ROUNDS, SEEDS = 24, 40, (0, 1, 2)
#: Rounds of training with everybody before the triplets are estimated (T₀).
PRETRAINING = (1, 20)
MOMENTUM = 0.5
#: Client trainings of a method that trains nine clients in every round.
TRAININGS = 9 * ROUNDS
WORST = "worst_group_accuracy"
SHARED: dict[str, Any] = {
    "workload": "feddiverse-cmnist-gsc",
    "model": {"name": "group-norm-cnn", "widths": [8, 16, 32], "groups": 4, "grid": 7},
    "training": {"lr": 0.01},
    "aggregation": {"method": "fedavgm", "weights": "equal", "momentum": MOMENTUM},
    "evaluation": {"every": 4},
}
#: Worst-group accuracy on CMNIST_GSC in the paper: table I, MobileNetV2 from ImageNet weights, 200 rounds.
PUBLISHED = {
    "feddiverse": "94.01 ± 0.98",
    "random": "92.00 ± 1.61",
    "round-robin": "93.51 ± 0.49",
    "fednova, all clients": "93.23 ± 0.34",
    "power-of-choice": "92.85 ± 0.47",
    "fedpns": "91.49 ± 1.42",
    "hcsfed": "91.45 ± 1.11",
}


def cases() -> list[Case]:
    equal = {"equal_weights": False}  # the aggregation counts clients equally already
    return [
        Case("feddiverse", {"selection": {"method": "feddiverse"}}),
        Case("feddiverse, true triplets", {"selection": {"method": "feddiverse", "estimate": "true"}}),
        Case("random", {"selection": {"method": "random"}}),
        Case("round-robin", {"selection": {"method": "round-robin"}}),
        Case("power-of-choice", {"selection": {"method": "power-of-choice", "d": CLIENTS} | equal}),
        Case("hcsfed", {"selection": {"method": "hcsfed", "ratio": 0.01} | equal}),
        Case("fedpns", {"selection": {"method": "fedpns"} | equal}),
        Case(
            "fednova, all clients",
            {
                "selection": {"method": "random", "clients_per_round": CLIENTS},
                "aggregation": {"method": "fednova", "weights": "equal", "momentum": MOMENTUM},
            },
        ),
    ]


def estimated_triplets(study: Study, seed: int, pretraining: int) -> tuple[Floats, Floats]:
    """Estimated and true triplets of all clients after some rounds of training with everybody."""
    everybody = Case("pre-training", {"selection": {"method": "random", "clients_per_round": CLIENTS}})
    parts = build_parts(study.experiment(everybody, seed, pretraining))
    with parts.engine as engine:
        parameters = parts.server().run(pretraining).parameters
        (signal,) = FedDiverse(clients_per_round=9).needs()
        lr = engine.training.learning_rate(pretraining, ROUNDS)
        order = AskOrder(np.arange(CLIENTS), parameters, Place(pretraining, 0, 0), lr, (signal,))
        replies, _ = engine.ask(order)
    counts = parts.data.group_counts
    assert counts is not None
    return replies[signal.name], triplets(counts)


def correlations(study: Study, seeds: Sequence[int]) -> str:
    """Pearson r over the clients of each component, one row a length of the pre-training and seed."""
    rows = []
    for pretraining, seed in itertools.product(PRETRAINING, seeds):
        estimated, true = estimated_triplets(study, seed, pretraining)
        r = [np.corrcoef(estimated[:, part], true[:, part])[0, 1] for part in range(3)]
        error = np.abs(estimated - true).max(axis=0)
        cells = [*(f"{value:.2f}" for value in r), *(f"{value:.3f}" for value in error)]
        rows.append([str(pretraining), str(seed), *cells])
    header = [
        "T₀",
        "seed",
        "r, CI",
        "r, AI",
        "r, SC",
        "largest error, CI",
        "largest error, AI",
        "largest error, SC",
    ]
    return markdown(header, rows)


def at_equal_work(result: Result) -> float:
    """The mean of the last five evaluations before more clients had trained than with random selection in all."""
    work, values = result.series(WORST, per="client_trainings")
    return float(np.mean(values[work <= TRAININGS][-5:]))


def scores(results: Results) -> str:
    columns: dict[str, Sequence[str]] = {
        "method": list(results),
        "worst group, last 20 rounds": percent(results, last_rounds(WORST)),
        "worst group, last round": percent(results, lambda result: result.final(WORST)),
        "worst group, best round": percent(results, lambda result: result.best(WORST)),
        f"worst group, up to {TRAININGS} trainings": percent(results, at_equal_work),
        "accuracy, last 20 rounds": percent(results, last_rounds("accuracy")),
        "client trainings": column(results, lambda result: result.ledger.total().client_trainings, ",.0f"),
        "worst group, paper": [PUBLISHED.get(name, "–") for name in results],
    }
    return markdown(*table(columns))


def plot(results: Results, path: Path) -> None:
    with muster_style():
        figure = Figure(figsize=(8.0, 4.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for number, (name, runs) in enumerate(results.items()):
            look = {"label": name, "linewidth": 1.6, **line_style(number)}
            if name in ("feddiverse", "random"):  # eight bands would hide each other
                band(axes, runs, WORST, **look)
            else:
                axes.plot(
                    runs[0].series(WORST)[0], np.mean([run.series(WORST)[1] for run in runs], axis=0), **look
                )
        axes.set_xlabel("round")
        axes.set_ylabel("worst-group accuracy")
        axes.set_title("Coloured MNIST: mean of the seeds; range for FedDiverse and random")
        figure.legend(loc="outside right center")
        save_figure(figure, path)


def main() -> None:
    chosen = options(__doc__, ROUNDS, SEEDS)
    study = Study("feddiverse-cmnist", SHARED, cases())
    results = ordered(run_missing(study, chosen), last_rounds(WORST))
    content = f"### Worst-group accuracy, %\n\n{scores(results)}\n\n"
    content += f"### Estimated against true triplets\n\n{correlations(study, chosen.seeds)}"
    print(content)
    write_measured(chosen.docs / "results" / "feddiverse-cmnist.md", content)
    plot(results, chosen.docs / "images" / "feddiverse-cmnist.png")


if __name__ == "__main__":
    main()
