"""FedDiverse and random selection on generated shapes with spurious backgrounds: docs/examples/spurious-shapes.md.

    python benchmarks/spurious_shapes.py                            run what is missing, write tables and picture
    python benchmarks/spurious_shapes.py --seeds 0 --docs /tmp/try --runs /tmp/try      does it work?

The experiment is examples/spurious-shapes.toml; nothing is downloaded. Can be stopped (Ctrl-C) and goes on with
the same command.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from _runs import ROOT, Case, Results, Study, band, column, last_rounds, options, percent, run_missing, table
from _runs import write_measured as write
from muster.report.plots import save_figure
from muster.report.style import line_style, muster_style
from muster.report.tables import markdown
from muster.server.result import Result

EXPERIMENT = ROOT / "examples" / "spurious-shapes.toml"
SEEDS = (0, 1, 2, 3, 4)
WORST, TARGET = "worst_group_accuracy", 0.8
LAST = last_rounds(WORST, 4)
CASES = [
    Case("feddiverse", {"selection": {"method": "feddiverse"}}),
    Case("feddiverse, true triplets", {"selection": {"method": "feddiverse", "estimate": "true"}}),
    Case("random", {"selection": {"method": "random"}}),
]


def rounds_to_target(result: Result) -> float:
    """The first evaluated round in which the worst group reaches the target; one after the last if none does."""
    rounds, values = result.series(WORST)
    reached = rounds[values >= TARGET]
    return float(reached[0] if len(reached) else 2 * rounds[-1] - rounds[-2])


def summary(results: Results) -> str:
    columns: dict[str, Sequence[str]] = {
        "method": list(results),
        "worst group, last 12 rounds": percent(results, LAST),
        "worst group, last round": percent(results, lambda result: result.final(WORST)),
        "accuracy, last 12 rounds": percent(results, last_rounds("accuracy", 4)),
        f"rounds until {TARGET:.0%}": column(results, rounds_to_target),
        "client trainings": column(results, lambda result: result.ledger.total().client_trainings, ".0f"),
    }
    return markdown(*table(columns))


def by_seed(results: Results, seeds: Sequence[int]) -> str:
    """Worst-group accuracy of every run: the spread that the means hide."""
    rows = [[name, *(f"{100 * LAST(run):.1f}" for run in runs)] for name, runs in results.items()]
    return markdown(["worst group, last 12 rounds", *(f"seed {seed}" for seed in seeds)], rows)


def difference(results: Results) -> str:
    """FedDiverse minus random, seed by seed."""
    gap = np.array([[LAST(run) for run in results[name]] for name in ("feddiverse", "random")])
    gaps = 100 * (gap[0] - gap[1])
    ahead = int((gaps > 0).sum())
    return (
        f"FedDiverse minus random: {gaps.mean():+.1f} points (standard deviation {gaps.std(ddof=1):.1f}); "
        f"ahead with {ahead} of {len(gaps)} seeds."
    )


def plot(results: Results, path: Path) -> None:
    with muster_style():
        figure = Figure(figsize=(7.0, 4.0), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for number, (name, runs) in enumerate(results.items()):
            band(axes, runs, WORST, label=name, linewidth=1.6, **line_style(number))
        axes.set_xlabel("round")
        axes.set_ylabel("worst-group accuracy")
        axes.set_ylim(0, 1)
        axes.set_title("Spurious shapes, 24 clients, 9 a round: mean and range of the seeds")
        figure.legend(loc="outside lower center", ncols=3)
        save_figure(figure, path)


def main() -> None:
    shared = tomllib.loads(EXPERIMENT.read_text(encoding="utf-8"))
    chosen = options(__doc__, shared["rounds"], SEEDS)
    results = run_missing(Study("spurious-shapes", shared, CASES), chosen)
    content = f"{summary(results)}\n\n{by_seed(results, chosen.seeds)}"
    if len(chosen.seeds) > 1 and not chosen.methods:
        content += f"\n\n{difference(results)}"
    print(content)
    write(chosen.docs / "examples" / "spurious-shapes.md", content)
    plot(results, chosen.docs / "images" / "spurious-shapes.png")


if __name__ == "__main__":
    main()
