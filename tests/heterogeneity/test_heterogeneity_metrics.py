"""The six metrics against worked examples, the client groups of FedDiverse's data sets, and exact arithmetic."""

from __future__ import annotations

import time
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import DataError
from muster.heterogeneity import metrics

CI_A, CI_B = [[90, 90], [10, 10]], [[10, 10], [90, 90]]
AI_A, AI_B = [[90, 10], [90, 10]], [[10, 90], [10, 90]]
SC_A, SC_B = [[90, 10], [10, 90]], [[10, 90], [90, 10]]

FEDERATIONS = {
    "GSC": [(CI_A, 2), (CI_B, 2), (AI_A, 2), (AI_B, 2), (SC_A, 15), (SC_B, 1)],
    "GCI": [(CI_A, 15), (CI_B, 1), (AI_A, 2), (AI_B, 2), (SC_A, 2), (SC_B, 2)],
    "GAI": [
        ([[120, 5], [20, 10]], 1),
        ([[120, 40], [5, 10]], 1),
        ([[170, 5], [5, 5]], 2),
        ([[5, 5], [170, 5]], 2),
        ([[10, 30], [120, 10]], 2),
        ([[80, 80], [20, 2]], 2),
        ([[80, 15], [90, 2]], 14),
        ([[110, 5], [85, 8]], 1),
    ],
    "WaterBirds": [
        ([[23, 23], [10, 110]], 1),
        ([[110, 23], [10, 23]], 1),
        ([[89, 39], [1, 29]], 1),
        ([[29, 39], [1, 89]], 1),
        ([[81, 35], [9, 31]], 1),
        ([[126, 1], [1, 31]], 9),
        ([[127, 1], [1, 31]], 16),
    ],
    "Spawrious-4": [
        ([[20, 20], [20, 20], [5, 5], [5, 5]], 2),
        ([[5, 5], [5, 5], [20, 20], [20, 20]], 2),
        ([[20, 5]] * 4, 2),
        ([[5, 20]] * 4, 2),
        ([[5, 20], [5, 20], [20, 5], [20, 5]], 1),
        ([[119, 5], [119, 5], [5, 119], [5, 119]], 7),
        ([[118, 5], [118, 5], [5, 118], [5, 118]], 9),
    ],
    "GCI-100": 4
    * [
        ([[68, 68], [10, 10]], 16),
        ([[10, 10], [68, 68]], 1),
        ([[68, 10], [68, 10]], 2),
        ([[10, 68], [10, 68]], 2),
        ([[68, 10], [10, 68]], 2),
        ([[10, 68], [68, 10]], 2),
    ],
}

PUBLISHED = {
    "GSC": (0, 0, 0.1634, 0.0885, 0.0885, 0.3540),
    "GCI": (0.1634, 0, 0, 0.3540, 0.0885, 0.0885),
    "GAI": (0.0055, 0.4414, 0.0517, 0.2011, 0.4966, 0.1189),
    "WaterBirds": (0.2183, 0.1751, 0.6701, 0.2617, 0.2563, 0.7610),
    "Spawrious-4": (0, 0, 0.3737, 0.0222, 0.0445, 0.3297),
    "GCI-100": (0.1488, 0, 0, 0.3043, 0.0716, 0.0716),
}


def exact_triplet(matrix):
    """The definition with forty digits."""
    with localcontext() as context:
        context.prec = 40

        def entropy(counts):
            total = Decimal(sum(counts))
            return -sum(Decimal(c) / total * (Decimal(c) / total).ln() for c in counts if c)

        rows, columns = [sum(row) for row in matrix], [sum(column) for column in zip(*matrix, strict=True)]
        of_class, of_attribute = entropy(rows), entropy(columns)
        both = of_class + of_attribute
        shared = both - entropy([c for row in matrix for c in row])
        ci = 1 - of_class / Decimal(len(rows)).ln() if len(rows) > 1 else 0
        ai = 1 - of_attribute / Decimal(len(columns)).ln() if len(columns) > 1 else 0
        return [float(ci), float(ai), float(2 * shared / both if both else 0)]


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        (CI_A, (0.531004, 0, 0)),
        (AI_A, (0, 0.531004, 0)),
        (SC_A, (0, 0, 0.531004)),
        ([[50, 50], [50, 50]], (0, 0, 0)),
        ([[120, 5], [20, 10]], (0.291164, 0.541314, 0.146557)),
        ([[30, 10], [20, 40]], (0.029049, 0, 0.126346)),
        ([[50, 0], [0, 50]], (0, 0, 1)),
        ([[100, 0], [0, 0]], (1, 1, 0)),
    ],
)
def test_worked_examples(matrix, expected):
    np.testing.assert_allclose(metrics.triplet(matrix), expected, atol=5e-7)


def test_opposite_correlations_cancel_globally_but_not_on_clients():
    values = metrics.summary(np.array([SC_A, SC_B]))
    assert values["GSC"] == pytest.approx(0, abs=1e-15)
    assert values["CSC"] == pytest.approx(0.531004, abs=5e-7)


@pytest.mark.parametrize("name", FEDERATIONS)
def test_client_groups_of_feddiverse(name):
    counts = np.array([matrix for matrix, clients in FEDERATIONS[name] for _ in range(clients)])
    values = metrics.summary(counts)
    assert list(values) == ["GCI", "GAI", "GSC", "CCI", "CAI", "CSC"]
    np.testing.assert_allclose(list(values.values()), PUBLISHED[name], atol=5.1e-5)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_equals_exact_arithmetic(data):
    classes, attributes = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    cell = st.one_of(st.integers(0, 3), st.integers(0, 10**6))
    row = st.lists(cell, min_size=attributes, max_size=attributes)
    table = st.lists(row, min_size=classes, max_size=classes).filter(lambda rows: any(map(any, rows)))
    tables = data.draw(st.lists(table, min_size=1, max_size=4))
    expected = [exact_triplet(matrix) for matrix in tables]
    np.testing.assert_allclose(metrics.triplets(np.array(tables)), expected, rtol=0, atol=1e-12)
    pooled = exact_triplet(np.sum(tables, axis=0).tolist())
    wanted = [*pooled, *np.mean(expected, axis=0)]
    np.testing.assert_allclose(list(metrics.summary(np.array(tables)).values()), wanted, rtol=0, atol=1e-12)


def test_nearly_everything_in_one_cell_keeps_its_digits():
    matrix = [[10**9, 0], [0, 1]]
    np.testing.assert_allclose(metrics.triplet(matrix), exact_triplet(matrix), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "counts",
    [
        np.zeros((2, 3)),
        np.zeros((0, 2, 2)),
        np.array([[[1, -1], [1, 1]]]),
        np.array([[[1.0, np.nan], [1, 1]]]),
        np.array([[[1.0, np.inf], [1, 1]]]),
        np.array([[[1, 1], [1, 1]], [[0, 0], [0, 0]]]),
    ],
)
def test_refuses_what_is_no_table_of_counts(counts):
    with pytest.raises(DataError):
        metrics.summary(counts)


def test_column_swap_changes_nothing():
    counts = np.random.default_rng(1).integers(0, 30, (50, 4, 2)) + 1
    np.testing.assert_allclose(metrics.triplets(counts), metrics.triplets(counts[:, :, ::-1]), atol=1e-14)


def test_sizes():
    assert metrics.effective_clients(np.array([7, 7, 7, 7])) == pytest.approx(4)
    assert metrics.effective_clients(np.array([1000, 0, 0])) == pytest.approx(1)
    with pytest.raises(DataError):
        metrics.effective_clients(np.zeros(3))


@pytest.mark.bench
def test_a_million_clients_in_two_seconds():
    counts = np.random.default_rng(0).integers(0, 50, (1_000_000, 10, 2))
    start = time.perf_counter()
    metrics.summary(counts)
    assert time.perf_counter() - start < 2
