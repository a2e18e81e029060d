"""ASTraFL: quotas, homogeneity, and which rule applies in which cluster."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError
from muster.selection.astrafl import ASTraFL, homogeneity_of, quotas, ranked

SHARES = np.array(
    [
        [0.25, 0.25, 0.25, 0.25],
        [0.4, 0.3, 0.2, 0.1],
        [0.7, 0.1, 0.1, 0.1],
        [1, 0, 0, 0],
        [0, 0, 0.5, 0.5],
        [0.3, 0.3, 0.2, 0.2],
    ]
)
HOMOGENEITY = np.array([1, 0.841886, 0.632577, 0.387628, 0.646447, 0.929289])
CLUSTERS = np.array([0, 0, 1, 1, 2, 0])


def test_worked_example_homogeneity():
    even = homogeneity_of(SHARES, "l2", pooled=np.ones(4))
    np.testing.assert_allclose(even, HOMOGENEITY, atol=5e-7)
    assert even.mean() == pytest.approx(0.739638, abs=5e-7)
    distances = [0, 0.223607, 0.519615, 0.866025, 0.5, 0.1]
    np.testing.assert_allclose(homogeneity_of(SHARES, "mu21"), 2 - np.array(distances), atol=5e-7)


def test_worked_example_quotas():
    np.testing.assert_array_equal(quotas(HOMOGENEITY, CLUSTERS, 0.5), [2, 1, 0])
    np.testing.assert_array_equal(quotas(HOMOGENEITY, CLUSTERS, 0.5, budget="ceil"), [2, 1, 1])
    members = [[0, 1, 5], [2, 3], [4]]
    np.testing.assert_array_equal(quotas(HOMOGENEITY, members, 0.5), [2, 1, 0])


def test_other_homogeneities():
    np.testing.assert_allclose(homogeneity_of(SHARES, "entropy")[[0, 3, 4]], [1, 0, 0.5], atol=1e-12)
    losses = np.array([0.0, 1.0, np.nan])
    np.testing.assert_allclose(homogeneity_of(SHARES[:3], "nll", losses=losses), [1, np.exp(-1), 0])
    with pytest.raises(ConfigError, match="nll"):
        homogeneity_of(SHARES, "nll")
    np.testing.assert_array_equal(homogeneity_of(np.ones((2, 1)), "entropy"), [1, 1])


def test_no_homogeneity_at_all_means_shares_by_size():
    np.testing.assert_array_equal(quotas(np.zeros(6), CLUSTERS, 0.5), [2, 1, 0])


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3)), min_size=1, max_size=20),
    st.floats(0.01, 1),
)
def test_quotas_fit_the_budget_and_the_clusters(clients, fraction):
    even = np.array([h for h, _ in clients])
    _, labels = np.unique([label for _, label in clients], return_inverse=True)
    members = np.bincount(labels)
    strict, ceil = (quotas(even, labels, fraction, budget=budget) for budget in ("strict", "ceil"))
    assert strict.sum() == max(1, int(fraction * len(even) + 1e-9))
    assert (strict <= members).all()
    assert (ceil <= members).all()
    assert ceil.sum() >= min(fraction * len(even), (members * (ceil == members)).sum()) - 1e-6


def test_missing_scores_go_last_and_ties_go_by_loss_then_position():
    scores = np.array([1.0, np.nan, 2.0, 1.0, np.inf])
    losses = np.array([0.1, 9.0, 0.0, 0.3, np.nan])
    np.testing.assert_array_equal(ranked(scores, losses), [2, 3, 0, 1, 4])


def labelled_federation(federation, **options):
    """Twelve clients: six with even labels, three with only class 0, three with only class 1."""
    even, first, second = [25, 25, 25, 25], [100, 0, 0, 0], [0, 100, 0, 0]
    script = {
        "label_histogram": [even] * 6 + [first] * 3 + [second] * 3,
        "loss": np.arange(12) / 10,
        "content_diversity": np.arange(12)[::-1] / 12,
    }
    return federation(12, script=script | options)


def test_even_clusters_by_loss_and_skewed_ones_by_content(federation):
    played = labelled_federation(federation).play(ASTraFL(clients_per_round=6, features="labels"))
    # Homogeneity: 1 for the even six, less for the others; four slots for them and one for each skewed cluster.
    np.testing.assert_array_equal(played.trained, [2, 3, 4, 5, 6, 9])


def test_histograms_are_asked_once_and_losses_every_round(federation):
    fed, selector = labelled_federation(federation), ASTraFL(clients_per_round=4)
    asked = [[signal.name for ask in played.asks for signal in ask.signals] for played in fed.run(selector, 2)]
    assert asked == [["label_histogram", "loss", "content_diversity"], ["loss", "content_diversity"]]


def groups_of(clients, groups):
    """Updates in as many directions as there are groups, a little apart in each; client k is in k mod groups."""
    return np.eye(16)[clients % groups] + 1e-3 * np.eye(16)[clients]


def test_everybody_trains_once_before_clusters_follow_updates(federation):
    fed, selector = labelled_federation(federation), ASTraFL(clients_per_round=5)
    first, second, third = (set(played.trained.tolist()) for played in fed.run(selector, 3))
    assert len(first) == len(second) == len(third) == 5
    assert first | second | third == set(range(12))
    assert len(first | second) == 10  # the third round has room for three who have trained before


def test_the_number_of_clusters_follows_the_updates_where_few_are_selected(federation):
    """As in the paper's figure 6, where it falls from five to two: here updates have two directions in the end."""

    class Watched(federation):  # type: ignore[misc, valid-type]
        def view(self, available=None):
            self.seen = super().view(available)
            return self.seen

    def updates(clients, round):
        return groups_of(clients, 5 if round < 6 else 2)

    labels = np.full((12, 4), 25)
    fed, found = Watched(12, script={"label_histogram": labels, "final_layer_update": updates}), []
    selector = ASTraFL(clients_per_round=4)
    for _ in range(30):
        assert len(fed.play(selector).trained) == 4
        found.append(len(np.unique(fed.seen.notes["clusters"])))
    assert found[:3] == [1, 1, 1]  # by labels, which are all alike, while everybody has a first turn
    assert found[3:7] == [5, 5, 5, 5]
    assert found[-1] <= 3  # a cluster of one may have no slot, and keep its old update


def test_a_client_whose_turn_brought_nothing_does_not_stop_the_others(federation):
    fed = labelled_federation(federation, final_layer_update=lambda clients, round: groups_of(clients, 2))
    selector = ASTraFL(clients_per_round=4)
    fed.run(selector, 4, drop=[7])
    features = selector._features(np.arange(12))
    assert not features[7].any()
    np.testing.assert_array_equal(np.delete(features, 7, axis=0), np.delete(selector.updates, 7, axis=0))


def test_with_labels_nobody_has_a_first_turn(federation):
    assert ASTraFL(clients_per_round=12, features="labels").needs()[-1].name == "content_diversity"
    fed, selector = labelled_federation(federation), ASTraFL(clients_per_round=6, features="labels")
    assert all(played.trained.tolist() == [2, 3, 4, 5, 6, 9] for played in fed.run(selector, 3))


def test_loss_rate_prefers_the_fastest_decrease(federation):
    falling = {0: np.full(12, 1.0), 1: np.linspace(0.9, 0.1, 12)}
    fed = labelled_federation(federation, loss=lambda clients, round: falling[round][clients])
    selector = ASTraFL(clients_per_round=6, loss="rate", features="labels")
    fed.play(selector)
    # All six even clients of the first cluster fell, the last of them fastest.
    assert fed.play(selector).trained.tolist()[:4] == [2, 3, 4, 5]


def test_a_threshold_above_everything_always_uses_content(federation):
    played = labelled_federation(federation).play(ASTraFL(clients_per_round=6, threshold=2.0, features="labels"))
    np.testing.assert_array_equal(played.trained, [0, 1, 2, 3, 6, 9])


def test_clients_that_hide_their_labels_only_fill_up(federation):
    selector = ASTraFL(clients_per_round=8, features="labels")
    played = labelled_federation(federation).play(selector, nan={"label_histogram": range(6)})
    assert set(range(6, 12)) < set(played.trained.tolist())
    assert len(played.trained) == 8


def test_when_nobody_answers_the_cohort_is_random(federation):
    assert len(labelled_federation(federation).play(ASTraFL(clients_per_round=5), drop=range(12)).trained) == 5


def test_negative_counts_of_a_noisy_histogram_count_as_none(federation):
    noisy = np.full((12, 4), [30.0, -2.0, 10.0, 10.0])
    noisy[0] = -1
    fed, selector = federation(12, script={"label_histogram": noisy}), ASTraFL(clients_per_round=3)
    fed.play(selector)
    np.testing.assert_array_equal(selector.histograms[1], [30, 0, 10, 10])
    assert np.isnan(selector.histograms[0]).all()


@pytest.mark.parametrize(
    "options", [{}, {"loss": "rate"}, {"homogeneity": "nll", "features": "labels"}, {"homogeneity_weight": 0.5}]
)
def test_contract(keeps_contract, options):
    keeps_contract(lambda: ASTraFL(clients_per_round=4, **options), 4)


@pytest.mark.parametrize(
    "options",
    [{"clients_per_round": 0}, {"max_clusters": 1}, {"homogeneity_weight": -1}, {"threshold": float("nan")}],
)
def test_refuses_bad_options(federation, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        ASTraFL(**({"clients_per_round": 4} | options)).check(federation(12).population)


@pytest.mark.bench
def test_five_thousand_clients_with_ten_thousand_numbers(federation):
    rng = np.random.default_rng(0)
    kinds = rng.standard_normal((5, 10_000), dtype=np.float32)[rng.integers(5, size=5000)]
    selector = ASTraFL(clients_per_round=500)
    selector.histograms = rng.integers(1, 20, (5000, 10)).astype(float)
    selector.updates = kinds + rng.standard_normal((5000, 10_000), dtype=np.float32)
    selector.previous_losses = np.full(5000, np.nan)
    selector.tried = np.ones(5000, dtype=np.bool_)
    start = time.perf_counter()
    chosen = selector._choose(federation(5000).view(), rng.random(5000), rng.random(5000))
    assert time.perf_counter() - start < 60
    assert len(chosen) == 500
