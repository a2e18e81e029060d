"""Cases against a baseline, seed by seed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from muster.core.arrays import Floats
from muster.report.compare.grouping import varying
from muster.report.compare.measures import Budget, better, metric_column, value
from muster.report.compare.significance import PairedTest, holm, paired_test, smallest_p
from muster.report.intervals import interval_words
from muster.report.tables import Cell, Column, Table, from_columns, over_seeds, text_column
from muster.results.cases import Case, flat, seed_of
from muster.server.result import Result

#: The chance of a false alarm that people accept.
LEVEL = 0.05


def significance(
    cases: Sequence[Case],
    baseline: Case,
    metric: str,
    *,
    last: int = 1,
    at: Budget | None = None,
    correct: bool = True,
) -> Table:
    """Paired differences to the baseline: their interval, Wilcoxon's exact test and what it can show."""
    others = [case for case in cases if case is not baseline]
    paired = [pairs(case, baseline, lambda run: value(run, metric, last=last, within=at)) for case in others]
    tests = [paired_test(own, theirs) for own, theirs in paired]
    decisive = holm(np.array([test.p for test in tests])) if correct else np.array([test.p for test in tests])
    score, wins = metric_column(metric), better(metric).value
    unit = "points" if score.unit == "%" else score.unit
    gap = Column("difference", unit, score.scale, "+.2f" if unit == "points" else "+.4f")
    count, p_value = Column("", form=".0f"), Column("", form=".3g")
    columns: list[tuple[Column, Sequence[Cell]]] = [
        (text_column("case"), [Cell(case.name) for case in others]),
        (replace(count, title="pairs"), [Cell(float(len(test.differences))) for test in tests]),
        (gap, [over_seeds(test.differences) for test in tests]),
        (replace(gap, title="95 % from", unit=""), [Cell(test.interval[0]) for test in tests]),
        (replace(gap, title="to", unit=""), [Cell(test.interval[1]) for test in tests]),
        (replace(count, title="better"), [Cell(float(np.sum(wins * test.differences > 0))) for test in tests]),
        (replace(count, title="worse"), [Cell(float(np.sum(wins * test.differences < 0))) for test in tests]),
        (replace(p_value, title="p"), [Cell(test.p) for test in tests]),
        (replace(p_value, title="p, Holm"), [Cell(float(p)) for p in decisive]),
        (replace(p_value, title="smallest p"), [Cell(test.smallest_p) for test in tests]),
        (text_column("significant"), [Cell(word) for word in verdicts(tests, decisive, correct)]),
    ]
    kept = [entry for entry in columns if correct or entry[0].title != "p, Holm"]
    return from_columns(f"{score.title.capitalize()} against {baseline.name}", kept, _notes(tests, correct))


def pairs(case: Case, baseline: Case, measure: Callable[[Result], float]) -> tuple[Floats, Floats]:
    """Values of two cases that belong together: the same seed, and the same in all that varies inside the cases.

    What one of the two has not measured is left out. Repeats of the same run count once, with their mean.
    """
    inside = sorted({*varying(case.runs), *varying(baseline.runs)})
    own, theirs = (_by_setting(each.runs, inside, measure) for each in (case, baseline))
    common = sorted(own.keys() & theirs.keys())
    return np.array([own[key] for key in common]), np.array([theirs[key] for key in common])


def _by_setting(
    runs: Sequence[Result], keys: Sequence[str], measure: Callable[[Result], float]
) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for run in runs:
        settings = flat(run.config)
        key = json.dumps([seed_of(run), *(settings.get(key) for key in keys)], sort_keys=True)
        if not math.isnan(measured := measure(run)):
            values.setdefault(key, []).append(measured)
    return {key: fmean(sorted(found)) for key, found in values.items()}


def verdicts(tests: Sequence[PairedTest], decisive: Floats, correct: bool) -> list[str]:
    """'yes' where it was shown, 'no' where it was not, and 'too few seeds' where it could not have been."""
    best = [test.smallest_p * (len(tests) if correct else 1) for test in tests]
    # After Holm the smallest p counts as often as there are comparisons; if that fails, all do.
    possible = [min(best) <= LEVEL and test.smallest_p <= LEVEL for test in tests]
    return [
        ("yes" if p <= LEVEL else "no") if can else "too few seeds"
        for p, can in zip(decisive, possible, strict=True)
    ]


def seeds_needed(comparisons: int) -> int:
    """The fewest pairs with which one of this many comparisons can be significant at all."""
    return next(n for n in range(1, 1000) if comparisons * smallest_p(n) <= LEVEL)


def _notes(tests: Sequence[PairedTest], correct: bool) -> list[str]:
    fewest = min(len(test.differences) for test in tests)
    comparisons = len(tests) if correct else 1
    holm_words = f" in {comparisons} comparisons (Holm)" if comparisons > 1 else ""
    kind = interval_words(len(test.differences) for test in tests)
    deviation = "Differences: mean ± standard deviation over pairs. "
    notes = [
        f"{deviation if any(len(test.differences) > 1 for test in tests) else ''}"
        "p: Wilcoxon's signed-rank test over seeds, two-sided, exact. 95 %: interval of the mean difference over "
        f"seeds ({kind}), of each comparison on its own."
    ]
    if comparisons * smallest_p(fewest) > LEVEL:
        notes.append(
            f"With {fewest} pair{'s' * (fewest != 1)} no p can be smaller than {smallest_p(fewest):.3g}: "
            f"for p ≤ {LEVEL:g}{holm_words} it takes at least {seeds_needed(comparisons)} seeds."
        )
    return notes
