"""Paired tests: against SciPy, against all assignments of signs, and what few seeds can show."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import bootstrap, rankdata, ttest_1samp, wilcoxon

from muster.report.compare.pairs import pairs, seeds_needed, significance, verdicts
from muster.report.compare.significance import (
    holm,
    paired_test,
    signed_rank_p,
    smallest_p,
)
from muster.report.intervals import MANY_VALUES, interval_words, mean_band, mean_interval
from muster.report.tables import Column, from_columns, over_seeds
from muster.results.cases import Case

differences = st.lists(st.integers(-6, 6), min_size=1, max_size=8).map(lambda values: np.array(values) / 100)


def p_by_all_signs(values: np.ndarray) -> float:
    """The textbook: how many of the 2ⁿ assignments of signs are at least as far from the middle."""
    values = np.round(values[np.round(values, 12) != 0], 12)
    if not len(values):
        return 1.0
    ranks = rankdata(np.abs(values))
    middle = ranks.sum() / 2
    seen = abs(ranks[values > 0].sum() - middle)
    sums = np.array([ranks[np.array(signs, dtype=bool)].sum() for signs in product([0, 1], repeat=len(values))])
    return float(np.mean(np.abs(sums - middle) >= seen - 1e-9))


@settings(max_examples=80, deadline=None)
@given(differences)
def test_exact_p_with_ties_and_zeros(values):
    assert signed_rank_p(values) == pytest.approx(p_by_all_signs(values))


@pytest.mark.parametrize("count", [3, 5, 10, 20])
def test_exact_p_is_scipys_where_nothing_is_tied(count):
    values = np.random.default_rng(count).normal(0.3, 1.0, count)
    assert signed_rank_p(values) == pytest.approx(wilcoxon(values, method="exact").pvalue)


def test_equal_on_paper_is_tied():
    assert 0.3 - 0.1 < 0.4 - 0.2, "else this would test nothing"
    assert signed_rank_p(np.array([0.4 - 0.2, -(0.3 - 0.1), 0.5])) == pytest.approx(0.75)
    assert signed_rank_p(np.array([0.2, -0.1, 0.5])) == pytest.approx(0.5)


@pytest.mark.parametrize(("pairs", "p"), [(1, 1.0), (2, 0.5), (3, 0.25), (5, 0.0625), (6, 0.03125)])
def test_the_smallest_p_is_reached_when_all_signs_agree(pairs, p):
    assert smallest_p(pairs) == p
    assert signed_rank_p(np.linspace(0.1, 0.2, pairs)) == pytest.approx(p)


@pytest.mark.parametrize(("comparisons", "seeds"), [(1, 6), (2, 7), (3, 7), (4, 8)])
def test_seeds_that_it_takes(comparisons, seeds):
    assert seeds_needed(comparisons) == seeds


@settings(max_examples=30, deadline=None)
@given(differences, st.randoms(use_true_random=False))
def test_the_order_of_seeds_does_not_matter(values, random):
    mixed = np.array(random.sample(list(values), len(values)))
    assert signed_rank_p(mixed) == signed_rank_p(values)
    np.testing.assert_array_equal(mean_interval(mixed), mean_interval(values))


def test_bootstrap_of_many_values_is_scipys():
    values = np.random.default_rng(0).normal(0.02, 0.05, MANY_VALUES)
    oracle = bootstrap((values,), np.mean, n_resamples=20_000, method="BCa", rng=1).confidence_interval
    np.testing.assert_allclose(mean_interval(values), [oracle.low, oracle.high], atol=2e-3)
    low, high = mean_interval(values)
    assert values.min() <= low < values.mean() < high <= values.max()
    assert np.isnan(mean_interval(values[:1])).all()


def test_equal_values_have_no_interval_and_tiny_ones_the_right_one():
    assert mean_interval(np.full(4, 0.3)) == (0.3, 0.3)
    assert mean_interval(np.array([0.1 + 0.2, 0.3])) == (0.3, 0.1 + 0.2)
    values = np.array([0.1, 0.4, 0.2, 0.7, 0.3])
    np.testing.assert_allclose(
        np.array(mean_interval(1e-180 * values)) / 1e-180, mean_interval(values), rtol=1e-12
    )


def test_a_band_is_the_interval_at_every_point():
    values = np.random.default_rng(1).normal(size=(8, 5))
    values[:, 2] = 1.0
    low, high = mean_band(values)
    for point in range(5):
        np.testing.assert_allclose(mean_interval(values[:, point]), (low[point], high[point]), atol=0.15)
    assert (low[2], high[2]) == (1.0, 1.0)
    np.testing.assert_array_equal(mean_band(values[:1]), [values[0]] * 2)


def test_holm_by_hand():
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm(np.array([0.6, 0.9])), [1.0, 1.0])
    assert holm(np.array([])).size == 0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_lies_between_p_and_bonferroni(p_values):
    p = np.array(p_values)
    corrected = holm(p)
    assert (corrected >= p).all()
    assert (corrected <= np.minimum(1, p * len(p)) + 1e-12).all()


def test_stars_that_cannot_be_earned_are_not_printed():
    three = [paired_test(np.array([0.9, 0.91, 0.92]), np.array([0.1, 0.2, 0.3])) for _ in range(2)]
    assert verdicts(three, holm(np.array([test.p for test in three])), correct=True) == ["too few seeds"] * 2
    eight = [paired_test(np.arange(8) / 10 + 0.1, np.arange(8) / 11), paired_test(np.ones(8), np.ones(8))]
    assert verdicts(eight, holm(np.array([test.p for test in eight])), correct=True) == ["yes", "no"]


def test_six_seeds_are_enough_for_one_comparison_and_too_few_for_two():
    six = [paired_test(np.arange(6) / 10 + 0.1, np.zeros(6))] * 2
    p = np.array([test.p for test in six])
    assert verdicts(six, p, correct=False) == ["yes", "yes"]
    assert verdicts(six, holm(p), correct=True) == ["too few seeds"] * 2


def test_pairs_are_made_by_seed(run_of):
    mine = Case("a", tuple(run_of("a", seed, [seed / 10]) for seed in (2, 0, 1)))
    theirs = Case("b", tuple(run_of("b", seed, [seed / 20]) for seed in (0, 1, 3)))
    own, other = pairs(mine, theirs, lambda run: run.final())
    assert own.tolist() == [0.0, 0.1]
    assert other.tolist() == [0.0, 0.05]


def test_pooled_cases_are_paired_by_what_varies_inside_them(run_of):
    def case(name, shift):
        runs = [
            run_of(name, seed, [seed / 10 + lr + shift], training={"lr": lr}) for seed in (0, 1) for lr in (0, 0.5)
        ]
        return Case(name, tuple(runs))

    own, other = pairs(case("a", 0.25), case("b", 0.0), lambda run: run.final())
    np.testing.assert_allclose(own - other, 0.25)
    assert len(own) == 4


def test_table_of_a_comparison(run_of):
    cases = [
        Case("random", tuple(run_of("random", seed, [0.5 + seed / 10]) for seed in range(3))),
        Case("oort", tuple(run_of("oort", seed, [0.6 + seed / 10 + seed / 100]) for seed in range(3))),
    ]
    table = significance(cases, cases[0], "accuracy")
    assert [row[0].value for row in table.rows] == ["oort"]
    (difference,) = table.column("difference")
    assert difference.value == pytest.approx(0.11)
    assert difference.spread == pytest.approx(0.01)
    facts = {title: table.column(title)[0].value for title in ("pairs", "better", "worse", "p", "smallest p")}
    assert facts == {"pairs": 3, "better": 3, "worse": 0, "p": 0.25, "smallest p": 0.25}
    assert table.column("significant")[0].value == "too few seeds"
    assert any("no p can be smaller than 0.25" in note and "at least 6 seeds" in note for note in table.notes)


def test_less_loss_is_better(run_of):
    cases = [
        Case(name, tuple(run_of(name, seed, [accuracy]) for seed in range(2)))
        for name, accuracy in (("random", 0.5), ("oort", 0.6))
    ]
    table = significance(cases, cases[0], "loss")
    assert (table.column("better")[0].value, table.column("worse")[0].value) == (2, 0)


@pytest.mark.parametrize("count", [2, 3, 10, MANY_VALUES - 1])
def test_interval_of_few_values_is_students_as_scipy_has_it(count):
    values = np.random.default_rng(count).normal(0.02, 0.05, count)
    oracle = ttest_1samp(values, 0.0).confidence_interval(0.95)
    np.testing.assert_allclose(mean_interval(values), [oracle.low, oracle.high], rtol=1e-12)


def test_three_equal_signs_are_no_evidence():
    assert mean_interval(np.array([0.5, 1.0, 3.0]))[0] < 0


@pytest.mark.parametrize("count", [3, 5, 10, 20])
@pytest.mark.parametrize(
    ("draw", "mean", "least"),
    [
        (lambda rng, shape: rng.normal(size=shape), 0.0, 0.94),
        (lambda rng, shape: rng.gamma(4.0, size=shape), 4.0, 0.925),  # a skewness of 1
    ],
    ids=["normal", "skewed"],
)
def test_intervals_of_few_values_contain_the_mean_as_often_as_they_say(count, draw, mean, least):
    low, high = mean_band(draw(np.random.default_rng(count), (count, 20_000)))
    assert least <= np.mean((low <= mean) & (mean <= high)) <= 0.96


def test_the_bootstrap_of_many_values_is_not_much_too_narrow():
    low, high = mean_band(np.random.default_rng(0).normal(size=(MANY_VALUES, 500)))
    assert 0.9 <= np.mean((low <= 0) & (high >= 0)) <= 0.98


def test_tables_say_which_interval_they_show():
    assert interval_words([3, 10]) == "Student's"
    assert interval_words([MANY_VALUES, 100]) == "BCa bootstrap"
    assert interval_words([3, MANY_VALUES]) == "Student's below 30 values, else BCa bootstrap"


def test_intervals_end_where_means_must():
    column = Column("accuracy", "%", 100.0)
    table = from_columns("", [(column, [over_seeds([0.9, 0.99, 1.0])])])
    low, high = table.rows[0][0].interval
    assert (high, low) == (1.0, pytest.approx(mean_interval(np.array([0.9, 0.99, 1.0]))[0]))
    differences = from_columns("", [(Column("difference", "points", 100.0), [over_seeds([0.9, 0.99, 1.0])])])
    assert differences.rows[0][0].interval[1] > 1.0
