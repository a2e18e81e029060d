"""HiCS-FL."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError
from muster.engine.trial import small_spec
from muster.selection._clustering import cut, ward_on_distances, ward_on_rows
from muster.selection.hics import (
    Hics,
    class_means,
    distances,
    entropy,
    group_shares,
    sample_from_groups,
)

BIAS = np.array([[0.02, -0.01, -0.01], [0.001, 0.0, -0.001], [-0.01, 0.02, -0.01]])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ward_on": "condensed", "within": "uniform", "temperature": "auto", "groups": 2},
        {"signal": "weight_row_mean", "freeze_after_warmup": True, "equal_weights": False},
        {"fallback_var": 0.0},
    ],
)
def test_contract(keeps_contract, options):
    keeps_contract(lambda: Hics(clients_per_round=4, **options), 4)


def test_worked_example():
    entropies = entropy(BIAS, 0.005)
    np.testing.assert_allclose(entropies, [0.034544, 1.085411, 0.034544], atol=5e-7)
    assert entropy(BIAS[1].tolist(), 0.005) == pytest.approx(1.085411, abs=5e-7)
    measure = distances(BIAS, entropies, 10.0)
    np.testing.assert_allclose(measure[np.triu_indices(3, 1)], [11.032273, 2.094395, 12.079471], atol=5e-7)
    for tree in (ward_on_rows(measure), ward_on_distances(measure)):
        assert cut(tree, 2).tolist() == [0, 1, 0]
    means = np.array([entropies[[0, 2]].mean(), entropies[1]])
    for progress, share in ((0.0, 0.014724), (0.5, 0.108928), (1.0, 0.5)):
        np.testing.assert_allclose(group_shares(means, 4 * (1 - progress)), [share, 1 - share], atol=5e-7)


def test_large_updates_do_not_overflow():
    assert entropy(np.array([[900.0, -900.0, 0.0]]), 0.001) == pytest.approx([0.0])


def test_automatic_temperature_does_not_depend_on_the_learning_rate():
    rows = np.random.default_rng(0).normal(size=(20, 10))
    np.testing.assert_allclose(entropy(rows, "auto"), entropy(1e-6 * rows, "auto"))
    np.testing.assert_allclose(entropy(rows, "auto"), entropy(rows, float(np.median(rows.std(axis=1)))))
    np.testing.assert_allclose(entropy(np.zeros((2, 10)), "auto"), np.log(10))


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 8), st.integers(0, 1000))
def test_distances_equal_the_pairwise_definition(clients, seed):
    rows = np.random.default_rng(seed).normal(size=(clients, 4))
    rows[0] = 0
    entropies = entropy(rows, 1.0)
    for u in range(clients):
        for v in range(clients):
            norms = np.linalg.norm(rows[u]) * np.linalg.norm(rows[v])
            angle = np.arccos(np.clip(rows[u] @ rows[v] / norms, -1, 1)) if norms > 0 and u != v else 0.0
            expected = angle + 10 * abs(entropies[u] - entropies[v])
            assert distances(rows, entropies, 10.0)[u, v] == pytest.approx(expected, abs=1e-7)


def test_unknown_clients_stand_at_a_right_angle():
    known = np.array([True, False, True, False])
    measure = distances(np.eye(4)[[0, 0, 0, 0]], np.ones(4), 10.0, known)
    assert measure[1].tolist() == [np.pi / 2, 0.0, np.pi / 2, np.pi / 2]
    assert measure[0, 2] == 0.0


def test_warm_up_sees_everybody_once_before_anybody_twice(federation):
    played = federation(11, rounds=20).run(Hics(clients_per_round=4), 3)
    first_eight = np.concatenate([round.trained for round in played[:2]])
    assert len(set(first_eight)) == 8
    assert set(np.concatenate([round.trained for round in played])) == set(range(11))
    assert [len(round.trained) for round in played] == [4, 4, 4]


@pytest.mark.parametrize(("within", "share"), [("size", 0.95), ("uniform", 0.2)])
def test_clients_of_a_group_are_drawn_by_size_or_alike(federation, within, share):
    fed = federation(20, sizes=[10_000] * 4 + [1] * 16, script={"bias_update": np.ones((20, 4))})
    selector = Hics(clients_per_round=2, groups=1, within=within)
    fed.run(selector, 10)  # everybody's first turn
    chosen = np.concatenate([played.trained for played in fed.run(selector, 200)])
    assert np.mean(chosen < 4) == pytest.approx(share, abs=0.08)


def test_newcomers_train_in_their_first_round(federation):
    fed, selector = federation(10), Hics(clients_per_round=4)
    fed.run(selector, 4)
    fed.grow([30, 40])
    assert {10, 11} <= set(fed.play(selector).trained)


def test_balanced_clusters_come_first_and_alike_at_the_end(federation):
    def bias(clients, round):
        return np.where((clients % 2 == 0)[:, None], np.zeros(4), 0.02 * np.eye(4)[clients % 4])

    early = federation(20, rounds=10_000, script={"bias_update": bias}, sizes=[50] * 20)
    early.run(Hics(clients_per_round=4, groups=2), 300)
    even = early.history.trainings[::2].sum() / early.history.trainings.sum()
    late = federation(20, rounds=10_000, script={"bias_update": bias}, sizes=[50] * 20)
    late.next_round = 9_700
    late.run(Hics(clients_per_round=4, groups=2), 300)
    assert even > 0.9
    assert late.history.trainings[::2].sum() / late.history.trainings.sum() == pytest.approx(0.5, abs=0.08)


def test_updates_count_alike_unless_the_aggregator_decides(federation):
    fed = federation(10)
    assert fed.play(Hics(clients_per_round=4)).trains[0].weights.tolist() == [1, 1, 1, 1]
    assert fed.play(Hics(clients_per_round=4, equal_weights=False)).trains[0].weights is None


def test_frozen_updates_stay_those_of_the_first_turn(federation):
    fed, selector = federation(8), Hics(clients_per_round=4, freeze_after_warmup=True)
    fed.run(selector, 2)
    first = selector.state_dict()["_updates"]["rows"]
    fed.run(selector, 5)
    assert np.array_equal(selector.state_dict()["_updates"]["rows"], first)


def test_groups_are_drawn_by_share_and_clients_by_weight():
    rng = np.random.default_rng(0)
    labels, weights = np.array([0, 0, 1, 1]), np.array([3.0, 1.0, 1.0, 1.0])
    first = [sample_from_groups(labels, np.array([0.8, 0.2]), weights, 1, rng)[0] for _ in range(8000)]
    np.testing.assert_allclose(np.bincount(first) / 8000, [0.6, 0.2, 0.1, 0.1], atol=0.02)


def test_exhausted_groups_take_no_part():
    rng = np.random.default_rng(0)
    for _ in range(20):
        chosen = sample_from_groups(np.array([0, 1, 1, 1]), np.array([1.0, 0.0]), np.ones(4), 3, rng)
        assert len(set(chosen)) == 3
        assert chosen[0] == 0


def test_class_means_are_means_over_inputs():
    spec = small_spec(classes=4, hidden=3)
    row = np.concatenate([np.arange(12), np.full(4, 99)]).astype(np.float32)
    assert class_means(row[None], spec).tolist() == [[1, 4, 7, 10]]


def test_rotating_the_update_space_changes_no_angle():
    rows = np.random.default_rng(1).normal(size=(10, 5))
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(5, 5)))[0]
    entropies = entropy(rows, 1.0)
    np.testing.assert_allclose(
        distances(rows @ rotation, entropies, 10.0), distances(rows, entropies, 10.0), atol=1e-7
    )


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"lam": -1.0}, {"gamma": -1.0}, {"groups": 0}, {"clients_per_round": 11}]
)
def test_bad_options_are_refused(federation, options):
    with pytest.raises(ConfigError):
        Hics(**{"clients_per_round": 4, **options}).check(federation(10).population)


def test_a_head_with_one_output_is_refused(federation):
    with pytest.raises(ConfigError, match="one output"):
        Hics(clients_per_round=4).check(federation(10, spec=small_spec(1)).population)


@pytest.mark.bench
def test_five_thousand_clients_with_ten_thousand_numbers(federation):
    spec = small_spec(classes=10, hidden=1000)
    fed, selector = federation(5000, classes=10, spec=spec), Hics(clients_per_round=50, signal="weight_row_mean")
    selector._tried = np.ones(5000, dtype=bool)
    rows = np.random.default_rng(0).normal(size=(5000, 10_010)).astype(np.float32)
    selector._updates = {"clients": np.arange(5000), "rows": rows}
    assert fed.play(selector).seconds < 60
