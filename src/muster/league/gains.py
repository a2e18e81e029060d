"""What methods gained over the baseline, problem by problem: paired over seeds, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from muster.report.compare import Comparison
from muster.report.compare.comparison import Judged
from muster.report.intervals import mean_interval


@dataclass(frozen=True)
class Gain:
    """The mean difference to the baseline over seeds, with its 95 % interval (NaN for a single seed)."""

    value: float
    low: float
    high: float
    #: "yes", "no" or "too few seeds": whether Holm's corrected test tells it from nothing.
    significant: str = ""

    @property
    def clearly_better(self) -> bool:
        return self.low > 0

    @property
    def clearly_worse(self) -> bool:
        return self.high < 0

    def __str__(self) -> str:
        """In points of accuracy."""
        ends = "" if math.isnan(self.low) else f" [{points(self.low)}, {points(self.high)}]"
        return f"{points(self.value)}{ends}"


def points(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−")


#: Problem → method → its gain; the baseline itself has none.
Gains = Mapping[str, Mapping[str, Gain]]


def gains_of(comparison: Comparison) -> Gains:
    return {judged.name: _of_problem(judged) for judged in comparison.judged}


def _of_problem(judged: Judged) -> dict[str, Gain]:
    table = judged.tables.get("significance")
    if table is None:  # there is the baseline alone
        return {}
    rows = zip(*(table.column(title) for title in ("case", "difference", "significant")), strict=True)
    return {
        str(case.value): Gain(_number(gap.value), *mean_interval(np.array(gap.values)), str(word.value))
        for case, gap, word in rows
    }


def _number(value: float | str) -> float:
    assert not isinstance(value, str)
    return value


def of_method(gains: Gains, method: str) -> dict[str, Gain]:
    """Its gains in the problems that have it."""
    return {problem: own[method] for problem, own in gains.items() if method in own}


def tally(gains: Gains, method: str) -> tuple[int, int]:
    """In how many problems the method is clearly better than the baseline, and clearly worse."""
    own = of_method(gains, method).values()
    return sum(gain.clearly_better for gain in own), sum(gain.clearly_worse for gain in own)
