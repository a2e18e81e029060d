"""Agglomerative clustering of clients by the direction of a vector, and the pairwise measures it rests on.

Everything pairwise comes from one Gram matrix, so the wide part of the work is a single matrix product; what
remains is quadratic in the number of clients, in time and in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.cluster.hierarchy import linkage
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import squareform
from sklearn.metrics import silhouette_score

from muster.core.arrays import Floats, Ints
from muster.selection.base import View

#: Columns that are widened to float64 at a time: the Gram matrix is exact enough for angles of nearly equal
#: vectors, and the float32 rows are never copied as a whole.
_BLOCK = 1024
#: With fewer clients than this there is nothing to choose between numbers of clusters.
_FEWEST_FOR_SILHOUETTE = 4
#: Cosine distances below this are zero but for rounding: the clients do not differ.
_SAME = 1e-12
#: Silhouettes that differ by less are equal.
_DECIMALS = 9
#: For larger federations no labels are kept: they would outweigh the rest of a record.
_MAX_NOTED = 10_000


def gram(rows: np.ndarray[Any, Any], centred: bool = False) -> Floats:
    """All inner products of the rows, or of their differences from the mean row, in float64."""
    products = np.zeros((len(rows), len(rows)))
    for start in range(0, rows.shape[1], _BLOCK):
        block = np.array(rows[:, start : start + _BLOCK], dtype=np.float64, order="C")
        if centred and len(block):  # no rows have no mean
            block -= block.mean(axis=0)
        products += block @ block.T
    return products


def cosines(rows: np.ndarray[Any, Any]) -> Floats:
    """Cosine of every pair, 1 on the diagonal; NaN in the rows and columns of zero vectors."""
    products = gram(rows)
    norms = np.sqrt(np.diag(products))
    norms[norms == 0] = np.nan
    products /= norms[:, None]
    products /= norms[None, :]
    np.clip(products, -1.0, 1.0, out=products)
    known = np.flatnonzero(np.isfinite(norms))
    products[known, known] = 1.0
    return products


def angles(rows: np.ndarray[Any, Any], unknown: float = 0.0) -> Floats:
    """Angle between every pair in radians; `unknown` where a vector is zero, 0 on the diagonal."""
    result = np.arccos(cosines(rows))
    result[np.isnan(result)] = unknown
    np.fill_diagonal(result, 0.0)
    return result


def squared_row_distances(rows: np.ndarray[Any, Any]) -> Floats:
    """Squared Euclidean distance of every pair."""
    # Differences do not see the mean, and without it the subtraction below loses fewer digits.
    products = gram(rows, centred=True)
    norms = np.diag(products).copy()
    products *= -2.0
    products += norms[:, None]
    products += norms[None, :]
    np.maximum(products, 0.0, out=products)
    np.fill_diagonal(products, 0.0)
    return products


def ward_on_rows(measure: Floats) -> Floats:
    """Ward's tree where each client's row of a pairwise measure serves as its feature vector."""
    return ward_on_distances(np.sqrt(squared_row_distances(measure)))


def ward_on_distances(distances: Floats) -> Floats:
    """Ward's tree from pairwise distances."""
    if len(distances) < 2:
        return np.zeros((0, 4))
    return np.asarray(linkage(squareform(distances, checks=False), method="ward"))


def cut(tree: Floats, count: int) -> Ints:
    """Labels 0, 1, … (in order of first appearance) of exactly min(count, items) clusters of a linkage tree.

    Undoing merges from the top is exact where heights are tied, which cutting at a height is not.
    """
    items = len(tree) + 1
    merges = items - min(max(count, 1), items)
    parents = np.arange(items, items + merges)
    children = tree[:merges, :2].astype(np.int64)
    edges = (np.ones(2 * merges), (np.repeat(parents, 2), children.ravel()))
    graph = coo_array(edges, shape=(2 * items - 1, 2 * items - 1))
    labels = connected_components(graph, directed=False)[1][:items]
    return renumbered(labels.astype(np.int64))


def renumbered(labels: Ints) -> Ints:
    """The same grouping with labels 0, 1, … in order of first appearance."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def cosine_clusters(features: Floats, count: int) -> Ints:
    """Labels of `count` clusters by average linkage on cosine distance.

    Clients with the same direction are never separated: there are no more clusters than directions. Zero vectors
    have none: they share a separate cluster, which counts towards `count` (when that is 1, all clients are
    together). Ties in the tree go by position: callers shuffle.
    """
    nonzero, tree, _ = _cosine_tree(features)
    return _labels(len(features), nonzero, tree, count)


def silhouette_clusters(features: Floats, largest: int) -> Ints:
    """As `cosine_clusters`, with the number in 1 … min(largest, clients − 1) that has the highest mean silhouette.

    One cluster counts 0, the silhouette of clients that are no closer to their own cluster than to another. Ties
    go to the smaller number. Fewer than four clients are one cluster.
    """
    clients = len(features)
    best, best_score = np.zeros(clients, dtype=np.int64), 0.0
    if clients < _FEWEST_FOR_SILHOUETTE:
        return best
    nonzero, tree, distances = _cosine_tree(features)
    tried = 1
    for count in range(2, min(largest, clients - 1) + 1):
        labels = _labels(len(features), nonzero, tree, count)
        found = int(labels.max()) + 1
        if found in (tried, clients):
            continue
        tried = found
        score = round(float(silhouette_score(distances, labels, metric="precomputed")), _DECIMALS)
        if score > best_score:
            best, best_score = labels, score
    return best


def _cosine_tree(features: Floats) -> tuple[Ints, Floats, Floats]:
    """Positions of the non-zero vectors, their tree, and the cosine distances of all (1 to and 0 among zeros)."""
    distances = 1.0 - cosines(features)
    nonzero = np.flatnonzero(np.isfinite(np.diag(distances)))
    zero = np.setdiff1d(np.arange(len(features)), nonzero)
    distances[np.isnan(distances)] = 1.0
    distances[np.ix_(zero, zero)] = 0.0
    distances[distances < _SAME] = 0.0
    np.fill_diagonal(distances, 0.0)
    if len(nonzero) < 2:
        return nonzero, np.zeros((0, 4)), distances
    among = distances[np.ix_(nonzero, nonzero)]
    return nonzero, np.asarray(linkage(squareform(among, checks=False), method="average")), distances


def _labels(clients: int, nonzero: Ints, tree: Floats, count: int) -> Ints:
    """Labels for all clients from the tree of those with a direction; the others are the last cluster."""
    if len(nonzero) == 0 or count <= 1:
        return np.zeros(clients, dtype=np.int64)
    different = 1 + int(np.count_nonzero(tree[:, 2] >= _SAME))
    directed = cut(tree, min(different, count if len(nonzero) == clients else count - 1))
    labels = np.full(clients, directed.max() + 1)
    labels[nonzero] = directed
    return renumbered(labels)


def note_clusters(fed: View, clients: Ints, labels: Ints) -> None:
    """Leave in the round's record which cluster every client is in, −1 for those that are in none.

    Clusters are numbered in the order in which they appear among the clients by id.
    """
    if fed.clients <= _MAX_NOTED:
        noted = np.full(fed.clients, -1, dtype=np.int64)
        noted[np.sort(clients)] = renumbered(labels[np.argsort(clients)])
        fed.notes["clusters"] = noted
