"""Whether what a paper says holds in our runs, or why that cannot be said.

Differences are taken seed by seed, because rows share their data and first model. A claim about several rows is
one question: it holds when every difference speaks for it (then no correction is needed), it does not hold when
one of them speaks against it (then all of them are corrected for). All questions of an entry are asked together,
and so are all marks of its numbers: the chance of a single wrong one among equal methods is `LEVEL` at most.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.special import stdtr, stdtrit

from muster.core.arrays import Floats
from muster.papers.entries import Claim
from muster.papers.published import Number, Numeric, Printed

#: The chance of any wrong verdict in an entry, where methods are equal.
LEVEL = 0.05

Verdict = Literal["holds", "does not hold", "not judged", "not run"]


@dataclass(frozen=True)
class Ours:
    """A number over seeds."""

    by_seed: Mapping[int, float] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        return bool(self.by_seed)

    @property
    def seeds(self) -> int:
        return len(self.by_seed)

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.by_seed.values()))) if self.by_seed else math.nan

    @property
    def std(self) -> float:
        return float(np.std(list(self.by_seed.values()), ddof=1)) if self.seeds > 1 else 0.0


NOTHING = Ours()


@dataclass(frozen=True)
class Lead:
    """How far one is above another, seed by seed."""

    high: str
    low: str
    values: Floats

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def half_width(self) -> float:
        """Of the 95 % interval of the mean, on its own."""
        return float(stdtrit(len(self.values) - 1, 0.975)) * standard_error(self.values)

    def __str__(self) -> str:
        digits = 2 if abs(self.mean) < 100 else 0
        return f"{self.high} − {self.low}: {self.mean:+.{digits}f} ± {self.half_width:.{digits}f}"


@dataclass(frozen=True)
class ClaimEvidence:
    """How surprising our numbers would be if the claim did not hold, and if it did."""

    holds: float
    fails: float
    #: The difference that decides.
    lead: Lead
    #: What the claim says that it is above or, of a spread, below.
    bound: float = 0.0
    #: Of how many differences any might have spoken against the claim.
    differences: int = 1

    @property
    def p(self) -> float:
        """Both questions are asked, so each counts twice."""
        return min(1.0, 2 * min(self.holds, self.fails))


def standard_error(values: Floats) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values))


def p_above(values: Floats, bound: float = 0.0) -> float:
    """One-sided p-value of "the mean is above the bound"."""
    distance, error = float(values.mean()) - bound, standard_error(values)
    if error == 0:
        # Counts, and shares of few samples, can agree by chance: all that is known is on which side they are.
        return 0.5 ** len(values) if distance > 0 else 1.0
    return float(stdtr(len(values) - 1, -distance / error))


def paired(high: str, low: str, numbers: Mapping[str, Ours], sign: int = 1) -> Lead:
    """The lead of one over another in the seeds that both have."""
    mine, theirs = numbers[high].by_seed, numbers[low].by_seed
    values = [sign * (mine[seed] - theirs[seed]) for seed in mine if seed in theirs]
    return Lead(high, low, np.array(values, dtype=np.float64))


def named(claim: Claim) -> list[str]:
    """Rows (or cells, or values) that a claim names."""
    return [*claim.winners, *([claim.worst] if claim.worst else []), *claim.order]


def leads(claim: Claim, numbers: Mapping[str, Ours]) -> list[Lead]:
    """The differences that a claim says are above its margin."""
    sign = -1 if claim.lower else 1
    if claim.average:
        best, others = ", ".join(claim.winners), "the others"
        means = {
            best: _mean_of([numbers[name] for name in claim.winners]),
            others: _mean_of([ours for name, ours in numbers.items() if name not in claim.winners]),
        }
        return [paired(best, others, means, sign)]
    pairs = list(itertools.pairwise(claim.order))
    pairs += [(best, other) for best in claim.winners for other in numbers if other not in claim.winners]
    pairs += [(other, claim.worst) for other in numbers if claim.worst is not None and other != claim.worst]
    return [paired(high, low, numbers, sign) for high, low in pairs]


def _mean_of(members: Sequence[Ours]) -> Ours:
    """The mean of several numbers, seed by seed, in the seeds that all of them have."""
    common = [seed for seed in members[0].by_seed if all(seed in other.by_seed for other in members)]
    return Ours({seed: float(np.mean([member.by_seed[seed] for member in members])) for seed in common})


def evidence(claim: Claim, numbers: Mapping[str, Ours]) -> ClaimEvidence:
    """For and against a claim, from numbers of at least two seeds."""
    if claim.spread is not None:
        return _evidence_of_spread(claim.spread, numbers)
    compared = leads(claim, numbers)
    p_holds = sorted(p_above(lead.values, claim.margin) for lead in compared)
    p_fails = sorted(p_above(-lead.values, -claim.margin) for lead in compared)
    # Among the k highest of n: all but k − 1 others are below, or k of them are above. Which ones is not said
    # beforehand, so as many are corrected for as could be mistaken (Bonferroni).
    k, rest = claim.among, len(compared) - claim.among + 1
    deciding = sorted(compared, key=lambda lead: -p_above(lead.values, claim.margin))[k - 1]
    return ClaimEvidence(
        min(1.0, k * p_holds[rest - 1]), min(1.0, rest * p_fails[k - 1]), deciding, claim.margin, rest
    )


def _evidence_of_spread(spread: float, numbers: Mapping[str, Ours]) -> ClaimEvidence:
    """All pairs are within the spread, or one is certainly beyond it."""
    pairs = [paired(one, other, numbers) for one, other in itertools.permutations(numbers, 2)]
    p_within = [p_above(-pair.values, -spread) for pair in pairs]
    p_beyond = [p_above(pair.values, spread) for pair in pairs]
    deciding = pairs[int(np.argmax(p_within))]
    return ClaimEvidence(max(p_within), min(1.0, len(pairs) * min(p_beyond)), deciding, spread, len(pairs))


def corrected(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: below a level with at most that chance of any wrong one."""
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, which in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[which]))
        adjusted[which] = running
    return adjusted


def unfit(claim: Claim, numbers: Mapping[str, Ours]) -> tuple[Verdict, str] | None:
    """Why numbers say nothing about a claim, before any statistics."""
    if (
        len(numbers) <= claim.among
        or not all(n.known for n in numbers.values())
        or not set(named(claim)) <= set(numbers)
    ):
        return "not run", ""
    common = set.intersection(*(set(ours.by_seed) for ours in numbers.values()))
    if len(common) < 2:
        return "not judged", "one seed" if len(common) == 1 else "no seed in common"
    return None


def judged(found: ClaimEvidence, p: float, questions: int) -> tuple[Verdict, str]:
    """The verdict of one claim from its corrected p-value, and the difference that it rests on."""
    if p < LEVEL:
        return ("holds" if found.holds < found.fails else "does not hold"), str(found.lead)
    return "not judged", f"{found.lead}{_left_open_by(found, questions)}"


def _left_open_by(found: ClaimEvidence, questions: int) -> str:
    """Why a difference decides nothing."""
    lead, bound = found.lead, found.bound
    if found.p < LEVEL:
        return f" would do alone, but not as one of {questions} questions"
    if lead.half_width == 0:
        return f", the same in {len(lead.values)} seeds, which may be chance"
    if abs(lead.mean - bound) > lead.half_width:
        return f" would do alone, but not as one of {found.differences} differences"
    return f", an interval with {bound:g} in it" if bound else ", within its confidence interval"


def exactly(claim: Claim, numbers: Mapping[str, Ours]) -> Verdict:
    """The verdict about numbers that chance has no part in."""
    once = {name: Ours({0: ours.mean}) for name, ours in numbers.items()}
    if claim.spread is not None:
        means = [ours.mean for ours in once.values()]
        true = max(means) - min(means) <= claim.spread
    else:
        true = sum(lead.mean <= claim.margin for lead in leads(claim, once)) < claim.among
    return "holds" if true else "does not hold"


def p_apart(ours: Ours, printed: Printed | None, tolerance: float) -> float:
    """P-value of "our mean is further from the published number than tolerance and its standard deviation"."""
    if not isinstance(printed, Numeric) or ours.seeds < 2:
        return 1.0
    values = np.array(list(ours.by_seed.values()))
    low, high = (printed.value, printed.value) if isinstance(printed, Number) else (printed.low, printed.high)
    room = tolerance + printed.std
    return min(1.0, 2 * min(p_above(values, high + room), p_above(-values, -(low - room))))
