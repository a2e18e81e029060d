"""Pairwise measures and clusterings against the textbook forms."""

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import cdist, pdist, squareform
from sklearn.metrics import silhouette_score

from muster.selection import _clustering as clustering


@pytest.fixture
def rows():
    return np.random.default_rng(5).normal(size=(23, 1500)).astype(np.float32)


def same_grouping(a, b):
    return np.array_equal(clustering.renumbered(np.asarray(a)), clustering.renumbered(np.asarray(b)))


def test_gram_equals_the_product(rows):
    wide = rows.astype(np.float64)
    np.testing.assert_allclose(clustering.gram(rows), wide @ wide.T, rtol=1e-12)


def test_angles_equal_the_pairwise_form(rows):
    expected = np.arccos(np.clip(1 - squareform(pdist(rows.astype(np.float64), "cosine")), -1, 1))
    np.testing.assert_allclose(clustering.angles(rows), expected, atol=1e-7)


def test_equal_directions_have_an_angle_of_almost_zero():
    row = np.random.default_rng(0).normal(size=4000).astype(np.float32)
    assert clustering.angles(np.stack([row, 2 * row, -row]))[0] == pytest.approx([0, 0, np.pi], abs=1e-6)


def test_zero_vectors_get_the_stated_angle():
    rows = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert clustering.angles(rows, unknown=0.5).tolist() == [[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]


def test_squared_distances_equal_the_pairwise_form(rows):
    expected = cdist(rows.astype(np.float64), rows.astype(np.float64), "sqeuclidean")
    np.testing.assert_allclose(clustering.squared_row_distances(rows), expected, rtol=1e-10)
    np.testing.assert_allclose(clustering.squared_row_distances(rows + np.float32(64)), expected, rtol=1e-4)


def test_ward_on_rows_equals_scipy_on_features():
    measure = clustering.angles(np.random.default_rng(1).normal(size=(40, 6)))
    tree = clustering.ward_on_rows(measure)
    expected = linkage(pdist(measure), method="ward")
    np.testing.assert_allclose(tree[:, 2], expected[:, 2], rtol=1e-9)
    for count in (1, 2, 7, 40):
        assert same_grouping(clustering.cut(tree, count), fcluster(expected, count, criterion="maxclust"))


def test_cut_is_exact_where_heights_are_tied():
    tree = linkage(np.zeros((5, 1)), method="average")
    assert [len(set(clustering.cut(tree, count))) for count in (1, 2, 3, 5, 9)] == [1, 2, 3, 5, 5]


def test_cosine_clusters_find_directions_whatever_the_length():
    features = np.array([[1, 0], [9, 0.1], [0, 1], [0.1, 7], [3, 0]], dtype=float)
    assert clustering.cosine_clusters(features, 2).tolist() == [0, 0, 1, 1, 0]


def test_zero_vectors_are_a_cluster_of_their_own():
    features = np.array([[0, 0], [1, 0], [0, 1], [0, 0]], dtype=float)
    assert clustering.cosine_clusters(features, 3).tolist() == [0, 1, 2, 0]
    assert clustering.cosine_clusters(features, 2).tolist() == [0, 1, 1, 0]
    assert clustering.cosine_clusters(features, 1).tolist() == [0, 0, 0, 0]
    assert clustering.cosine_clusters(np.zeros((3, 2)), 2).tolist() == [0, 0, 0]


def test_silhouette_finds_the_number_of_separated_directions():
    rng = np.random.default_rng(2)
    truth = np.repeat(np.arange(4), 6)
    features = np.eye(4)[truth] + 0.05 * rng.random((24, 4))
    assert clustering.silhouette_clusters(features, 6).tolist() == truth.tolist()


def test_silhouette_choice_equals_trying_every_number():
    features = np.random.default_rng(3).random((15, 4))
    condensed = pdist(features, "cosine")
    tree = linkage(condensed, "average")
    tried = [fcluster(tree, count, criterion="maxclust") for count in range(2, 7)]
    scores = [silhouette_score(squareform(condensed), labels, metric="precomputed") for labels in tried]
    assert same_grouping(clustering.silhouette_clusters(features, 6), tried[int(np.argmax(scores))])


def test_three_clients_are_one_cluster():
    assert clustering.silhouette_clusters(np.eye(3), 6).tolist() == [0, 0, 0]


def test_clients_that_do_not_differ_are_one_cluster():
    rng = np.random.default_rng(0)
    for features in (np.ones((12, 10)), np.repeat(rng.random((1, 5000)).astype(np.float32), 12, axis=0)):
        assert clustering.silhouette_clusters(features, 6).tolist() == [0] * 12
        assert clustering.cosine_clusters(features, 3).tolist() == [0] * 12
        # Lengths do not matter.
        assert clustering.silhouette_clusters(features * np.arange(1.0, 13.0)[:, None], 6).tolist() == [0] * 12


def test_clients_that_all_differ_alike_are_one_cluster():
    """Any division would put some of them alone for no reason but their place."""
    assert clustering.silhouette_clusters(np.eye(12), 6).tolist() == [0] * 12


def test_clients_of_one_kind_stay_together():
    kinds = np.random.default_rng(1).random((3, 8))[[0, 0, 1, 2, 2, 1, 0, 1, 2, 0]]
    expected = [0, 0, 1, 2, 2, 1, 0, 1, 2, 0]
    assert clustering.silhouette_clusters(kinds, 6).tolist() == expected
    assert clustering.cosine_clusters(kinds, 7).tolist() == expected
