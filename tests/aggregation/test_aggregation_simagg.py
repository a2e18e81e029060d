"""SimAgg."""

import numpy as np
import pytest

from muster.aggregation.simagg import SimAgg, distances, mixed_weights
from muster.core.errors import ConfigError

MODELS = np.array([[0.0, 4.0], [3.0, 2.0], [6.0, 3.0]])
SIZES = [10, 30, 60]


def test_worked_example(advance) -> None:
    result = advance(SimAgg(), [0.0, 0.0], MODELS, sizes=SIZES)
    np.testing.assert_allclose(result.parameters, [3.828947, 2.663159], atol=1e-5)
    np.testing.assert_allclose(result.weights, [0.128948, 0.465789, 0.405264], atol=1e-6)


def test_worked_example_with_differences_of_sums(advance) -> None:
    result = advance(SimAgg(distance="sumdiff"), [0.0, 0.0], MODELS, sizes=SIZES)
    np.testing.assert_allclose(result.parameters, [3.613636, 2.763637], atol=1e-5)
    np.testing.assert_allclose(result.weights, [0.186364, 0.422727, 0.390909], atol=1e-6)


def test_distances_of_the_worked_example() -> None:
    rows = MODELS.astype(np.float32)
    np.testing.assert_allclose(distances(rows), [4, 1, 3])
    np.testing.assert_allclose(distances(rows, "sumdiff"), [2, 1, 3])
    np.testing.assert_allclose(distances(rows, anchor="global"), [4, 5, 9])


def test_distances_over_many_blocks() -> None:
    rows = np.random.default_rng(0).normal(size=(4, 30_000)).astype(np.float32)
    wide = rows.astype(float)
    np.testing.assert_allclose(distances(rows), np.abs(wide - wide.mean(axis=0)).sum(axis=1))


def test_all_at_the_mean_leaves_half_equal_half_by_size() -> None:
    np.testing.assert_allclose(mixed_weights(np.zeros(2), np.array([1, 3])), [(0.5 + 0.25) / 2, (0.5 + 0.75) / 2])


def test_every_layer_has_its_own_weights(layout, cohort) -> None:
    movements = np.array([[0, 0, 5, 5], [0, 0, 0, 0], [9, 9, 0, 0]], dtype=np.float32)
    spec = layout([2, 2])
    layered = SimAgg().aggregate(np.zeros(4, dtype=np.float32), cohort(movements), spec)
    whole = SimAgg(scope="model").aggregate(np.zeros(4, dtype=np.float32), cohort(movements), spec)
    per_layer = [mixed_weights(distances(movements[:, part]), np.ones(3)) for part in (slice(0, 2), slice(2, 4))]
    np.testing.assert_allclose(layered.parameters[:2], per_layer[0] @ movements[:, :2], rtol=1e-6)
    np.testing.assert_allclose(layered.parameters[2:], per_layer[1] @ movements[:, 2:], rtol=1e-6)
    np.testing.assert_allclose(layered.weights, np.mean(per_layer, axis=0))
    np.testing.assert_allclose(whole.parameters, mixed_weights(distances(movements), np.ones(3)) @ movements)


def test_impossible_options_are_refused(population) -> None:
    with pytest.raises(ConfigError, match="epsilon"):
        SimAgg(epsilon=0.0).check(population())
