"""Inner products in one pass: precision, huge numbers, and the sketch."""

import tracemalloc

import numpy as np
import pytest

from muster.aggregation import _gram
from muster.aggregation._gram import Shifts, inner_products, sketched, sketched_inner_products, squared_distances


def rows_of(shape, seed=0, scale=1.0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


@pytest.fixture
def large(monkeypatch):
    """Treat every matrix as large enough for the float32 pass."""
    monkeypatch.setattr(_gram, "SMALL", 0)
    monkeypatch.setattr(_gram, "_BLOCK", 1000)


def test_equals_the_definition() -> None:
    rows, reference = rows_of((5, 20_000)), rows_of(20_000, seed=1)
    wide, along = rows.astype(float), reference.astype(float)
    inner = inner_products(rows, reference)
    np.testing.assert_allclose(inner.gram, wide @ wide.T, rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(inner.products, wide @ along, rtol=1e-9, atol=1e-10)
    assert inner.reference == pytest.approx(along @ along)
    distances = ((wide[:, None] - wide[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(inner.squared_distances, distances, rtol=1e-10, atol=1e-9)


@pytest.mark.usefixtures("large")
def test_the_fast_pass_is_good_to_six_digits() -> None:
    rows = rows_of((6, 50_500)) + rows_of(50_500, seed=1)
    wide = rows.astype(float)
    exact = ((wide[:, None] - wide[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(inner_products(rows).squared_distances, exact, rtol=1e-6)


@pytest.mark.usefixtures("large")
def test_movements_that_are_almost_equal_keep_their_distances() -> None:
    common, own = rows_of(30_000, seed=1, scale=100), rows_of((4, 30_000), scale=1e-2)
    rows = common + own
    wide = rows.astype(float)
    exact = ((wide[:, None] - wide[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(inner_products(rows).squared_distances, exact, rtol=1e-5)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("scale", [1e-30, 1e25, 1e37])
def test_numbers_beyond_float32_squares(scale) -> None:
    rows = rows_of((4, 5000), scale=1.0) * np.float32(scale)
    wide = rows.astype(float)
    np.testing.assert_allclose(inner_products(rows).gram, wide @ wide.T, rtol=1e-9)


@pytest.mark.usefixtures("large")
def test_one_huge_row_does_not_blur_the_others() -> None:
    rows = rows_of((5, 5000))
    rows[3] *= np.float32(1e30)
    honest = [0, 1, 2, 4]
    wide = rows[honest].astype(float)
    exact = ((wide[:, None] - wide[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(inner_products(rows).squared_distances[np.ix_(honest, honest)], exact, rtol=1e-9)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("clients", [2, 9, 33])
def test_equal_rows_have_distance_exactly_zero(clients) -> None:
    # Sums of a matrix product may be made in another order for every entry: the last digits are not zero.
    rows = np.repeat(rows_of((1, 30_000)), clients, axis=0)
    assert (inner_products(rows).squared_distances == 0).all()


def test_no_second_copy_of_the_matrix() -> None:
    rows = rows_of((20, 500_000))
    tracemalloc.start()
    inner_products(rows, rows[0])
    sketched(rows, 1024)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < rows.nbytes / 4


def test_sketch_keeps_squared_distances_within_its_bound() -> None:
    """Relative errors of squared distances have a standard deviation of at most √(2/dimension)."""
    rows = rows_of((30, 20_000)) * np.linspace(0.1, 3, 20_000, dtype=np.float32)
    exact = inner_products(rows).squared_distances[np.triu_indices(30, 1)]
    for dimension in (256, 4096):
        small = sketched(rows, dimension)
        estimated = squared_distances(small @ small.T)[np.triu_indices(30, 1)]
        error = estimated / exact - 1
        assert np.sqrt((error**2).mean()) < 1.2 * np.sqrt(2 / dimension)


def test_sketch_is_unbiased_even_for_columns_that_recur() -> None:
    """The same few columns carry all weight in every group: only the random rotations keep them apart."""
    rows = np.zeros((2, 64 * 100), dtype=np.float32)
    rows[0, ::64] = rows[1, ::64] = 1.0
    rows[1, 1::64] = 1.0
    estimates = np.array([np.dot(*sketched(rows, 64, seed)) for seed in range(120)])
    spread = np.sqrt(2 * 100 * 200 / 64)
    assert abs(estimates.mean() - 100) < 4 * spread / np.sqrt(120)
    assert estimates.std() < 1.5 * spread


def test_sketch_is_the_same_every_time_and_linear() -> None:
    rows = rows_of((3, 1000))
    np.testing.assert_array_equal(sketched(rows, 64), sketched(rows, 64))
    total = sketched(rows.sum(axis=0, keepdims=True), 64)
    np.testing.assert_allclose(total[0], sketched(rows, 64).sum(axis=0), rtol=1e-4, atol=1e-5)


def test_a_sketch_leaves_products_with_the_reference_exact() -> None:
    rows, reference = rows_of((3, 10_000)), rows_of(10_000, seed=1)
    estimated, exact = sketched_inner_products(rows, reference, 128), inner_products(rows, reference)
    np.testing.assert_allclose(estimated.products, exact.products)
    assert estimated.reference == pytest.approx(exact.reference)


def shifted_by_hand(rows, shifts) -> np.ndarray:
    moved = rows.astype(float)
    for row, which in enumerate(shifts.which):
        if which >= 0:
            moved[row] += shifts.vectors[which]
    return moved


@pytest.mark.parametrize("fast", [False, True])
def test_shifted_rows_equal_the_definition(request, fast) -> None:
    if fast:
        request.getfixturevalue("large")
    rows, reference = rows_of((5, 3000)), rows_of(3000, seed=1)
    shifts = Shifts(rows_of((2, 3000), seed=2, scale=3.0), np.array([-1, 0, 1, 1, -1]))
    moved, along = shifted_by_hand(rows, shifts), reference.astype(float)
    inner = inner_products(rows, reference, shifts)
    rounding = 1e-5 if fast else 1e-10
    np.testing.assert_allclose(inner.gram, moved @ moved.T, rtol=rounding, atol=3e4 * rounding)
    np.testing.assert_allclose(inner.products, moved @ along, rtol=rounding, atol=3e4 * rounding)
    exact = ((moved[:, None] - moved[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(inner.squared_distances, exact, rtol=rounding, atol=rounding)
    np.testing.assert_allclose(inner.squared_lengths, (rows.astype(float) ** 2).sum(axis=1), rtol=rounding)


@pytest.mark.usefixtures("large")
def test_shifts_that_bring_rows_together_are_seen_in_float64() -> None:
    """Both rows end at nearly the same point from far apart: float32 products could not tell."""
    goal, near = rows_of(4000, seed=3), rows_of((2, 4000), seed=4, scale=1e-3)
    starts = rows_of((2, 4000), seed=5, scale=30.0)
    rows = (goal + near) - starts
    shifts = Shifts(starts, np.array([0, 1]))
    moved = shifted_by_hand(rows, shifts)
    exact = ((moved[0] - moved[1]) ** 2).sum()
    got = inner_products(rows, rows_of(4000, seed=6), shifts).squared_distances
    assert got[0, 1] == pytest.approx(exact, rel=1e-4)


def test_rows_that_shifts_make_equal_have_no_distance() -> None:
    goal, starts = rows_of(500, seed=7), rows_of((2, 500), seed=8, scale=5.0)
    rows = goal - starts
    got = inner_products(rows, None, Shifts(starts, np.array([0, 1]))).squared_distances
    assert (got == 0).all()


def test_a_stack_of_shifts_makes_no_copy_of_the_matrix() -> None:
    rows, shifts = rows_of((20, 200_000)), Shifts(rows_of((2, 200_000), seed=1), np.full(20, 1))
    tracemalloc.start()
    inner_products(rows, None, shifts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < rows.nbytes / 2
