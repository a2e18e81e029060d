"""What stands out, in words, from rules with stated thresholds (docs/inspect.md lists them).

Rules are about facts: what the samples are like, what follows for judging, what no selection can change. Which
method helps is for experiments to say (`Recommendation`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import gammaln
from scipy.stats import chi2_contingency

from muster.core.arrays import Floats, Ints
from muster.core.inequality import gini
from muster.heterogeneity.metrics import effective_clients

#: Above this a client counts as strongly skewed: about a split of 80 to 20 of two classes.
STRONG = 0.3
#: The share of clients that must be strongly skewed for advice.
MANY_CLIENTS = 0.2
#: Above this all data together count as skewed: about a split of 70 to 30.
GLOBAL = 0.1
#: Clients' labels differ from all data by this many bits on average, and beyond chance: see `beyond_chance`.
LABEL_SKEW, BEYOND_CHANCE = 0.1, 2.0
#: Below this many bits, or below chance, clients are alike.
ALIKE = 0.02
UNEVEN_SIZES = 0.4
SMALL_CLIENT, MANY_SMALL = 10, 0.1
#: A class is this many times as frequent with one attribute value as with another, beyond what chance would give.
RATES, SURE = 2.0, 0.01
#: Rates that differ by less are called alike.
EVEN_RATES = 1.25
#: A class is rare when a random cohort misses it in at least this share of the rounds.
MISSED = 0.25


def str_of_group(label: int, attribute: int) -> str:
    return f"class {label}, attribute {attribute}"


@dataclass(frozen=True)
class FederationFacts:
    """What the rules look at."""

    metrics: dict[str, float]
    triplets: Floats
    sizes: np.ndarray[Any, Any]
    #: For each class, how many clients have any of it.
    holders: Ints
    #: Clients that take part in a round.
    cohort: int
    #: Mean divergence of clients' labels from all data, and what chance alone would give (bits).
    divergence: float
    chance: float
    class_names: Sequence[str]
    #: The same of clients' groups (class × attribute).
    group_divergence: float = 0.0
    group_chance: float = 0.0
    #: Samples of all data, classes × attribute values; None without attributes.
    pooled: Floats | None = None
    #: (class, attribute value) → its name.
    group_name: Callable[[int, int], str] = str_of_group
    #: Whether a few clients alone have some group, so that many cohorts lack it: see `concentrated`.
    concentrated: bool = False

    @property
    def differ(self) -> bool:
        """Whether clients differ by more than chance: on average, or in what a few of them alone have."""
        return self.concentrated or self.group_divergence >= max(ALIKE, beyond_chance(self.group_chance))

    @property
    def choice(self) -> bool:
        """Whether cohorts can differ at all: clients do, and not all take part."""
        return self.differ and self.cohort < len(self.sizes)

    @property
    def no_choice(self) -> str:
        return why_no_choice(len(self.sizes), self.cohort)


#: Of methods that mix clients by their skews: what they would have to guess is known here.
KNOWN_ATTRIBUTES = 'Clients know their attributes: `feddiverse` can take them as they are (`estimate = "true"`).'


def beyond_chance(bits: float) -> float:
    """Divergences that chance does not explain: twice what it gives, or `LABEL_SKEW` more if that is less.

    None is above one bit, and where classes are many and samples few, chance alone gives more than half of it.
    """
    return min(BEYOND_CHANCE * bits, bits + LABEL_SKEW)


def why_no_choice(clients: int, cohort: int) -> str:
    """Why choosing clients is of no use, where it is not."""
    if clients == 1:
        return "There is one client, so there is nothing to select."
    if cohort == clients:
        return "All clients take part in every round, so there is nothing to select."
    return "Every cohort has the same mix, but for chance, so no selection can change it."


@dataclass(frozen=True)
class Advice:
    """What stands out, and what to do about it."""

    finding: str
    text: str


@dataclass(frozen=True)
class Recommendation(Advice):
    """Which methods helped where it was tried, with the numbers."""

    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def advise(facts: FederationFacts) -> list[Advice]:
    """All rules that apply, in a fixed order; or a single one saying that none does."""
    found = [advice for rule in RULES if (advice := rule(facts)) is not None]
    if found:
        return found
    return [Advice("Nothing stands out", "No rule applies.")]


def spurious_correlation(facts: FederationFacts) -> Advice | None:
    many = strong_share(facts.triplets[:, 2])
    if "GSC" not in facts.metrics or many < MANY_CLIENTS:
        return None
    overall, uneven = facts.metrics["GSC"], uneven_rates(facts.pooled)
    if overall >= GLOBAL or (uneven is not None and uneven.ratio >= EVEN_RATES):
        whole = f"All data together have it too (GSC {overall:.2f}), so a good cohort can only weaken it."
    else:
        whole = (
            f"Over all data it nearly cancels out (GSC {overall:.2f}): a well-mixed cohort is nearly free of it."
        )
    remedy = f"{whole} {KNOWN_ATTRIBUTES}" if facts.choice else facts.no_choice
    return Advice(
        f"Strong spurious correlation in {many:.0%} of clients",
        f"Models tend to learn the attribute instead of the class: judge by worst-group accuracy. {remedy}",
    )


def empty_groups(facts: FederationFacts) -> Advice | None:
    """Groups without a sample on any client, although their class and their attribute value occur."""
    if facts.pooled is None:
        return None
    table = np.asarray(facts.pooled)
    possible = (table.sum(axis=1, keepdims=True) > 0) & (table.sum(axis=0, keepdims=True) > 0)
    empty = np.argwhere((table == 0) & possible)
    if not len(empty):
        return None
    example = facts.group_name(*map(int, empty[0]))
    return Advice(
        f"{len(empty)} of {int(possible.sum())} groups {'has' if len(empty) == 1 else 'have'} no sample at all",
        f"No client has {example}. A model may take the attribute for the class there, no test of these clients "
        "shows it, and neither selection nor aggregation can make up for it: get such samples, at least to test.",
    )


def uneven_groups(facts: FederationFacts) -> Advice | None:
    """A class that is much more frequent with one attribute value than with another, in all data together."""
    uneven = uneven_rates(facts.pooled)
    if uneven is None or uneven.ratio < RATES or facts.pooled is None:
        return None
    table = np.asarray(facts.pooled)
    smallest = np.unravel_index(int(np.argmin(np.where(table > 0, table, np.inf))), table.shape)
    often, seldom = (facts.group_name(uneven.label, value) for value in (uneven.most, uneven.least))
    remedy = KNOWN_ATTRIBUTES if facts.choice else facts.no_choice
    return Advice(
        f"One class is {uneven.ratio:.1f} times as frequent with one attribute value as with another",
        f"Of its attribute value's samples, {uneven.high:.0%} are {often}, and {uneven.low:.0%} {seldom}: the "
        f"attribute predicts the class. The smallest group is {facts.group_name(*map(int, smallest))}, with "
        f"{table[smallest]:,.0f} samples: judge by worst-group accuracy. {remedy}",
    )


@dataclass(frozen=True)
class UnevenRates:
    """The class whose share differs most between attribute values."""

    label: int
    most: int
    least: int
    high: float
    low: float

    @property
    def ratio(self) -> float:
        return self.high / self.low


def uneven_rates(pooled: Floats | None) -> UnevenRates | None:
    """P(class | attribute value) at its largest against its smallest, over classes; None where it may be chance.

    Groups without a sample are left to `empty_groups`: their ratio is infinite.
    """
    if pooled is None:
        return None
    table = np.asarray(pooled, dtype=np.float64)
    table = table[:, table.sum(axis=0) > 0]
    present = table[table.sum(axis=1) > 0]
    if present.shape[0] < 2 or present.shape[1] < 2 or chi2_contingency(present).pvalue > SURE:
        return None
    values = np.flatnonzero(np.asarray(pooled).sum(axis=0) > 0)
    rates = np.where(table > 0, table / table.sum(axis=0), np.nan)
    whole = ~np.isnan(rates).any(axis=1)
    if not whole.any():
        return None
    ratios = np.where(whole, np.nanmax(rates, axis=1, initial=0) / np.nanmin(rates, axis=1, initial=1), 0.0)
    label = int(np.argmax(ratios))
    most, least = int(np.argmax(rates[label])), int(np.argmin(rates[label]))
    return UnevenRates(
        label, int(values[most]), int(values[least]), float(rates[label, most]), float(rates[label, least])
    )


def attribute_imbalance(facts: FederationFacts) -> Advice | None:
    if "GAI" not in facts.metrics:
        return None
    many, overall = strong_share(facts.triplets[:, 1]), facts.metrics["GAI"]
    if many < MANY_CLIENTS and overall < GLOBAL:
        return None
    rare = (
        "Some attribute values are rare in all data, and the mean accuracy hides how well they are served"
        if overall >= GLOBAL
        else "Many clients see mainly one attribute value, though all data together are even"
    )
    where = f"in {many:.0%} of clients" if many >= MANY_CLIENTS else "in all data"
    return Advice(
        f"High attribute imbalance {where} (GAI {overall:.2f})",
        f"{rare}: judge by worst-group accuracy. " + (KNOWN_ATTRIBUTES if facts.choice else facts.no_choice),
    )


def class_imbalance_of_clients(facts: FederationFacts) -> Advice | None:
    many = strong_share(facts.triplets[:, 0])
    if many < MANY_CLIENTS:
        return None
    finding, overall = f"High class imbalance in {many:.0%} of clients", facts.metrics["GCI"]
    if not facts.differ:
        return Advice(
            finding,
            f"{facts.no_choice} Report macro F1 as well as accuracy, and weight or collect samples of rare "
            "classes.",
        )
    if not facts.choice:
        together = f"Together they are as even as all data (GCI {overall:.2f})."
    elif overall < GLOBAL:
        together = "Clients of different classes can be balanced together, in a cohort or over rounds."
    else:
        together = (
            "Clients of different classes can even each other out, in a cohort or over rounds, but rare classes "
            f"stay rare: all data together are imbalanced too (GCI {overall:.2f})."
        )
    return Advice(
        finding,
        f"{together} Models of single clients drift towards their own classes, the more the longer they train "
        "between two rounds.",
    )


def class_imbalance_of_all(facts: FederationFacts) -> Advice | None:
    overall = facts.metrics["GCI"]
    if overall < GLOBAL:
        return None
    return Advice(
        f"All data together are imbalanced (GCI {overall:.2f})",
        "Accuracy rewards guessing the frequent classes: report macro F1 as well. "
        + (
            "Selection can even out cohorts, but cannot make up for samples that no client has."
            if facts.choice
            else facts.no_choice
        ),
    )


def label_skew(facts: FederationFacts) -> Advice | None:
    if facts.divergence < max(LABEL_SKEW, beyond_chance(facts.chance)):
        return None
    return Advice(
        f"Clients have different labels ({facts.divergence:.2f} bits from all data, {facts.chance:.3f} by chance)",
        f"Expect a gap between {'methods' if facts.choice else 'aggregators and local algorithms'}, and slow "
        "progress with many local epochs.",
    )


def alike(facts: FederationFacts) -> Advice | None:
    if facts.differ or len(facts.sizes) == 1:
        return None
    return Advice(
        f"Clients are nearly alike ({facts.group_divergence:.3f} bits from all data, {facts.group_chance:.3f} by "
        "chance)",
        "Every cohort looks like all data together, but for chance. Random selection with FedAvg is hard to beat "
        "here; methods that look at labels have nothing to go on.",
    )


def everybody(facts: FederationFacts) -> Advice | None:
    if facts.cohort < len(facts.sizes):
        return None
    if len(facts.sizes) == 1:
        return Advice(
            "There is one client",
            "There is nothing to select and nothing to aggregate: this is training on one machine "
            '(`training.mode = "centralised"`).',
        )
    return Advice(
        f"All {len(facts.sizes)} clients take part in every round",
        "There is nothing to select: compare aggregators and local algorithms, or choose a smaller cohort.",
    )


def uneven_sizes(facts: FederationFacts) -> Advice | None:
    uneven = gini(facts.sizes)
    if uneven < UNEVEN_SIZES:
        return None
    largest = np.sort(facts.sizes)[::-1][: max(1, len(facts.sizes) // 10)].sum() / facts.sizes.sum()
    equal = effective_clients(facts.sizes)
    return Advice(
        f"Sizes are uneven (Gini {uneven:.2f}): as spread out as {equal:,.0f} equal clients",
        f"The largest tenth of the clients has {largest:.0%} of the samples and will dominate a mean that is "
        'weighted by size; with `weights = "equal"` they do not.',
    )


def small_clients(facts: FederationFacts) -> Advice | None:
    small = float((facts.sizes < SMALL_CLIENT).mean())
    if small < MANY_SMALL:
        return None
    return Advice(
        f"{small:.0%} of clients have fewer than {SMALL_CLIENT} samples",
        "What they measure (losses, norms, label shares) is mostly noise: methods that rank clients by it, such "
        "as `high-loss` or `oort`, will favour some of them by chance.",
    )


def rare_classes(facts: FederationFacts) -> Advice | None:
    missed = miss_probabilities(facts.holders, len(facts.sizes), facts.cohort)
    rare = np.flatnonzero((missed >= MISSED) & (facts.holders > 0))
    if not len(rare):
        return None
    rarest = int(rare[np.argmax(missed[rare])])
    return Advice(
        f"{len(rare)} of {len(missed)} classes would be missing from many random cohorts",
        f"{facts.class_names[rarest]} is held by {facts.holders[rarest]:,} of {len(facts.sizes):,} clients: a "
        f"random cohort of {facts.cohort:,} misses it in {missed[rarest]:.0%} of the rounds. Larger cohorts "
        "miss it less often; `round-robin` reaches every client in turn.",
    )


RULES: tuple[Callable[[FederationFacts], Advice | None], ...] = (
    empty_groups,
    spurious_correlation,
    uneven_groups,
    attribute_imbalance,
    class_imbalance_of_clients,
    class_imbalance_of_all,
    label_skew,
    alike,
    everybody,
    uneven_sizes,
    small_clients,
    rare_classes,
)


def strong_share(values: Floats) -> float:
    """Share of the clients that are strongly skewed."""
    return float((values >= STRONG).mean())


def concentrated(table: Floats, cohort: int) -> bool:
    """Whether far fewer clients have some group than chance would give it to, and many random cohorts lack it.

    `table`: clients × groups. By chance a client of n samples lacks a group of share p with probability (1 − p)ⁿ.
    """
    sizes, holders = table.sum(axis=1), np.count_nonzero(table, axis=0)
    shares = table.sum(axis=0) / table.sum()
    # Group by group: clients × groups may be large.
    by_chance = np.array([np.sum(1 - (1 - share) ** sizes) for share in shares])
    often = miss_probabilities(holders, len(table), cohort) >= MISSED
    return bool((often & (holders > 0) & (BEYOND_CHANCE * holders < by_chance)).any())


def miss_probabilities(holders: Ints, clients: int, cohort: int) -> Floats:
    """For each class, the probability that none of `cohort` clients, drawn uniformly, has it."""
    others = np.asarray(clients - holders, dtype=np.float64)

    def log_ways(among: Floats) -> Floats:
        return np.asarray(gammaln(among + 1) - gammaln(among - cohort + 1))

    enough = others >= cohort
    missed = np.exp(log_ways(np.where(enough, others, cohort)) - log_ways(np.array(float(clients))))
    return np.asarray(np.where(enough, missed, 0.0))
