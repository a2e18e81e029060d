"""Our numbers beside the published ones, and whether what a paper says holds in our runs.

Pure functions of results; nothing that disagrees is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from muster.data.partition.group_skew import named_tables
from muster.experiment.papers.entries import Claim, Value, fits
from muster.experiment.papers.measures import ACCURACIES, at_work, measured
from muster.experiment.papers.planning import Plan, as_published
from muster.experiment.papers.published import Number, Printed
from muster.heterogeneity.metrics import summary
from muster.report.compare.measures import trains_again
from muster.result import Result

#: Results of one cell and row.
BySeed: TypeAlias = dict[int, Result]
Verdict = Literal["holds", "does not hold", "too close to say", "too short to judge", "not run"]


@dataclass(frozen=True)
class Ours:
    """A number over seeds: mean and standard deviation."""

    mean: float
    std: float
    seeds: int
    #: One a seed, where all seeds have one.
    values: tuple[float, ...] = ()

    @property
    def known(self) -> bool:
        return not math.isnan(self.mean)


NOTHING = Ours(math.nan, 0.0, 0)


@dataclass(frozen=True)
class Compared:
    """One published number and ours."""

    cell: str
    row: str
    value: Value
    printed: Printed | None
    ours: Ours
    #: It and the accuracy on the pooled test set, by metric, after as many client trainings as the cheapest row of
    #: the cell had.
    equal_work: Mapping[str, Ours]
    #: The other accuracies, by metric.
    beside: Mapping[str, Ours]
    trainings: Ours
    #: Further from the published number than tolerance and spread allow; never where a plan cannot judge.
    off: bool

    @property
    def difference(self) -> float:
        return self.ours.mean - self.printed.value if isinstance(self.printed, Number) else math.nan


@dataclass(frozen=True)
class Checked:
    """A claim of the paper, in one cell (or row), and what our runs say."""

    claim: Claim
    where: str
    verdict: Verdict


@dataclass(frozen=True)
class Outcome:
    """An entry's comparison."""

    plan: Plan
    numbers: tuple[Compared, ...]
    claims: tuple[Checked, ...]
    #: (cell, row, seed) of runs without a result, and why.
    missing: tuple[tuple[str, str, int, str], ...]


def outcome(plan: Plan, results: Mapping[str, Result], failures: Mapping[str, str] | None = None) -> Outcome:
    """Compare an entry's runs; `results` by the experiments' fingerprints, `failures` says why one is missing."""
    if plan.entry.kind == "federations":
        numbers = tuple(number for cell in plan.cells for number in _federation(plan, cell))
        return Outcome(plan, numbers, tuple(checked(plan, numbers)), ())
    runs: dict[tuple[str, str], BySeed] = {(cell, row): {} for cell in plan.cells for row in plan.rows}
    missing = []
    for run in plan.runs:
        fingerprint = run.experiment.fingerprint
        if fingerprint in results:
            runs[run.cell, run.row][run.seed] = results[fingerprint]
        else:
            missing.append((run.cell, run.row, run.seed, (failures or {}).get(fingerprint, "not run")))
    numbers = tuple(
        compared
        for cell in plan.cells
        for compared in _cell(plan, cell, {row: runs[cell, row] for row in plan.rows})
    )
    return Outcome(plan, numbers, tuple(checked(plan, numbers)), tuple(missing))


def _cell(plan: Plan, cell: str, runs: Mapping[str, BySeed]) -> list[Compared]:
    last, cheapest = plan.size.last, _cheapest(runs)
    again = any(trains_again(run) for by_seed in runs.values() for run in by_seed.values())
    found = []
    for row, by_seed in runs.items():
        results = list(by_seed.values())
        for value in plan.entry.values:
            ours = over_seeds(results, partial(measured, wanted=value, last=last))
            printed = plan.entry.published.at(*plan.entry.printed_at(cell, row, value))
            found.append(
                Compared(
                    cell=cell,
                    row=row,
                    value=value,
                    printed=printed,
                    ours=ours,
                    equal_work=_at_equal_work(by_seed, value, cheapest, last),
                    beside=_beside(results, value, last, again=again),
                    trainings=over_seeds(results, _trainings),
                    off=plan.can_judge and is_off(ours, printed, plan.entry.tolerance * value.factor / 100),
                )
            )
    return found


def _federation(plan: Plan, cell: str) -> list[Compared]:
    """How heterogeneous a federation is, from the clients' tables alone."""
    table = named_tables(as_published(plan.entry, cell, plan.rows[0])["partition"]["table"])
    metrics = summary(table)
    return [
        Compared(
            cell=cell,
            row=plan.rows[0],
            value=value,
            printed=plan.entry.published.at(*plan.entry.printed_at(cell, plan.rows[0], value)),
            ours=Ours(value.factor * metrics[value.metric], 0.0, 1),
            equal_work={},
            beside={},
            trainings=NOTHING,
            off=False,
        )
        for value in plan.entry.values
    ]


def _cheapest(runs: Mapping[str, BySeed]) -> dict[int, float]:
    """For every seed the smallest number of client trainings that a row needed."""
    cheapest: dict[int, float] = {}
    for by_seed in runs.values():
        for seed, result in by_seed.items():
            cheapest[seed] = min(cheapest.get(seed, math.inf), _trainings(result))
    return cheapest


def _at_equal_work(by_seed: BySeed, value: Value, cheapest: Mapping[int, float], last: int) -> dict[str, Ours]:
    if value.pick != "final" or "accuracy" not in value.metric:
        return {}
    return {
        metric: _mean([at_work(run, Value(metric), cheapest[seed], last) for seed, run in by_seed.items()])
        for metric in dict.fromkeys((value.metric, "accuracy"))
    }


def _trainings(result: Result) -> float:
    return float(result.ledger.total().client_trainings)


def _beside(results: Sequence[Result], value: Value, last: int, *, again: bool) -> dict[str, Ours]:
    """The accuracies that the paper did not use, where it used one.

    That of the last iteration is that of the participants unless some run of the cell trains `again` in a round.
    """
    if "accuracy" not in value.metric:
        return {}
    return {
        metric: over_seeds(results, partial(measured, wanted=Value(metric), last=last))
        for metric in ACCURACIES
        if metric != value.metric and (again or metric != "last_iteration_accuracy")
    }


def over_seeds(results: Sequence[Result], measure: Callable[[Result], float]) -> Ours:
    return _mean([measure(result) for result in results])


def _mean(values: Sequence[float]) -> Ours:
    known = np.array([value for value in values if not math.isnan(value)])
    if not len(known):
        return NOTHING
    whole = tuple(values) if len(known) == len(values) else ()
    return Ours(float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else 0.0, len(known), whole)


def is_off(ours: Ours, printed: Printed | None, tolerance: float) -> bool:
    """Whether our number differs from the published one by more than the tolerance and both spreads."""
    if not isinstance(printed, Number) or not ours.known:
        return False
    return abs(ours.mean - printed.value) > max(tolerance, ours.std + printed.std)


# --- claims ------------------------------------------------------------------------------------------------------


def checked(plan: Plan, numbers: Sequence[Compared]) -> list[Checked]:
    """Every claim, cell by cell (row by row for claims about cells)."""
    found = []
    for claim in plan.entry.claims:
        name = claim.value or plan.entry.values[0].name
        groups: dict[str, dict[str, Ours]] = {}
        for number in numbers:
            if fits(number.cell, claim.cells) and fits(number.row, claim.rows):
                where, which = _compared_by(claim, number)
                if claim.over == "values" or number.value.name == name:
                    groups.setdefault(where, {})[which] = number.ours
        for where, group in groups.items():
            says = verdict(claim, group)
            decided: Verdict = says if plan.can_judge or says == "not run" else "too short to judge"
            found.append(Checked(claim, where, decided))
    return found


def _compared_by(claim: Claim, number: Compared) -> tuple[str, str]:
    """Where a claim is checked, and what is compared there."""
    match claim.over:
        case "rows":
            return number.cell, number.row
        case "cells":
            return number.row, number.cell
        case "values":
            return f"{number.cell}, {number.row}", number.value.name


def verdict(claim: Claim, numbers: Mapping[str, Ours]) -> Verdict:
    """Whether a claim holds for these numbers; differences within their own standard deviation decide nothing."""
    named = [name for name in (claim.best, claim.worst, *claim.order) if name is not None]
    if len(numbers) < 2 or not all(ours.known for ours in numbers.values()) or not set(named) <= set(numbers):
        return "not run"
    if claim.spread is not None:
        means = [ours.mean for ours in numbers.values()]
        return "holds" if max(means) - min(means) <= claim.spread else "does not hold"
    pairs: list[tuple[str, str]] = list(zip(claim.order, claim.order[1:], strict=False))
    pairs += [(claim.best, other) for other in numbers if claim.best is not None and other != claim.best]
    pairs += [(other, claim.worst) for other in numbers if claim.worst is not None and other != claim.worst]
    return _ordered([(numbers[high], numbers[low]) for high, low in pairs], -1 if claim.lower else 1)


def _ordered(pairs: Sequence[tuple[Ours, Ours]], sign: int) -> Verdict:
    leads = [sign * (high.mean - low.mean) for high, low in pairs]
    spreads = [_spread_of_lead(high, low) for high, low in pairs]
    if any(lead < 0 and -lead > spread for lead, spread in zip(leads, spreads, strict=True)):
        return "does not hold"
    if all(lead > spread for lead, spread in zip(leads, spreads, strict=True)):
        return "holds"
    return "too close to say"


def _spread_of_lead(high: Ours, low: Ours) -> float:
    """The standard deviation of a difference: seed by seed where both have the same seeds."""
    if len(high.values) == len(low.values) > 1:
        return float(np.std(np.subtract(high.values, low.values), ddof=1))
    return math.hypot(high.std, low.std)
