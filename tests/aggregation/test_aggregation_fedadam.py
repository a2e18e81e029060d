"""FedAdam, and what the adaptive methods share."""

import numpy as np
import pytest

from muster.aggregation._adaptive import adaptive_step
from muster.aggregation.fedadam import FedAdam
from muster.core.errors import ConfigError

MEAN = [[0.1, -0.2]]


def test_worked_example(advance) -> None:
    server = FedAdam(tau=1e-9)
    np.testing.assert_allclose(advance(server, [1.0, 1.0], MEAN).parameters, [1.1, 0.9], atol=1e-6)
    np.testing.assert_allclose(server.first, [0.01, -0.02], atol=1e-9)
    np.testing.assert_allclose(server.second, [1e-4, 4e-4], atol=1e-9)


def test_worked_example_with_bias_correction(advance) -> None:
    result = advance(FedAdam(tau=1e-9, bias_correction="flower"), [1.0, 1.0], MEAN)
    np.testing.assert_allclose(result.parameters, [1.074246, 0.925754], atol=1e-6)


def test_equals_the_textbook_loop(advance) -> None:
    server = FedAdam(server_lr=0.05, beta1=0.8, beta2=0.95, tau=1e-2, v0="tau2")
    means = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    current = np.zeros(4, dtype=np.float32)
    w, m, v = np.zeros(4), np.zeros(4), np.full(4, 1e-4)
    for mean in means:
        current = advance(server, current, mean[None]).parameters
        m = 0.8 * m + 0.2 * mean
        v = 0.95 * v + 0.05 * mean.astype(float) ** 2
        w += 0.05 * m / (np.sqrt(v) + 1e-2)
    np.testing.assert_allclose(current, w, rtol=1e-4, atol=1e-6)


def test_a_coordinate_that_never_moves_stays() -> None:
    np.testing.assert_array_equal(adaptive_step(np.zeros(2), np.zeros(2), 1e-3), [0, 0])


def test_comes_to_rest_at_the_optimum(quadratic) -> None:
    reached = quadratic.run(FedAdam(weights="equal", server_lr=0.02, tau=0.1), 1500, [1, 1, 1])
    np.testing.assert_allclose(reached, quadratic.optimum, atol=1e-3)


@pytest.mark.parametrize("option", [{"beta1": 1.0}, {"beta2": -0.1}, {"tau": 0.0}])
def test_impossible_options_are_refused(population, option) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        FedAdam(**option).check(population())
