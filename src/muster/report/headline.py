"""Who is best, by how much, and how sure: the sentences that a comparison begins with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from muster.report.compare.comparison import Comparison
from muster.report.compare.measures import better, metric_column, value
from muster.report.compare.pairs import LEVEL, pairs, seeds_needed
from muster.report.compare.significance import paired_test
from muster.results.cases import Case


@dataclass(frozen=True)
class Standing:
    """A case and its mean score."""

    case: Case
    score: float


def standings(comparison: Comparison) -> list[Standing]:
    """Cases by their mean score at the end, the best first; cases that miss a seed's score are left out."""
    options = comparison.options
    found = [
        Standing(case, fmean(value(run, options.metric, last=options.last) for run in case.runs))
        for case in comparison.cases
    ]
    sign = better(options.metric).value
    return sorted((each for each in found if not math.isnan(each.score)), key=lambda each: -sign * each.score)


def headline(comparison: Comparison) -> list[str]:
    """The first sentence says who is best, the second by how much, the third how sure that is."""
    order = standings(comparison)
    column = metric_column(comparison.options.metric)
    if not order:
        return [f"No run has measured {column.title}."]
    best = order[0]
    if len(order) == 1:
        return [f"{best.case.name} reaches {_shown(comparison, best.score)} {column.title}.", *_seeds(best.case)]
    return list(_sentences(comparison, order))


def _sentences(comparison: Comparison, order: Sequence[Standing]) -> Iterator[str]:
    best, second = order[:2]
    column = metric_column(comparison.options.metric)
    first = f"{best.case.name} is best with {_shown(comparison, best.score)} {column.title}"
    if _same(comparison, best.score, second.score):
        yield f"{best.case.name} and {second.case.name} share the first place: {_shown(comparison, best.score)}."
    else:
        yield f"{first}, {_gap(comparison, best.score - second.score)} ahead of {second.case.name}."
    rival = comparison.baseline if comparison.baseline is not best.case else second.case
    if rival is not second.case:
        other = next((each.score for each in order if each.case is rival), math.nan)
        if not math.isnan(other):
            yield f"The baseline {rival.name} reaches {_shown(comparison, other)}."
    yield _certainty(comparison, best.case, rival, len(order) - 1)


def _certainty(comparison: Comparison, best: Case, rival: Case, comparisons: int) -> str:
    """What the seeds can say about the best against another case."""
    options = comparison.options
    own, theirs = pairs(best, rival, lambda run: value(run, options.metric, last=options.last))
    if len(own) < 2:
        return f"One seed: whether that is chance, only more can tell, at least {seeds_needed(comparisons)}."
    test = paired_test(own, theirs)
    wins = int(np.sum(better(options.metric).value * test.differences > 0))
    ahead = f"Ahead of {rival.name} in {wins} of {len(own)} seeds"
    if test.smallest_p * comparisons > LEVEL:
        return f"{ahead}: too few to be sure, it takes at least {seeds_needed(comparisons)}."
    p = min(1.0, test.p * comparisons)
    corrected = f", corrected for {comparisons} comparisons" if comparisons > 1 else ""
    sure = "more than chance explains" if p <= LEVEL else "which chance explains as well"
    return f"{ahead}: {sure} (p ≤ {p:.3g}{corrected})."


def _seeds(case: Case) -> list[str]:
    return ["One seed: nothing is known about the spread."] if len(case.runs) == 1 else []


def _same(comparison: Comparison, one: float, other: float) -> bool:
    return _shown(comparison, one) == _shown(comparison, other)


def _shown(comparison: Comparison, score: float) -> str:
    column = metric_column(comparison.options.metric)
    return f"{column.shown(score)}{f' {column.unit}' if column.unit else ''}"


def _gap(comparison: Comparison, difference: float) -> str:
    column = metric_column(comparison.options.metric)
    return f"{column.shown(abs(difference))} points" if column.unit == "%" else column.shown(abs(difference))
