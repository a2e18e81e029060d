"""What follows from a league, in sentences that are computed from its numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from muster.league.gains import Gain, Gains, of_method, points, tally
from muster.league.outcome import LeagueTable
from muster.league.planning import seeds_in_words
from muster.league.tables import by_gain, mean_gain, told
from muster.report.compare.ranking import LEVEL, Ranking, nemenyi_p
from muster.report.intervals import mean_interval

_FEW_SEEDS = 10
#: Methods of the five papers that Muster began with: how they fared is said wherever they are placed.
FIVE_PAPERS = (
    "terraform",
    "astrafl",
    "probe-fairness",
    "diversity-score",
    "feddiverse",
    "feddiverse-qp",
    "simprox",
)


def conclusions(table: LeagueTable, gains: Gains) -> list[str]:
    """The short answer of one table."""
    found = [*_to_take(table, gains), *_ranks(table), *_over_problems(table, gains), *_most_often(table, gains)]
    return [*found, *_papers(table, gains), *_few(table.seeds.values())]


def _to_take(table: LeagueTable, gains: Gains) -> Iterator[str]:
    """What to use where nothing is known of a federation but that these problems stand for it."""
    baseline, methods = table.table.baseline, by_gain(table, gains)
    if len(gains) < 2 or not methods:
        return
    over = {name: _over_all(gains, name) for name in methods}
    ahead = [name for name, gain in over.items() if gain is not None and gain.clearly_better]
    safe = [name for name in ahead if not tally(gains, name)[1]]
    risky = [f"`{name}` (clearly worse in {_names_of_worse(gains, name)})" for name in ahead if name not in safe]
    if not ahead:
        somewhere = any(gain.clearly_better for own in gains.values() for gain in own.values())
        likeness = " Where your federation is like one of the problems below, try what was clearly better there."
        yield (
            f"Which to take: `{baseline}`. On average over problems no method gained over it clearly."
            f"{likeness if somewhere else ''}"
        )
        return
    named = ", ".join(f"`{name}` ({over[name]} points; clients tell {told(table, name)})" for name in safe)
    first = f"try {named}, and compare with `{baseline}`" if safe else f"`{baseline}`"
    care = f" With care, since not everywhere: {', '.join(risky)}." if risky else ""
    yield (
        f"Which to take: {first}.{care} These gained over `{baseline}` clearly on average over problems; of "
        f"{len(methods)} methods, {0.025 * len(methods):.1f} would by chance alone."
    )


def _names_of_worse(gains: Gains, name: str) -> str:
    return "; ".join(problem for problem, gain in of_method(gains, name).items() if gain.clearly_worse)


def _over_all(gains: Gains, name: str) -> Gain | None:
    """The mean gain over all problems with its interval; None where some problem lacks the method."""
    own = [gain.value for gain in of_method(gains, name).values()]
    return Gain(mean_gain(gains, name), *mean_interval(np.array(own))) if len(own) == len(gains) else None


def _few(seeds: Collection[int]) -> Iterator[str]:
    words, fewest = seeds_in_words(seeds), min(seeds)
    if max(seeds) == 1:
        yield f"{words}: there are no intervals within a problem, and nothing in one is clearly better or worse."
    elif fewest < _FEW_SEEDS:
        yield f"{words}: intervals within a problem are wide, and what is not clear here may still be so."


def _ranks(table: LeagueTable) -> Iterator[str]:
    found, baseline = table.comparison.ranking, table.table.baseline
    if found is None:
        return
    order = [found.methods[place] for place in np.argsort(found.mean, kind="stable")]
    rank = _mean_ranks(found)
    first = ", ".join(f"`{name}` ({rank[name]:.1f})" for name in order[:3])
    place = ""
    if baseline in rank and baseline not in order[:3]:
        place = f"; `{baseline}` is number {order.index(baseline) + 1} ({rank[baseline]:.1f})"
    yield (
        f"Best mean ranks of {len(order)} methods over {found.problems} problems: {first}{place}. Friedman's test "
        f"that all are alike: p = {found.friedman_p:.2g}."
    )
    if baseline in rank:
        yield _told_apart(found, baseline)


def _mean_ranks(found: Ranking | None) -> dict[str, float]:
    return {} if found is None else dict(zip(found.methods, found.mean.tolist(), strict=True))


def _told_apart(found: Ranking, baseline: str) -> str:
    if not found.decidable:
        return "There are too few problems to tell any two methods apart by their ranks (Nemenyi)."
    at, rank = found.methods.index(baseline), _mean_ranks(found)
    beyond_chance = nemenyi_p(found.mean, found.problems)[at] <= LEVEL
    apart = [name for name, far in zip(found.methods, beyond_chance, strict=True) if far]
    above = [name for name in apart if rank[name] < rank[baseline]]
    below = [name for name in apart if rank[name] > rank[baseline]]
    return (
        f"Ranks that differ from `{baseline}`'s by more than chance (Nemenyi, all pairs, {LEVEL:.0%}): better "
        f"{_names(above)}; worse {_names(below)}."
    )


def _over_problems(table: LeagueTable, gains: Gains) -> Iterator[str]:
    """Methods whose mean gain over problems is clearly above or below zero."""
    known, above, below = len(gains), [], []
    if known < 2:
        return
    for name in by_gain(table, gains):
        if (over := _over_all(gains, name)) is None:
            continue
        if over.clearly_better:
            above.append(f"`{name}` {over}")
        elif over.clearly_worse:
            below.append(f"`{name}` {over}")
    yield (
        f"Mean gain over `{table.table.baseline}` over all {known} problems, in points of accuracy, where its "
        f"interval over problems is above zero: {', '.join(above) or 'none'}; below zero: "
        f"{', '.join(below) or 'none'}."
    )


def _most_often(table: LeagueTable, gains: Gains) -> Iterator[str]:
    """Methods that are clearly better in most of their problems and clearly worse in none."""
    safe = []
    for name in by_gain(table, gains):
        (better, worse), tried = tally(gains, name), len(of_method(gains, name))
        if 2 * better > tried and not worse:
            safe.append(f"`{name}` ({better} of {tried})")
    yield (
        f"Clearly better than `{table.table.baseline}` in more than half of their problems, and clearly worse in "
        f"none: {', '.join(safe) or 'none'}."
    )


def _papers(table: LeagueTable, gains: Gains) -> Iterator[str]:
    rank, words = _mean_ranks(table.comparison.ranking), []
    for name in FIVE_PAPERS:
        if not (tried := len(of_method(gains, name))):
            continue
        better, worse = tally(gains, name)
        placed = f"mean rank {rank[name]:.1f}, " if name in rank else ""
        gained = f"mean gain {points(mean_gain(gains, name))}"
        words.append(f"`{name}` {placed}{gained}, clearly better in {better} and worse in {worse} of {tried}")
    if words:
        yield f"The methods of the five papers that Muster began with: {'; '.join(words)}."


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"
