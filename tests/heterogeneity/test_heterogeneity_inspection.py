"""Inspecting a federation: numbers, who is unusual, who is next to whom, and when advice is given."""

import re

import numpy as np
import pytest
from scipy.stats import hypergeom

from muster.aggregation.base import aggregators
from muster.core.errors import ConfigError, DataError
from muster.data.partition.group_skew import named_tables
from muster.heterogeneity import advice
from muster.heterogeneity.divergences import js_divergence
from muster.heterogeneity.inspection import chance_divergence, compared, inspect, most_unusual
from muster.heterogeneity.metrics import summary
from muster.heterogeneity.tables import Counts
from muster.selection.base import selectors
from muster.training.base import algorithms


def of(table, **options) -> Counts:
    table = np.asarray(table)
    return Counts(
        "made", table[:, :, None] if table.ndim == 2 else table, has_attributes=table.ndim == 3, **options
    )


def findings(counts, cohort=None) -> str:
    return " | ".join(a.finding for a in inspect(counts, cohort).advice)


def test_numbers_with_attributes():
    table = named_tables("waterbirds-dist")
    inspection = inspect(of(table))
    assert inspection.metrics == summary(table)
    assert inspection.clients == 30
    assert inspection.triplets.shape == (30, 3)
    assert inspection.effective_clients == pytest.approx(30, abs=0.05)
    assert inspection.size_gini == pytest.approx(0.008, abs=0.01)


def test_numbers_without_attributes():
    inspection = inspect(of([[5, 5], [10, 0]]))
    assert set(inspection.metrics) == {"GCI", "CCI"}
    assert inspection.metrics["CCI"] == pytest.approx(0.5)
    spread = inspection.divergences["Jensen–Shannon (bits)"]
    expected = js_divergence(np.array([[5, 5], [10, 0]]), np.array([15, 5]), "bits")
    assert (spread.mean, spread.largest) == pytest.approx((expected.mean(), expected.max()))


def test_the_most_unusual_client_is_the_one_against_the_trend():
    counts = of(named_tables("cmnist-gsc"), classes=("low", "high"), attributes=("red", "green"))
    first, *_ = most_unusual(counts)
    assert first.client == 23
    assert counts.group_name(*first.group) == "low, green"
    assert (first.share, first.pooled_share) == pytest.approx((0.45, 640 / 4800))
    # All clients are of one size, so that chance does the same to all of them.
    divergences = [u.divergence for u in most_unusual(counts, most=24)]
    assert divergences == sorted(divergences, reverse=True)


def test_nobody_is_unusual_among_equals():
    assert most_unusual(of([[3, 3], [6, 6]])) == []


@pytest.mark.parametrize(
    ("sizes", "pooled"),
    [
        ([40, 100, 400], np.full(5, 0.2)),
        ([8, 20, 50], np.array([0.6, 0.3, 0.1])),
        # Fewer samples than classes: the first order, (classes − 1)/(8n), is half as much again, and more.
        ([30, 200], np.full(1000, 0.001)),
        ([30], np.geomspace(1, 1e-4, 80)),
    ],
    ids=["many samples", "few samples", "1000 classes", "some classes are rare"],
)
def test_chance_divergence_is_what_samples_of_one_distribution_have(sizes, pooled):
    rng, shares = np.random.default_rng(0), pooled / pooled.sum()
    all_sizes = np.repeat(sizes, 2000)
    drawn = np.concatenate([rng.multinomial(size, shares, size=2000) for size in sizes])
    seen = js_divergence(drawn, shares[None], "bits").mean()
    assert chance_divergence(all_sizes, pooled) == pytest.approx(seen, rel=0.05)


def test_many_classes_hide_no_skew():
    """50 clients of 200 samples, 1000 classes: drawn alike, or each from 50 classes of its own."""
    rng = np.random.default_rng(0)
    alike = of(rng.multinomial(200, np.full(1000, 0.001), size=50))
    own = [np.append(rng.multinomial(200, np.full(50, 0.02)), np.zeros(950, dtype=int)) for _ in range(50)]
    apart = of([np.roll(labels, 20 * client) for client, labels in enumerate(own)])
    assert most_unusual(alike) == []
    assert "nearly alike" in findings(alike)
    assert len(most_unusual(apart)) == 5
    assert "Clients have different labels" in findings(apart)


@pytest.mark.parametrize(
    ("table", "cohort", "said", "unsaid"),
    [
        ([[50, 50]], 1, "There is one client", "smaller cohort"),
        ([[50, 50]], 1, "nothing to aggregate", "alike"),
        (np.eye(10) * 100, 10, "Together they are as even as all data (GCI 0.00)", "rare classes"),
        (np.eye(10) * 100, 10, "gap between aggregators", "same mix"),
        (np.eye(10) * 100, 2, "can be balanced together", "rare classes stay rare"),
        ([[100, 100, 0]] * 29 + [[100, 100, 40]], 3, "rare classes stay rare", "can be balanced together"),
    ],
)
def test_advice_fits_who_takes_part(table, cohort, said, unsaid):
    inspection = inspect(of(np.array(table, dtype=int)), cohort=cohort)
    text = " ".join(f"{one.finding}. {one.text}" for one in inspection.advice)
    assert said in text
    assert unsaid not in text


def test_similar_clients_come_next_to_each_other():
    table = np.array([[9, 1], [1, 9], [8, 2], [2, 8], [90, 10]])
    clients, matrix = compared(of(table))
    places = {client: place for place, client in enumerate(clients.tolist())}
    assert {abs(places[0] - places[4]), abs(places[1] - places[3])} == {1}
    for i, j in np.ndindex(matrix.shape):
        expected = js_divergence(table[clients[i]], table[clients[j]], "bits")
        assert matrix[i, j] == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize("clients", [1, 2, 200, 201])
def test_many_clients_are_drawn_from(clients):
    table = np.random.default_rng(0).integers(1, 9, (clients, 3))
    shown, matrix = compared(of(table))
    assert len(shown) == len(np.unique(shown)) == min(clients, 200)
    assert matrix.shape == (len(shown), len(shown))
    assert np.array_equal(shown, compared(of(table))[0])


def test_inspecting_many_clients_is_quick():
    table = np.random.default_rng(0).integers(0, 20, (50_000, 10, 2)) + 1
    assert inspect(of(table)).clients == 50_000


def test_empty_clients_are_an_error():
    with pytest.raises(DataError, match="1 of 2 clients have no samples"):
        inspect(of([[1, 2], [0, 0]]))


@pytest.mark.parametrize("cohort", [0, 3])
def test_impossible_cohorts(cohort):
    with pytest.raises(ConfigError, match=f"cohort of {cohort}"):
        inspect(of([[1, 2], [3, 4]]), cohort)


# --- advice ----------------------------------------------------------------------------------------------

EVEN = [[50, 50], [50, 50]]
SC = [[90, 10], [10, 90]]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ([SC] * 2 + [EVEN] * 8, "Strong spurious correlation in 20% of clients"),
        ([[[90, 90], [10, 10]]] * 3 + [EVEN] * 7, "High class imbalance in 30% of clients"),
        ([[[90, 10], [90, 10]]] * 3 + [EVEN] * 7, "High attribute imbalance in 30% of clients"),
        ([[[75, 25], [75, 25]]] * 5, "High attribute imbalance in all data (GAI 0.19)"),
        ([[[80, 80], [20, 20]]] * 5, "All data together are imbalanced (GCI 0.28)"),
        ([EVEN] * 4, "Clients are nearly alike (0.000 bits"),
    ],
)
def test_advice_about_groups(table, expected):
    assert expected in findings(of(table))


def test_one_client_too_few_gives_no_advice():
    assert "spurious" not in findings(of([SC] * 2 + [EVEN] * 9))


def test_spurious_correlation_that_cancels_out_is_told_apart():
    cancels = inspect(of([SC, SC[::-1]])).advice[0].text
    stays = inspect(of([SC, SC, EVEN])).advice[0].text
    assert "nearly cancels out (GSC 0.00)" in cancels
    assert "have it too (GSC 0.22)" in stays
    assert 'estimate = "true"' in stays, "clients know their attributes here"


def test_identical_clients_are_not_told_to_select():
    """20 clients of 95 to 5: whoever is chosen, the cohort is 95 to 5."""
    inspection = inspect(of([[95, 5]] * 20), cohort=5)
    text = " ".join(advice.text for advice in inspection.advice)
    assert "High class imbalance in 100% of clients" in findings(of([[95, 5]] * 20))
    assert "no selection can change it" in text
    assert "Clients are nearly alike" in findings(of([[95, 5]] * 20))
    for method in selectors:
        assert method == "random" or f"`{method}`" not in text
    assert not inspection.choice
    different = inspect(of([[95, 5]] * 10 + [[5, 95]] * 10), cohort=5)
    assert different.choice
    assert "no selection can change it" not in " ".join(advice.text for advice in different.advice)


def test_one_client_with_a_class_of_its_own_is_a_choice():
    """On average such clients hardly differ; but most cohorts lack the class, and some do not."""
    counts = of([[100, 100, 30 if client == 7 else 0] for client in range(60)])
    inspection = inspect(counts, cohort=6)
    said = " ".join(advice.finding + " " + advice.text for advice in inspection.advice)
    assert inspection.choice
    assert "misses it in 90% of the rounds" in said
    assert "same mix" not in said
    assert "alike" not in said


def test_chance_alone_makes_no_choice():
    draws = np.random.default_rng(0)
    for samples, clients, shares in (
        (20, 100, np.full(10, 0.1)),
        (5, 200, [0.989, 0.01, 0.001]),
        (40, 30, [0.9, 0.1]),
    ):
        inspection = inspect(of(draws.multinomial(samples, shares, size=clients)), cohort=clients // 10)
        assert not inspection.choice
        assert "by chance)" in next(one.finding for one in inspection.advice if "alike" in one.finding)


def test_identical_clients_with_attributes_are_not_told_to_select_either():
    text = " ".join(advice.text for advice in inspect(of([SC] * 4), cohort=2).advice)
    assert "no selection can change it" in text
    assert "feddiverse" not in text


def test_a_cohort_of_everybody_is_no_choice():
    counts = of([[95, 5], [5, 95], [50, 50]])
    assert "All 3 clients take part in every round" in findings(counts, cohort=3)
    assert "take part in every round" not in findings(counts, cohort=2)
    assert "There is one client" in findings(of([[5, 5]]), cohort=1)
    assert (inspect(counts, cohort=3).choice, inspect(counts, cohort=2).choice) == (False, True)


def test_a_group_that_nobody_has_is_named():
    """Three identical clients; on scanner B nobody is ill: SC is 0.075, for few are ill at all."""
    table = np.array([[[900, 80], [20, 0]]] * 3)
    counts = of(table, classes=("healthy", "ill"), attributes=("scanner A", "scanner B"))
    assert inspect(counts).metrics["GSC"] < 0.1
    first = inspect(counts).advice[0]
    assert first.finding == "1 of 4 groups has no sample at all"
    assert "No client has ill, scanner B." in first.text
    # A class or an attribute value that does not occur makes no empty groups.
    assert "no sample" not in findings(of([[[50, 50], [0, 0]]] * 3))


def test_rates_that_differ_are_not_called_free_of_correlation():
    """21 % against 4 %: the mutual information is small, because the class is rare."""
    one, other = [[[40, 10], [60, 90]], [[2, 7], [98, 93]]]
    table = np.array([one] * 5 + [other] * 5)
    pooled = table.sum(axis=0)
    rates = advice.uneven_rates(pooled)
    assert (rates.label, rates.most, rates.least) == (0, 0, 1)
    assert rates.ratio == pytest.approx((210 / 1000) / (85 / 1000))
    counts = of(table, classes=("ill", "healthy"), attributes=("A", "B"))
    assert inspect(counts).metrics["GSC"] < 0.1
    assert "One class is 2.5 times as frequent with one attribute value as with another" in findings(counts)
    text = " ".join(found.text for found in inspect(counts).advice)
    assert "21% are ill, A, and 8% ill, B" in text
    assert "nearly free" not in text


def test_a_rate_of_21_against_4_percent_is_no_small_thing():
    counts = of([[[21, 4], [79, 96]]] * 3 + [[[42, 8], [158, 192]]] * 3, classes=("ill", "healthy"))
    assert inspect(counts).metrics["GSC"] < 0.1
    assert "One class is 5.2 times as frequent with one attribute value as with another" in findings(counts)
    assert "nearly free" not in " ".join(found.text for found in inspect(counts).advice)


@pytest.mark.parametrize(
    "pooled", [[[5, 5], [5, 5]], [[3, 1], [4, 5]], [[10, 0], [0, 0]], [[1, 2, 3]], [[100, 0], [0, 100]]]
)
def test_rates_that_are_alike_or_by_chance_or_without_end_are_left_alone(pooled):
    assert advice.uneven_rates(np.array(pooled)) is None


def test_a_handful_of_samples_is_not_unusual():
    """The small client's mix is further from all data than that of the large one, but means nothing."""
    table = [[500, 500]] * 10 + [[700, 300], [3, 0]]
    assert js_divergence(np.array([3, 0]), np.array([5703, 5300]), "bits") > js_divergence(
        np.array([700, 300]), np.array([5703, 5300]), "bits"
    )
    assert [unusual.client for unusual in most_unusual(of(table))] == [10]


def test_clients_that_differ_by_chance_are_seldom_called_unusual():
    rng = np.random.default_rng(0)
    named = [
        len(most_unusual(of(np.array([rng.multinomial(n, [0.5, 0.3, 0.2]) for n in rng.integers(20, 400, 30)]))))
        for _ in range(40)
    ]
    assert np.mean(np.array(named) > 0) <= 0.05, "one federation in a hundred, by its own account"


@pytest.mark.parametrize(
    ("table", "cohort", "expected"),
    [
        ([[100, 0, 0], [0, 100, 0], [0, 0, 100]], 3, "Clients have different labels (0.46 bits"),
        ([[1000, 1000]] + [[20, 20]] * 9, 5, "Sizes are uneven (Gini 0.7"),
        ([[4, 4]] + [[50, 50]] * 9, 5, "10% of clients have fewer than 10 samples"),
        ([[50, 50]] + [[100, 0]] * 9, 5, "1 of 2 classes would be missing"),
    ],
)
def test_advice_about_labels_and_sizes(table, cohort, expected):
    assert expected in findings(of(table), cohort)


def test_labels_that_differ_by_chance_are_no_skew():
    rng = np.random.default_rng(0)
    table = np.array([rng.multinomial(8, np.full(10, 0.1)) for _ in range(200)])
    text = findings(of(table))
    assert "different labels" not in text
    assert "fewer than 10 samples" in text


def test_nothing_stands_out():
    table = [[70, 30], [30, 70]] * 5
    assert findings(of(table)) == "Nothing stands out"


@pytest.mark.parametrize("cohort", [1, 4, 10])
def test_miss_probabilities(cohort):
    holders = np.arange(11)
    expected = [hypergeom.pmf(0, 10, holding, cohort) for holding in holders]
    np.testing.assert_allclose(advice.miss_probabilities(holders, 10, cohort), expected, atol=1e-12)


def test_advice_names_methods_that_exist():
    tables = [[SC] * 4, [[[90, 10], [90, 10]]] * 4, [[[90, 90], [10, 10]]] * 4, [EVEN] * 4]
    texts = [a.text for table in tables for a in inspect(of(table)).advice]
    labels = [[[100, 0, 0], [0, 9, 0], [0, 0, 5]], [[1000, 1000]] + [[20, 20]] * 9]
    texts += [a.text for table in labels for a in inspect(of(table)).advice]
    named = set(re.findall(r"`([a-z-]+)`", " ".join(texts)))
    assert {"round-robin", "oort"} <= named
    assert named <= {*selectors, *aggregators, *algorithms}
