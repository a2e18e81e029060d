"""DivFL."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from muster.core.errors import ConfigError
from muster.selection.divfl import DivFL, cover, gradient_distances, represented

GRADIENTS = np.array([[0, 0], [1, 0], [0, 1], [5, 5], [6, 5]], dtype=float)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"refresh": "all", "greedy": "stochastic", "subsample": 0.2},
        {"agg": "gamma", "features": "last_layer"},
    ],
)
def test_contract(keeps_contract, options):
    keeps_contract(lambda: DivFL(clients_per_round=4, **options), 4)


def cost(distances, chosen):
    return distances[:, chosen].min(axis=1).sum()


def textbook(distances, count):
    """The greedy search that evaluates every candidate in every step."""
    chosen = []
    for _ in range(min(count, len(distances))):
        left = [j for j in range(len(distances)) if j not in chosen]
        chosen.append(min(left, key=lambda j: (round(cost(distances, [*chosen, j]), 7), j)))
    return chosen


def test_worked_example():
    distances = cdist(GRADIENTS, GRADIENTS)
    assert cover(distances, 3).tolist() == [1, 3, 0]
    for picks, total in (([1], 15.888406), ([1, 3], 3.414214), ([1, 3, 0], 2.0)):
        assert cost(distances, picks) == pytest.approx(total, abs=5e-7)
    assert represented(distances, np.array([1, 3])).tolist() == [3, 2]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 25), st.integers(1, 25), st.integers(0, 1000), st.booleans())
def test_lazy_search_equals_the_textbook(clients, count, seed, on_a_grid):
    points = np.random.default_rng(seed).normal(size=(clients, 2))
    points = np.round(2 * points) if on_a_grid else points  # a grid makes ties and duplicates
    distances = cdist(points, points)
    if count < clients:
        assert cover(distances, count).tolist() == textbook(distances, count)
    else:
        assert cover(distances, count).tolist() == list(range(clients))


def test_equal_gradients_are_taken_in_order():
    assert cover(np.zeros((5, 5)), 3).tolist() == [0, 1, 2]


def test_stochastic_search_looks_at_a_sample():
    points = np.random.default_rng(0).normal(size=(200, 3))
    distances = cdist(points, points)
    best = cost(distances, cover(distances, 5))
    rng = np.random.default_rng(1)
    found = [cover(distances, 5, "stochastic", rng) for _ in range(20)]
    assert all(len(set(chosen)) == 5 for chosen in found)
    assert len({tuple(chosen) for chosen in found}) > 1
    assert best < np.mean([cost(distances, chosen) for chosen in found]) < 1.15 * best


def test_stochastic_search_of_everybody_is_the_greedy_search():
    points = np.random.default_rng(0).normal(size=(30, 3))
    distances = cdist(points, points)
    whole = cover(distances, 6, "stochastic", np.random.default_rng(1), subsample=1.0)
    assert whole.tolist() == cover(distances, 6).tolist()
    with pytest.raises(ValueError, match="generator"):
        cover(distances, 6, "stochastic")


def test_clients_without_a_gradient_are_at_the_median_distance():
    known = np.array([True, True, False, True])
    distances = gradient_distances(np.array([[0.0], [1.0], [9.0], [4.0]], dtype=np.float32), known)
    np.testing.assert_allclose(distances[2], [3, 3, 0, 3], atol=1e-12)
    np.testing.assert_allclose(distances[0], [0, 1, 3, 4], atol=1e-12)


def test_everybody_is_asked_once_and_the_trained_report(federation):
    fed, selector = federation(10), DivFL(clients_per_round=3)
    first, second = fed.run(selector, 2)
    assert first.asks[0].clients.tolist() == list(range(10))
    assert second.asks == []
    assert [signal.name for signal in second.trains[0].report] == ["mean_gradient"]


def test_ideal_form_asks_everybody_every_round(federation):
    played = federation(10).run(DivFL(clients_per_round=3, refresh="all"), 2)
    assert [len(round.asks[0].clients) for round in played] == [10, 10]
    assert played[0].trains[0].report == ()


def test_gradients_decide(federation):
    padded = np.zeros((5, 31))
    padded[:, :2] = GRADIENTS
    fed = federation(5, script={"gradient": padded})
    played = fed.play(DivFL(clients_per_round=2, refresh="all", agg="gamma"))
    # 3 and 4 stand for each other equally well.
    assert played.trained.tolist() in ([1, 3], [1, 4])
    assert played.trains[0].weights.tolist() == [3, 2]


def test_the_trained_overwrite_their_gradients(federation):
    fed, selector = federation(6), DivFL(clients_per_round=2)
    played = fed.play(selector)
    rows = selector.state_dict()["_gradients"]["rows"]
    reported = played.replies[-1]
    np.testing.assert_allclose(rows[reported.clients], reported["mean_gradient"], rtol=1e-6)


@pytest.mark.parametrize("options", [{"subsample": 0.0}, {"subsample": 1.5}, {"clients_per_round": 0}])
def test_bad_options_are_refused(federation, options):
    with pytest.raises(ConfigError):
        DivFL(**{"clients_per_round": 4, **options}).check(federation(10).population)


@pytest.mark.bench
def test_five_thousand_clients_with_ten_thousand_numbers(federation):
    fed, selector = federation(5000), DivFL(clients_per_round=50)
    rows = np.random.default_rng(0).normal(size=(5000, 10_000)).astype(np.float32)
    selector._gradients = {"clients": np.arange(5000), "rows": rows}
    assert len(next(selector.round(fed.view())).clients) == 50
