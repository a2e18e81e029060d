"""Clustered sampling by similarity."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.selection._clustering import ward_on_rows
from muster.selection.clustered_similarity import ClusteredSimilarity, light_clusters, pairwise, similar_urns
from muster.selection.clustered_size import size_urns


@pytest.mark.parametrize(
    "options", [{}, {"measure": "L1"}, {"measure": "L2", "features": "last_layer", "equal_weights": False}]
)
def test_contract(keeps_contract, options):
    keeps_contract(lambda: ClusteredSimilarity(clients_per_round=4, **options), 4)


def test_worked_example():
    rows = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], dtype=float)
    urns = similar_urns(rows, np.full(4, 25), 2, np.random.default_rng(0)).probabilities(4)
    halves = urns[np.argsort(-urns[:, 0])]
    np.testing.assert_allclose(halves, [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])


def test_one_of_each_pair_in_every_round(federation):
    def update(clients, round):
        return np.eye(31)[(clients >= 2).astype(int)]

    fed = federation(4, sizes=[10] * 4, script={"update": update})
    selector = ClusteredSimilarity(clients_per_round=2)
    while len(selector.state_dict()["_updates"]["clients"]) < 4:
        fed.play(selector)
    for played in fed.run(selector, 30):
        assert [client >= 2 for client in played.trained] == [False, True]


def test_by_size_until_two_updates_are_known():
    rows = np.zeros((4, 3))
    rows[1] = 1
    sizes = np.array([40, 30, 20, 10])
    urns = similar_urns(rows, sizes, 2, np.random.default_rng(0))
    np.testing.assert_array_equal(urns.probabilities(4), size_urns(sizes, 2).probabilities(4))


def maximal_subtrees(tree, tokens, capacity):
    """The definition, recursively from the root."""
    items = len(tokens)

    def leaves(node):
        return [node] if node < items else leaves(int(tree[node - items, 0])) + leaves(int(tree[node - items, 1]))

    def split(node):
        inside = leaves(node)
        if node < items or sum(tokens[leaf] for leaf in inside) <= capacity:
            return [inside]
        return split(int(tree[node - items, 0])) + split(int(tree[node - items, 1]))

    return {frozenset(part) for part in split(2 * items - 2)}


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 14), st.integers(0, 1000), st.integers(5, 60))
def test_light_clusters_are_the_maximal_subtrees(clients, seed, capacity):
    rng = np.random.default_rng(seed)
    tree = ward_on_rows(pairwise(rng.normal(size=(clients, 3)), "arccos"))
    tokens = rng.integers(1, 20, clients)
    labels = light_clusters(tree, tokens, capacity)
    found = {frozenset(np.flatnonzero(labels == label).tolist()) for label in range(labels.max() + 1)}
    assert found == maximal_subtrees(tree, tokens, capacity)


@example(sizes=[1, 1], count=2, seed=0, measure="L2")  # everybody fills an urn: nobody is left to compare
@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=2, max_size=15),
    count=st.integers(1, 9),
    seed=st.integers(0, 1000),
    measure=st.sampled_from(["arccos", "L2", "L1"]),
)
def test_urns_are_full_and_every_client_keeps_its_weight(sizes, count, seed, measure):
    sizes, rng = np.array(sizes), np.random.default_rng(seed)
    urns = similar_urns(rng.normal(size=(len(sizes), 4)), sizes, count, rng, measure).probabilities(len(sizes))
    assert urns.shape == (count, len(sizes))
    np.testing.assert_allclose(urns.sum(axis=1), 1)
    np.testing.assert_allclose(urns.sum(axis=0), count * sizes / sizes.sum())


def test_a_big_client_gets_urns_of_its_own():
    rows = np.random.default_rng(0).normal(size=(3, 4))
    urns = similar_urns(rows, np.array([70, 20, 10]), 2, np.random.default_rng(0)).probabilities(3)
    np.testing.assert_allclose(urns, [[1, 0, 0], [0.4, 0.4, 0.2]])


def test_similar_clients_share_an_urn():
    rng = np.random.default_rng(3)
    direction = np.repeat(np.arange(5), 4)
    rows = np.eye(5)[direction] + 0.01 * rng.normal(size=(20, 5))
    urns = similar_urns(rows, np.full(20, 7), 5, rng).probabilities(20)
    for row in urns:
        assert len(set(direction[row > 0])) == 1


def test_pairwise_measures():
    rows = np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    np.testing.assert_allclose(pairwise(rows, "arccos")[0], [0, np.pi / 2, 0], atol=1e-12)
    np.testing.assert_allclose(pairwise(rows, "L2")[0], [0, 5, 1], atol=1e-12)
    np.testing.assert_allclose(pairwise(rows, "L1")[0], [0, 3, 1], atol=1e-12)


@pytest.mark.bench
def test_five_thousand_clients_with_ten_thousand_numbers(federation):
    fed, selector = federation(5000), ClusteredSimilarity(clients_per_round=50)
    rows = np.random.default_rng(0).normal(size=(5000, 10_000)).astype(np.float32)
    selector._updates = {"clients": np.arange(5000), "rows": rows}
    plan = selector.round(fed.view())
    request = next(plan)
    assert request.multiplicity.sum() == 50
