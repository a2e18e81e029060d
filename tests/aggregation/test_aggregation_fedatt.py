"""FedAtt."""

import numpy as np
import pytest

from muster.aggregation.fedatt import FedAtt, attention
from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec, SpecEntry


def test_worked_example(advance) -> None:
    result = advance(FedAtt(), [0.0, 0.0], [[3, 4], [0, 1]])
    np.testing.assert_allclose(result.parameters, [3.535250, 4.735250], atol=1e-5)
    np.testing.assert_allclose(result.weights, [0.982014, 0.017986], atol=1e-6)


def test_long_distances_do_not_overflow() -> None:
    np.testing.assert_allclose(attention(np.array([5000.0, 5000.0])), [0.5, 0.5])


def test_every_layer_has_its_own_attention(layout, cohort) -> None:
    movements = np.array([[3, 4, 0], [0, 1, 2]], dtype=np.float32)
    result = FedAtt(epsilon=1.0).aggregate(np.zeros(3, dtype=np.float32), cohort(movements), layout([2, 1]))
    first, second = attention(np.array([5.0, 1.0])), attention(np.array([0.0, 2.0]))
    np.testing.assert_allclose(
        result.parameters, [*(first @ movements[:, :2]), second @ movements[:, 2]], rtol=1e-6
    )
    np.testing.assert_allclose(result.weights, (2 * first + second) / 3)


def test_spectral_norm_of_matrices(cohort) -> None:
    spec = ParameterSpec((SpecEntry("weight", (2, 2), 0, 4),))
    # Both have Frobenius norm 2, but singular values (2, 0) and (√2, √2).
    movements = np.array([[2, 0, 0, 0], [np.sqrt(2), 0, 0, np.sqrt(2)]], dtype=np.float32)
    current = np.zeros(4, dtype=np.float32)
    frobenius = FedAtt().aggregate(current, cohort(movements), spec)
    spectral = FedAtt(norm="spectral").aggregate(current, cohort(movements), spec)
    np.testing.assert_allclose(frobenius.weights, [0.5, 0.5], atol=1e-6)
    np.testing.assert_allclose(spectral.weights, attention(np.array([2.0, np.sqrt(2)])), atol=1e-6)


def test_impossible_options_are_refused(population) -> None:
    with pytest.raises(ConfigError, match="epsilon"):
        FedAtt(epsilon=0.0).check(population())
