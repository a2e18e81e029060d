"""HCSFed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec, SpecEntry
from muster.selection.hcsfed import HCSFed, allocate, group_centres, shares, variability
from muster.server.testing import FakeFederation

A = np.array([[1, 0], [1.2, 0], [0.8, 0], [1, 1]])
B = np.array([[5, 5], [9, 9]], dtype=float)


@pytest.mark.parametrize("options", [{}, {"ratio": 0.2, "alloc": "neyman", "compress": "weights", "groups": 2}])
def test_contract(keeps_contract, options):
    keeps_contract(lambda: HCSFed(clients_per_round=4, **options), 15)


def test_worked_example():
    varied = np.array([variability(A), variability(B)])
    np.testing.assert_allclose(varied, [2.213333, 63.999936], atol=2e-6)
    np.testing.assert_allclose(shares(np.array([4, 2]), varied, 3), [0.194077, 2.805923], atol=5e-7)
    assert allocate(np.array([4, 2]), varied, 3, np.random.default_rng(0)).tolist() == [1, 2]
    for rows, odds in ((A, [0.226541, 0.271849, 0.181233, 0.320377]), (B, [0.357143, 0.642857])):
        norms = np.linalg.norm(rows, axis=1)
        np.testing.assert_allclose(norms / norms.sum(), odds, atol=5e-7)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(0, 1000))
def test_variability_equals_the_double_sum(clients, seed):
    rows = np.random.default_rng(seed).normal(size=(clients, 3))
    pairs = sum(np.sum((x - y) ** 2) for x in rows for y in rows)
    assert variability(rows) == pytest.approx(pairs / (clients - 1 + 1e-6))
    spread = np.mean(np.sum((rows - rows.mean(axis=0)) ** 2, axis=1))
    assert variability(rows, "neyman") == pytest.approx(np.sqrt(spread))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.floats(0, 10)), min_size=1, max_size=5),
    st.integers(0, 40),
    st.integers(0, 99),
)
def test_slots_fill_up_without_going_over_a_cluster(groups, count, seed):
    sizes, varied = np.array([g[0] for g in groups]), np.array([g[1] for g in groups])
    slots = allocate(sizes, varied, count, np.random.default_rng(seed))
    assert slots.sum() == min(count, sizes.sum())
    assert ((slots >= 0) & (slots <= sizes)).all()


def test_slots_by_size_where_nothing_varies():
    assert allocate(np.array([6, 3]), np.zeros(2), 3, np.random.default_rng(0)).tolist() == [2, 1]


def test_centres_of_fewer_points_than_clusters():
    assert len(group_centres(np.ones((5, 2)), 3, np.random.default_rng(0))) == 1


def test_everybody_trains_once_and_then_the_budget(federation):
    fed = federation(12)
    first, second = fed.run(HCSFed(clients_per_round=4, ratio=0.1), 2)
    assert first.trained.tolist() == list(range(12))
    assert [signal.name for signal in first.trains[0].report] == ["compressed_update"]
    assert len(second.trained) == 4
    assert second.trains[0].report == ()


def test_slots_follow_the_clusters(federation):
    rows = np.vstack([A, B])
    fed = federation(6, script={"compressed_update": rows})
    selector = HCSFed(clients_per_round=3, groups=2, ratio=0.065)
    fed.play(selector)
    for played in fed.run(selector, 20):
        assert (played.trained >= 4).tolist() == [False, True, True]


def test_long_vectors_come_more_often(federation):
    rows = np.array([[1.0, 0], [3.0, 0], [1.0, 0.1], [3.0, 0.1]])
    fed = federation(4, script={"compressed_update": rows})
    selector = HCSFed(clients_per_round=1, groups=1, ratio=0.065)
    fed.play(selector)
    fed.run(selector, 500)
    trained = fed.history.trainings - 1
    assert trained[[1, 3]].sum() / trained.sum() == pytest.approx(0.75, abs=0.07)


def test_newcomers_train_first_and_join_the_nearest_cluster(federation):
    fed, selector = federation(12), HCSFed(clients_per_round=4, ratio=0.1)
    fed.run(selector, 2)
    fed.grow([50])
    assert 12 in fed.play(selector).trained
    assert 12 in selector.state_dict()["_features"]["clients"]


def test_clients_that_never_report_do_not_take_all_slots(federation):
    fed, selector = federation(12), HCSFed(clients_per_round=4, ratio=0.1)
    broken = range(6)
    fed.run(selector, 20, nan={"compressed_update": broken})
    assert fed.history.trainings[6:].sum() > 6 + 20
    assert not set(broken) & set(selector.state_dict()["_features"]["clients"])


def test_updates_count_alike_unless_the_aggregator_decides(federation):
    assert federation(5).play(HCSFed(clients_per_round=3)).trains[0].weights.tolist() == [1] * 5
    assert federation(5).play(HCSFed(clients_per_round=3, equal_weights=False)).trains[0].weights is None


@pytest.mark.parametrize("options", [{"groups": 0}, {"ratio": 0.0}, {"ratio": 2.0}])
def test_bad_options_are_refused(federation, options):
    with pytest.raises(ConfigError):
        HCSFed(**{"clients_per_round": 4, **options}).check(federation(10).population)


def test_running_statistics_are_not_compressed_and_not_counted_in_the_caution():
    weight, mean = SpecEntry("weight", (1, 19), 0, 19), SpecEntry("running_mean", (19,), 19, 38)
    population = FakeFederation(8, spec=ParameterSpec((weight,), (mean,))).population
    few, enough = HCSFed(clients_per_round=4, ratio=0.1), HCSFed(clients_per_round=4, ratio=0.11)
    assert (few.needs()[0].width(population), enough.needs()[0].width(population)) == (1, 2)
    (caution,) = few.cautions(population)
    assert "sees one number of every client here: ratio = 0.1 of 19 parameters" in caution
    assert not enough.cautions(population)
