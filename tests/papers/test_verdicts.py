"""Verdicts about claims: what is judged, what is not, and how often equal methods are told apart by mistake."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

from muster.core.errors import ConfigError
from muster.papers import published as publishing
from muster.papers.entries import Claim, PaperEntry, Scale, Value, entries, entry
from muster.papers.outcome import Compared, checked
from muster.papers.planning import Plan
from muster.papers.published import Number, Published, PublishedRange
from muster.papers.verdicts import (
    NOTHING,
    Ours,
    corrected,
    evidence,
    exactly,
    judged,
    leads,
    p_above,
    p_apart,
    unfit,
)


def ours(*values: float) -> Ours:
    return Ours(dict(enumerate(values)))


def verdict(claim: Claim, numbers: dict[str, Ours]) -> str:
    """Of a claim that is the only question."""
    if (no_verdict := unfit(claim, numbers)) is not None:
        return ": ".join(filter(None, no_verdict))
    found = evidence(claim, numbers)
    return judged(found, found.p, 1)[0]


def around(*means: float, spread: float = 0.5) -> dict[str, Ours]:
    """Numbers of four seeds; differences between rows vary from seed to seed."""
    noise = np.random.default_rng(3).normal(0, spread, (len(means), 4))
    return {name: ours(*(mean + noise[i])) for i, (name, mean) in enumerate(zip("abcdef", means, strict=False))}


# --- one claim ---------------------------------------------------------------------------------------------------


def test_the_best_and_the_worst():
    best, worst = Claim("", best="a"), Claim("", worst="a")
    assert verdict(best, around(90, 80, 70)) == "holds"
    assert verdict(best, around(80, 90, 70)) == "does not hold"
    assert verdict(best, around(80, 80.1, 70)) == "not judged"
    assert verdict(best, around(80.1, 80, 70)) == "not judged"
    assert verdict(worst, around(70, 80)) == "holds"
    assert verdict(worst, around(90, 80)) == "does not hold"
    assert verdict(dataclasses.replace(best, lower=True), around(70, 80)) == "holds"


def test_several_may_be_above_all_others_and_by_a_margin():
    both = Claim("", best=("a", "b"))
    assert verdict(both, around(90, 70, 50)) == "holds", "nothing is said about a and b"
    assert verdict(both, around(90, 50, 70)) == "does not hold"
    by_five = Claim("", best="a", margin=5)
    assert verdict(by_five, around(90, 80)) == "holds"
    assert verdict(by_five, around(81, 80)) == "does not hold", "above, but not by so much"
    assert verdict(by_five, around(85, 80)) == "not judged"


def test_best_or_second_best():
    claim = Claim("", best="c", among=2)
    assert verdict(claim, around(90, 70, 80, 60)) == "holds"
    assert verdict(claim, around(70, 60, 90, 50)) == "holds"
    assert verdict(claim, around(90, 85, 80, 60)) == "does not hold"
    assert verdict(claim, around(90, 80, 80, 60)) == "not judged"
    assert verdict(Claim("", best="a", among=2), around(90, 80)) == "not run", "it could not fail"
    assert evidence(claim, around(90, 70, 80, 60)).lead.low == "b"
    assert exactly(claim, {"a": ours(3.0), "b": ours(1.0), "c": ours(2.0)}) == "holds"
    assert exactly(claim, {"a": ours(3.0), "b": ours(2.5), "c": ours(2.0)}) == "does not hold"


def test_a_claim_about_means_of_groups():
    lower_on_average = Claim("", best=("a", "b"), average=True, margin=2)
    numbers = {"a": ours(80, 81, 82), "b": ours(82, 83, 84), "c": ours(82, 83.1, 84), "d": ours(70, 71, 72.1)}
    (lead,) = leads(lower_on_average, numbers)
    assert str(lead).startswith("a, b − the others: +4.97 ± ")
    assert verdict(lower_on_average, numbers) == "holds", "although c is above a"
    assert verdict(dataclasses.replace(lower_on_average, average=False), numbers) == "does not hold"


def test_order_and_spread():
    order = Claim("", order=("a", "b", "c"))
    assert verdict(order, around(90, 60, 30)) == "holds"
    assert verdict(order, around(90, 30, 60)) == "does not hold"
    spread = Claim("", spread=5)
    assert verdict(spread, around(60, 60.2)) == "holds"
    assert verdict(spread, around(60, 80)) == "does not hold"
    assert verdict(spread, around(60, 65)) == "not judged"


def test_differences_are_taken_seed_by_seed():
    """Always ahead by as much, however much seeds differ."""
    claim = Claim("", best="a")
    numbers = {"a": ours(40, 50, 60, 45), "b": ours(39, 49.1, 58.9, 44.1)}
    assert verdict(claim, numbers) == "holds"
    numbers["b"] = ours(58, 49, 40, 46)
    assert verdict(claim, numbers) == "not judged"


def test_only_seeds_that_both_have_are_compared():
    claim = Claim("", best="a")
    numbers = {"a": Ours({0: 90, 1: 91.01, 2: 10}), "b": Ours({0: 80, 1: 81})}
    assert verdict(claim, numbers) == "holds"


def test_why_a_claim_is_not_judged():
    claim = Claim("", best="a")
    assert verdict(claim, {"a": ours(90), "b": ours(10)}) == "not judged: one seed"
    assert verdict(claim, {"a": Ours({0: 90}), "b": Ours({1: 10})}) == "not judged: no seed in common"
    assert verdict(claim, {"b": ours(9, 8), "c": ours(8, 7)}) == "not run"
    assert verdict(claim, {"a": ours(9, 8)}) == "not run"
    assert verdict(claim, {"a": ours(9, 8), "b": NOTHING}) == "not run"
    close = evidence(claim, {"a": ours(80, 82, 81), "b": ours(81, 80, 81)})
    assert judged(close, close.p, 1) == ("not judged", "a − b: +0.33 ± 3.79, within its confidence interval")
    clear = evidence(claim, {"a": ours(82, 83, 85), "b": ours(80, 81, 82)})
    assert clear.p < 0.05
    assert judged(clear, 12 * clear.p, 12)[1].endswith("would do alone, but not as one of 12 questions")


def test_the_reason_for_no_verdict_is_true_of_the_difference_that_is_shown():
    def why(claim, numbers):
        found = evidence(claim, numbers)
        name, reason = judged(found, found.p, 1)
        assert name == "not judged"
        return reason

    best = Claim("", best="a")
    # b is surely below a; whether c is, nobody knows, although its mean is lower still.
    numbers = {"a": ours(80, 81, 82), "b": ours(79, 80, 81.1), "c": ours(70, 84, 77)}
    assert why(best, numbers).startswith("a − c: +4.00 ± ")
    assert why(best, numbers).endswith(", within its confidence interval")
    # One of two is above a, by more than its own interval, but not if both are asked about.
    numbers = {"a": ours(80, 81, 82), "b": ours(80.7, 82, 83.4), "c": ours(70, 71, 72.5)}
    assert why(best, numbers) == "a − b: -1.03 ± 0.87 would do alone, but not as one of 2 differences"
    # Whether a difference is at most 1 (or at least 5) is another question than whether there is one.
    numbers = {"a": ours(80, 81, 82), "b": ours(79.1, 80, 81.3)}
    assert why(Claim("", spread=1), numbers) == "a − b: +0.87 ± 0.38, an interval with 1 in it"
    assert why(Claim("", best="a", margin=0.7), numbers) == "a − b: +0.87 ± 0.38, an interval with 0.7 in it"
    # Coarse numbers.
    assert why(best, {"a": ours(81, 82), "b": ours(80, 81)}) == (
        "a − b: +1.00 ± 0.00, the same in 2 seeds, which may be chance"
    )


def test_numbers_without_chance_are_compared_as_they_are():
    assert exactly(Claim("", best="a"), {"a": ours(0.7), "b": ours(0.6)}) == "holds"
    assert exactly(Claim("", best="a"), {"a": ours(0.6), "b": ours(0.6)}) == "does not hold"
    assert exactly(Claim("", spread=0.2), {"a": ours(0.7), "b": ours(0.6)}) == "holds"


# --- against slow forms ------------------------------------------------------------------------------------------


def test_p_values_are_those_of_a_paired_t_test():
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = rng.normal(0.3, 1, rng.integers(2, 8))
        bound = rng.normal()
        reference = stats.ttest_1samp(values, bound, alternative="greater").pvalue
        assert p_above(values, bound) == pytest.approx(reference, rel=1e-9)
    assert p_above(np.zeros(3)) == 1
    assert p_above(np.ones(3)) == 1 / 8


def test_holm_agrees_with_its_definition():
    """Step down: the k-th smallest is rejected as long as p ≤ level / (m − k), and all smaller ones were."""
    rng = np.random.default_rng(1)
    for _ in range(100):
        p_values = rng.random(rng.integers(1, 9)) ** 3
        level, order = rng.random(), np.argsort(p_values)
        rejected = np.zeros(len(p_values), dtype=bool)
        for k, which in enumerate(order):
            if p_values[which] > level / (len(p_values) - k):
                break
            rejected[which] = True
        assert (np.array(corrected(p_values.tolist())) <= level).tolist() == rejected.tolist()
    assert corrected([]) == []


# --- the rate of mistakes ----------------------------------------------------------------------------------------

CELLS, ROWS = ("A", "B", "C"), ("a", "b", "c", "d")
CLAIMS = (
    Claim("best", best="a"),
    Claim("worst", worst="d"),
    Claim("order", order=("a", "b", "c")),
    Claim("above", rows="a,b", best="b"),
    Claim("by a margin", best="c", margin=0.0),
    Claim("cells", over="cells", best="A"),
    Claim("best or second best", best="a", among=2),
)


def plan_of(claims: tuple[Claim, ...]) -> Plan:
    example = PaperEntry(
        id="example/table1",
        published=Published(""),
        kind="runs",
        cells={cell: {} for cell in CELLS},
        rows={row: {} for row in ROWS},
        values=(Value("accuracy"),),
        row="{row}",
        column="{cell}",
        scales={"paper": Scale()},
        claims=claims,
    )
    return Plan(example, "paper", CELLS, ROWS, 3, ())


def equal_methods(rng: np.random.Generator, seeds: int, step: float = 0.0) -> list[Compared]:
    """All the same, but for chance: a part that the rows of a cell share, and one of their own.

    Numbers are multiples of `step`, as shares of few samples are.
    """
    shared = rng.normal(0, 2, (len(CELLS), 1, seeds))
    values = 80 + shared + rng.normal(0, 1, (len(CELLS), len(ROWS), seeds))
    values = np.round(values / step) * step if step else values
    return [
        Compared(cell, row, Value("accuracy"), None, ours(*values[i, j]), {}, {}, NOTHING)
        for i, cell in enumerate(CELLS)
        for j, row in enumerate(ROWS)
    ]


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_equal_methods_are_told_apart_in_at_most_one_of_twenty_tables(seeds):
    """Any verdict about any of 22 questions counts as a mistake. Deviations alone made one in most tables."""
    rng = np.random.default_rng(seeds)
    plan, tables = plan_of(CLAIMS), 600
    wrong = sum(
        any(found.verdict in ("holds", "does not hold") for found in checked(plan, equal_methods(rng, seeds)))
        for _ in range(tables)
    )
    # Three standard errors of a rate of 5 %.
    assert wrong / tables <= 0.05 + 3 * (0.05 * 0.95 / tables) ** 0.5
    assert wrong > 0, "a rule that never answers would pass, too"


@pytest.mark.parametrize("seeds", [2, 3])
@pytest.mark.parametrize("step", [0.28, 1.0])
def test_coarse_numbers_that_agree_by_chance_are_no_certainty(seeds, step):
    """Of 360 test samples one is 0.28 points; counts are whole. Equal differences of two seeds were a verdict."""
    rng = np.random.default_rng(seeds)
    plan, tables = plan_of((Claim("best", best="a"),)), 400
    wrong = sum(
        any(
            found.verdict in ("holds", "does not hold") for found in checked(plan, equal_methods(rng, seeds, step))
        )
        for _ in range(tables)
    )
    assert wrong / tables <= 0.05 + 3 * (0.05 * 0.95 / tables) ** 0.5


def test_real_differences_are_still_found():
    rng = np.random.default_rng(7)
    plan = plan_of((Claim("best", best="a"),))
    numbers = [
        dataclasses.replace(n, ours=ours(*(v + 8 * (n.row == "a") for v in n.ours.by_seed.values())))
        for n in equal_methods(rng, 5)
    ]
    assert [found.verdict for found in checked(plan, numbers)] == ["holds"] * 3


# --- numbers beside published ones -------------------------------------------------------------------------------


def test_a_number_is_apart_beyond_tolerance_spread_and_chance():
    close = ours(80, 80.1, 79.9)
    assert p_apart(close, Number(81.9), 2.0) == 1
    assert p_apart(close, Number(82.5), 2.0) < 0.05
    assert p_apart(close, Number(85, 3.5), 2.0) == 1
    assert p_apart(ours(75, 80, 85), Number(83), 2.0) > 0.05
    assert p_apart(NOTHING, Number(85), 2.0) == p_apart(ours(80), Number(85), 2.0) == 1
    assert p_apart(close, "not scalable", 2.0) == 1


def test_ranges_are_checked():
    close = ours(80, 80.1, 79.9)
    assert p_apart(close, PublishedRange(79, 81), 0.0) == 1
    assert p_apart(close, PublishedRange(70, 79), 0.0) < 0.05
    assert p_apart(close, PublishedRange(81, 85), 0.0) < 0.05
    assert PublishedRange(37, 38).apart(37.5) == 0
    assert PublishedRange(37, 38).apart(40) == 2
    assert PublishedRange(37, 38).apart(36) == -1
    read = publishing._printed
    assert read("37 to 38", "") == read("38–37", "") == PublishedRange(37, 38)
    assert read("not scalable", "") == "not scalable"
    assert read([88.01, 0.96], "") == Number(88.01, 0.96)
    with pytest.raises(ConfigError, match='a range is written as "37 to 38"'):
        read([37, 38], "in row x")


def test_equal_numbers_are_rarely_marked():
    """The published number is the truth: marks at all are mistakes."""
    rng = np.random.default_rng(0)
    tables, wrong = 600, 0
    for _ in range(tables):
        values = rng.normal(80, 3, (12, 3))
        p_values = corrected([p_apart(ours(*row), Number(80.0), 0.0) for row in values])
        wrong += min(p_values) < 0.05
    assert 0 < wrong / tables <= 0.05 + 3 * (0.05 * 0.95 / tables) ** 0.5


def test_tolerances_fit_their_columns():
    table = entry("astrafl/table3")
    by_name = {value.name: table.tolerance_of(value) for value in table.values}
    assert by_name["Avg Acc"] == 2
    assert 0 < by_name["Std (×10⁻³)"] < 3, "2 points would be 20 thousandths, more than most of the column"
    assert entry("simprox/table3").tolerance_of(Value("accuracy", tolerance=0.3)) == 0.3
    said = dataclasses.replace(table, tolerance=0.0)
    assert {said.tolerance_of(value) for value in said.values} == {0}
    for one in entries().values():
        for value in one.values:
            assert one.tolerance_of(value) >= 0
