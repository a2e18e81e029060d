"""Our numbers beside the published ones, and whether what a paper says holds in our runs.

Pure functions of results; nothing that disagrees is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from muster.papers.entries import Claim, Value, fits
from muster.papers.measures import ACCURACIES, at_work, federations, measured
from muster.papers.planning import Plan, as_published
from muster.papers.published import Numeric, Printed
from muster.papers.verdicts import (
    LEVEL,
    NOTHING,
    Ours,
    Verdict,
    corrected,
    evidence,
    exactly,
    judged,
    named,
    p_apart,
    unfit,
)
from muster.report.compare.measures import trains_again
from muster.server.result import Result

#: Results of one cell and row.
BySeed: TypeAlias = dict[int, Result]


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
    #: Why nothing is said about it ("stand-in data"); empty where it may be judged.
    unfit: str = ""
    #: Further from the published number than tolerance, spread and chance allow.
    off: bool = False

    @property
    def difference(self) -> float:
        return self.printed.apart(self.ours.mean) if isinstance(self.printed, Numeric) else math.nan


@dataclass(frozen=True)
class Checked:
    """A claim of the paper, in one cell (or row), and what our runs say."""

    claim: Claim
    where: str
    verdict: Verdict
    #: The difference that it rests on, or why it is not judged.
    why: str = ""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.why}" if self.why else self.verdict


@dataclass(frozen=True)
class Reproduced:
    """An entry's comparison."""

    plan: Plan
    numbers: tuple[Compared, ...]
    claims: tuple[Checked, ...]
    #: (cell, row, seed) of runs without a result, and why.
    missing: tuple[tuple[str, str, int, str], ...]
    #: The versions of Muster that made the runs.
    made_by: tuple[str, ...] = ()


def outcome(plan: Plan, results: Mapping[str, Result], failures: Mapping[str, str] | None = None) -> Reproduced:
    """Compare an entry's runs; `results` by the experiments' fingerprints, `failures` says why one is missing."""
    if plan.entry.kind == "federations":
        numbers = tuple(number for cell in plan.cells for number in _federation(plan, cell))
        return Reproduced(plan, numbers, tuple(checked(plan, numbers)), ())
    runs: dict[tuple[str, str], BySeed] = {(cell, row): {} for cell in plan.cells for row in plan.rows}
    missing = []
    for run in plan.runs:
        fingerprint = run.experiment.fingerprint
        if fingerprint in results:
            runs[run.cell, run.row][run.seed] = results[fingerprint]
        else:
            missing.append((run.cell, run.row, run.seed, (failures or {}).get(fingerprint, "not run")))
    numbers = _marked(
        plan,
        [
            compared
            for cell in plan.cells
            for compared in _cell(plan, cell, {row: runs[cell, row] for row in plan.rows})
        ],
    )
    return Reproduced(plan, numbers, tuple(checked(plan, numbers)), tuple(missing))


def _cell(plan: Plan, cell: str, runs: Mapping[str, BySeed]) -> list[Compared]:
    last, cheapest = plan.size.last, _cheapest(runs)
    again = any(trains_again(run) for by_seed in runs.values() for run in by_seed.values())
    return [
        Compared(
            cell=cell,
            row=row,
            value=value,
            printed=plan.entry.published.at(*plan.entry.printed_at(cell, row, value)),
            ours=ours_over_seeds(by_seed, partial(measured, wanted=value, last=last)),
            equal_work=_at_equal_work(by_seed, value, cheapest, last),
            beside=_beside(by_seed, value, last, again=again),
            trainings=ours_over_seeds(by_seed, _trainings),
            unfit=plan.unfit(cell, row),
        )
        for row, by_seed in runs.items()
        for value in plan.entry.values
    ]


def _marked(plan: Plan, numbers: Sequence[Compared]) -> tuple[Compared, ...]:
    """The numbers with marks where they differ from the published ones, all of them asked together."""
    asked = [n for n in numbers if not n.unfit and isinstance(n.printed, Numeric) and n.ours.seeds > 1]
    p_values = corrected([p_apart(n.ours, n.printed, plan.entry.tolerance_of(n.value)) for n in asked])
    off = {id(n) for n, p in zip(asked, p_values, strict=True) if p < LEVEL}
    return tuple(replace(number, off=id(number) in off) for number in numbers)


def _federation(plan: Plan, cell: str) -> list[Compared]:
    """How heterogeneous a federation is, from who has what alone."""
    row = plan.rows[0]
    by_seed = federations(as_published(plan.entry, cell, row), plan.seeds)
    return [
        Compared(
            cell=cell,
            row=row,
            value=value,
            printed=plan.entry.published.at(*plan.entry.printed_at(cell, row, value)),
            ours=_known({seed: value.factor * found[value.metric] for seed, found in by_seed.items()}),
            equal_work={},
            beside={},
            trainings=NOTHING,
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
        metric: _known({seed: at_work(run, Value(metric), cheapest[seed], last) for seed, run in by_seed.items()})
        for metric in dict.fromkeys((value.metric, "accuracy"))
    }


def _trainings(result: Result) -> float:
    return float(result.ledger.total().client_trainings)


def _beside(by_seed: BySeed, value: Value, last: int, *, again: bool) -> dict[str, Ours]:
    """The accuracies that the paper did not use, where it used one.

    That of the last iteration is that of the participants unless some run of the cell trains `again` in a round.
    """
    if "accuracy" not in value.metric:
        return {}
    return {
        metric: ours_over_seeds(by_seed, partial(measured, wanted=Value(metric), last=last))
        for metric in ACCURACIES
        if metric != value.metric and (again or metric != "last_iteration_accuracy")
    }


def ours_over_seeds(by_seed: BySeed, measure: Callable[[Result], float]) -> Ours:
    return _known({seed: measure(result) for seed, result in by_seed.items()})


def _known(values: Mapping[int, float]) -> Ours:
    return Ours({seed: value for seed, value in values.items() if not math.isnan(value)})


# --- claims ------------------------------------------------------------------------------------------------------


def checked(plan: Plan, numbers: Sequence[Compared]) -> list[Checked]:
    """Every claim, cell by cell (row by row for claims about cells), all of them asked together."""
    asked = [
        (claim, where, group) for claim in plan.entry.claims for where, group in _groups(plan, claim, numbers)
    ]
    found = [_without_statistics(plan, claim, where, group) for claim, where, group in asked]
    open_ones = [i for i, done in enumerate(found) if done is None]
    weighed = [evidence(asked[i][0], _ours(asked[i][2])) for i in open_ones]
    p_values = corrected([one.p for one in weighed])
    for i, one, p in zip(open_ones, weighed, p_values, strict=True):
        found[i] = Checked(asked[i][0], asked[i][1], *judged(one, p, len(open_ones)))
    return [done for done in found if done is not None]


def _without_statistics(plan: Plan, claim: Claim, where: str, group: Mapping[str, Compared]) -> Checked | None:
    """The verdict where none is needed: not run, not to be judged, or nothing left to chance."""
    numbers = _ours(group)
    no_verdict = unfit(claim, numbers)
    ran = all(ours.known for ours in numbers.values()) and set(named(claim)) <= set(numbers)
    if ran and (left := _left_out(plan, claim)):
        return Checked(claim, where, "not judged", left)
    if no_verdict is not None and no_verdict[0] == "not run":
        return Checked(claim, where, *no_verdict)
    if plan.entry.kind == "federations":
        return Checked(claim, where, exactly(claim, numbers))
    if reasons := list(dict.fromkeys(number.unfit for number in group.values() if number.unfit)):
        return Checked(claim, where, "not judged", "; ".join(reasons))
    return None if no_verdict is None else Checked(claim, where, *no_verdict)


def _left_out(plan: Plan, claim: Claim) -> str:
    """What a claim about all of its rows, or cells, would have to be compared with as well."""
    if claim.order or claim.over == "values":
        return ""
    if claim.over == "cells":
        left = sum(fits(cell, claim.cells) and cell not in plan.cells for cell in plan.entry.cells)
        return f"{left} of the cells that it is about are not here" if left else ""
    left = sum(fits(row, claim.rows) and row not in plan.rows for row in plan.entry.rows)
    return f"{left} of the rows that it is about were not asked for" if left else ""


def _ours(group: Mapping[str, Compared]) -> dict[str, Ours]:
    return {name: number.ours for name, number in group.items()}


def _groups(plan: Plan, claim: Claim, numbers: Sequence[Compared]) -> list[tuple[str, dict[str, Compared]]]:
    """Where a claim is checked, and what is compared there, by name."""
    name = claim.value or plan.entry.values[0].name
    groups: dict[str, dict[str, Compared]] = {}
    for number in numbers:
        if fits(number.cell, claim.cells) and fits(number.row, claim.rows):
            where, which = _compared_by(claim, number)
            if claim.over == "values" or number.value.name == name:
                groups.setdefault(where, {})[which] = number
    return list(groups.items())


def _compared_by(claim: Claim, number: Compared) -> tuple[str, str]:
    """Where a claim is checked, and what is compared there."""
    match claim.over:
        case "rows":
            return number.cell, number.row
        case "cells":
            return number.row, number.cell
        case "values":
            return f"{number.cell}, {number.row}", number.value.name
