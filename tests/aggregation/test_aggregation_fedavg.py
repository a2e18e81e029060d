"""FedAvg, and the arithmetic that all averages share."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.aggregation._blocks import BLOCK, accumulate, column_blocks, combination, norms
from muster.aggregation.fedavg import FedAvg
from muster.core.errors import TrainingError


def test_worked_example(advance) -> None:
    assert advance(FedAvg(), [0.0], [[1], [4]], sizes=[30, 10]).parameters[0] == 1.75
    assert advance(FedAvg(weights="equal"), [0.0], [[1], [4]], sizes=[30, 10]).parameters[0] == 2.5
    twice = advance(FedAvg(weights="equal"), [0.0], [[1], [4]], multiplicity=[2, 1])
    assert twice.parameters[0] == 2.0
    np.testing.assert_allclose(twice.weights, [2 / 3, 1 / 3])


@pytest.mark.parametrize("kind", ["samples", "equal"])
@pytest.mark.parametrize("asked", [False, True])
def test_taking_note_of_all_at_once_is_taking_note_of_each(layout, cohort, kind, asked) -> None:
    """A derived class sees individual updates; the result is the same to the bit, counters included."""

    class Derived(FedAvg):
        pass

    rng = np.random.default_rng(4)
    spec, current = layout([5], buffers=2, counters=1), rng.normal(size=8).astype(np.float32)
    results = []
    for aggregator in (FedAvg(weights=kind), Derived(weights=kind)):
        rng = np.random.default_rng(5)
        aggregator.begin(current, spec)
        for size in (3, 1, 4):
            sizes, drawn = rng.integers(1, 50, size), rng.integers(1, 4, size)
            weights = rng.random(size) if asked else None
            rows = rng.normal(size=(size, 8))
            aggregator.add(cohort(rows, sizes=sizes, multiplicity=drawn, weights=weights))
        results.append(aggregator.finish())
    at_once, each = results
    np.testing.assert_array_equal(at_once.parameters, each.parameters)
    np.testing.assert_array_equal(at_once.weights, each.weights)
    np.testing.assert_array_equal(at_once.clients, each.clients)


def test_many_small_movements_do_not_drown_in_one_large(advance) -> None:
    # In float32, 2^24 + 1 = 2^24: a float32 sum would lose every one of the small ones.
    movements = np.ones((101, 1), dtype=np.float32)
    movements[0] = 2.0**24
    result = advance(FedAvg(), [0.0], movements).parameters[0]
    assert result == np.float32((2.0**24 + 100) / 101)


def test_a_training_where_nobody_counts_is_an_error(advance) -> None:
    with pytest.raises(TrainingError, match="zero"):
        advance(FedAvg(), [0.0], [[1], [4]], weights=np.zeros(2))


@pytest.mark.parametrize("columns", [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 7])
def test_blocks_cover_every_column_once(columns) -> None:
    covered = np.zeros(columns, dtype=int)
    for block in column_blocks(columns):
        covered[block] += 1
    assert (covered == 1).all()


def test_sums_do_not_depend_on_blocks_or_on_the_number_of_rows_at_once() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6, 2 * BLOCK + 5)).astype(np.float32)
    coefficients = rng.random(6)
    whole = combination(rows, coefficients)
    one_by_one = np.zeros(rows.shape[1])
    for row, coefficient in zip(rows, coefficients, strict=True):
        accumulate(one_by_one, row[None], np.array([coefficient]))
    np.testing.assert_array_equal(whole, one_by_one)
    shifted = combination(rows[:, 3:], coefficients)
    np.testing.assert_array_equal(whole[3:], shifted)
    np.testing.assert_allclose(whole, coefficients @ rows.astype(np.float64), atol=1e-12)


@given(
    clients=st.integers(1, 70),
    columns=st.one_of(st.integers(1, 40), st.sampled_from([610, 4 * BLOCK // 64, 4 * BLOCK // 64 + 1, BLOCK + 1])),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_terms_are_added_one_after_the_other_however_many_there_are(clients, columns, seed) -> None:
    rng = np.random.default_rng(seed)
    scales = rng.lognormal(0, 6, size=(clients, 1))
    rows = (scales * rng.normal(size=(clients, columns))).astype(np.float32)
    coefficients, total = rng.random(clients), rng.normal(size=columns)
    textbook = total.copy()
    for row, coefficient in zip(rows, coefficients, strict=True):
        textbook = textbook + row.astype(np.float64) * coefficient
    accumulate(total, rows, coefficients)
    assert total.tobytes() == textbook.tobytes()


@pytest.mark.parametrize("order", [1, 2])
def test_norms_equal_numpys_and_do_not_overflow(order) -> None:
    rows = np.random.default_rng(1).normal(size=(4, BLOCK + 9)).astype(np.float32)
    np.testing.assert_allclose(norms(rows, order), np.linalg.norm(rows.astype(float), order, axis=1))
    assert norms(np.full((1, 100), 1e38, dtype=np.float32), order)[0] == pytest.approx(1e38 * 100 ** (1 / order))
