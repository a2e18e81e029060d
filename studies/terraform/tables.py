"""The tables of docs/results/terraform-table2.md, from what a workspace has of the studies in this folder.

    python studies/terraform/tables.py [WORKSPACE [PAGE.md]]

With a page, each study that the workspace has gets its tables there anew; those of the others stay.
Runs that are not complete are left out, and so are seeds that one of the three methods does not have.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
from scipy import stats

from muster.core.errors import ConfigError
from muster.experiment.choice import chosen_results
from muster.report.compare.measures import Budget, total, value
from muster.server.result import Result

STUDIES = {
    "terraform-table2-1star": "Scenario 1\\*, perceptron",
    "terraform-table2-4": "Scenario 4, perceptron",
    "terraform-table2-cnn": "Scenario 4, convolutional network (weight decay 0.0005, 60 rounds)",
}
METHODS = {"random": "Random", "terraform": "Terraform", "retrain-random": "retrain-random"}
PAIRS = (("terraform", "random"), ("retrain-random", "random"), ("terraform", "retrain-random"))
ACCURACIES = {
    "participant_accuracy": "participants",
    "last_iteration_accuracy": "last iteration",
    "accuracy": "pooled test set",
    "client_accuracy_mean": "mean over clients",
}
#: The mean of so many last evaluations: every second round is evaluated.
LAST = 5

#: One regime of local training: method → seed → result.
Regime: TypeAlias = dict[str, dict[int, Result]]
Measure: TypeAlias = Callable[[Result], float]


def regimes(results: Sequence[Result]) -> dict[str, Regime]:
    """Complete runs by schedule and momentum, with the seeds that all methods have."""
    found: dict[str, Regime] = {}
    for result in results:
        if result.complete:
            training = result.config["training"]
            name = "decay" if training.get("schedule") == "step" else "constant"
            regime = found.setdefault(f"{name}, momentum {training.get('momentum', 0.0):g}", {})
            regime.setdefault(result.config["selection"]["method"], {})[result.config["seed"]] = result
    return {name: shared for name, regime in sorted(found.items()) if (shared := _shared(regime))}


def _shared(regime: Regime) -> Regime:
    seeds = set.intersection(*(set(regime.get(method, {})) for method in METHODS))
    return {method: {seed: regime[method][seed] for seed in sorted(seeds)} for method in METHODS} if seeds else {}


def scores(found: Mapping[str, Regime]) -> Iterator[list[str]]:
    """Mean ± standard deviation over seeds of all accuracies, and the work."""
    yield ["regime", "method", "seeds", *(f"{name}, %" for name in ACCURACIES.values()), "client trainings"]
    for name, regime in found.items():
        for method, runs in regime.items():
            cells = [
                _spread([100 * value(run, metric, last=LAST) for run in runs.values()]) for metric in ACCURACIES
            ]
            work = np.mean([total(run, "client_trainings") for run in runs.values()])
            yield [name, METHODS[method], str(len(runs)), *cells, f"{work:,.0f}"]


def differences(found: Mapping[str, Regime]) -> Iterator[list[str]]:
    """Paired differences with intervals, after equal rounds and after equal work."""
    work = ["at equal work: participants", "at equal work: pooled test set"]
    yield ["regime", "difference, points", *ACCURACIES.values(), *work]
    for name, regime in found.items():
        for one, other in PAIRS:
            cells = [
                _interval(regime, one, other, partial(value, metric=metric, last=LAST)) for metric in ACCURACIES
            ]
            for metric in ("participant_accuracy", "accuracy"):
                cells.append(_interval(regime, one, other, _at_equal_work(regime, metric)))
            yield [name, f"{METHODS[one]} − {METHODS[other]}", *cells]


def _at_equal_work(regime: Regime, metric: str) -> Measure:
    """The metric after as many client trainings as the cheapest method had with the same seed."""
    cheapest = {
        seed: min(total(runs[seed], "client_trainings") for runs in regime.values()) for seed in regime["random"]
    }

    def measure(run: Result) -> float:
        within = Budget("client_trainings", cheapest[run.config["seed"]])
        return value(run, metric, last=LAST, within=within)

    return measure


def _interval(regime: Regime, one: str, other: str, measure: Measure) -> str:
    """Mean of the differences seed by seed, and Student's 95 % interval of it; bold where that excludes zero."""
    gaps = np.array([100 * (measure(regime[one][seed]) - measure(regime[other][seed])) for seed in regime[one]])
    if len(gaps) < 2:
        return f"{gaps.mean():+.1f} (one seed)"
    half = stats.t.ppf(0.975, len(gaps) - 1) * gaps.std(ddof=1) / np.sqrt(len(gaps))
    text = f"{gaps.mean():+.1f} [{gaps.mean() - half:+.1f}, {gaps.mean() + half:+.1f}]"
    return f"**{text}**" if abs(gaps.mean()) > half else text


def _spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def markdown(rows: Iterator[list[str]]) -> str:
    header, *lines = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *lines))


def everything(workspace: Path) -> dict[str, str]:
    """Each study's tables, of those that the workspace has."""
    made = {}
    for study in STUDIES:
        try:
            found = regimes(chosen_results([study], folder=workspace))
        except ConfigError:
            continue
        if found:
            made[study] = f"{markdown(scores(found))}\n\n{markdown(differences(found))}"
    return made


def write(tables: Mapping[str, str], page: Path) -> None:
    """Put each study's tables between its marks on the page."""
    text = page.read_text(encoding="utf-8")
    for study, table in tables.items():
        begin, end = f"<!-- {study}: begin -->", f"<!-- {study}: end -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise SystemExit(f"{page} has no place for {study}: {begin} … {end}")
        text = f"{before}{begin}\n\n{table}\n\n{end}{after}"
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    made = everything(Path(sys.argv[1] if len(sys.argv) > 1 else "runs"))
    if len(sys.argv) > 2:
        write(made, Path(sys.argv[2]))
    else:
        for study, title in STUDIES.items():
            print(f"### {title}\n\n{made.get(study, 'Not measured yet.')}\n")
