"""Bulyan: worked example, the textbook form, and what attackers can do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.aggregation.bulyan import Bulyan, chosen_by_krum, mean_around_median
from muster.core.errors import ConfigError, TrainingError


def textbook(rows: np.ndarray, attackers: int) -> np.ndarray:
    """Krum again and again with explicit loops; then coordinate by coordinate the values closest to the median."""

    def score(i: int, among: list[int]) -> float:
        apart = sorted(float(((rows[i] - rows[j]) ** 2).sum()) for j in among if j != i)
        return sum(apart[: max(1, len(among) - attackers - 2)])

    everybody = list(range(len(rows)))
    left, chosen = list(everybody), []
    for _ in range(len(rows) - 2 * attackers):
        chosen.append(min(left, key=lambda i: (round(score(i, left), 9), score(i, everybody))))
        left.remove(chosen[-1])
    kept = rows[sorted(chosen)]
    count = len(kept) - 2 * attackers
    result = []
    for column in kept.T:
        median = np.median(column)
        result.append(np.mean(sorted(column, key=lambda value: abs(value - median))[:count]))
    return np.array(result)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 2), st.integers(0, 4))
def test_equals_the_textbook(seed, attackers, more):
    rows = np.random.default_rng(seed).normal(size=(4 * attackers + 3 + more, 6)).astype(np.float32)
    squared = ((rows[:, None].astype(float) - rows[None].astype(float)) ** 2).sum(axis=2)
    chosen = chosen_by_krum(squared, attackers, len(rows) - 2 * attackers)
    got = mean_around_median(rows[chosen], len(chosen) - 2 * attackers)
    np.testing.assert_allclose(got, textbook(rows.astype(float), attackers), atol=1e-6)


def test_worked_example(advance):
    # f = 1: of seven values Krum leaves out two, and the mean is that of the three in the middle of the five.
    movements = np.array([[1.0], [1.1], [1.2], [1.3], [1.4], [5.0], [100.0]])
    result = advance(Bulyan(attackers=1), [0.0], movements)
    np.testing.assert_allclose(result.parameters, [1.2], atol=1e-6)
    np.testing.assert_allclose(result.weights, [0.2] * 5 + [0, 0])


def test_one_wild_coordinate_of_an_inconspicuous_client_is_left_out(advance):
    """What Krum lets through: close in the norm, far in one coordinate."""
    rng = np.random.default_rng(0)
    movements = rng.normal(size=(11, 400))
    movements[0, 0] = 20.0
    honest = movements[1:, 0]
    got = advance(Bulyan(attackers=2), np.zeros(400), movements).parameters[0]
    assert honest.min() <= got <= honest.max()


def test_too_few_are_refused(population, advance):
    with pytest.raises(ConfigError, match="4f \\+ 3 = 7"):
        Bulyan(attackers=1).check(population(6))
    with pytest.raises(TrainingError, match="too few to withstand 2 attackers"):
        advance(Bulyan(attackers=2), np.zeros(2), np.zeros((10, 2)))
