"""FedAvgM."""

import numpy as np
import pytest

from muster.aggregation.fedavg import FedAvg
from muster.aggregation.fedavgm import FedAvgM, velocity
from muster.core.errors import ConfigError


def test_worked_example(advance) -> None:
    server = FedAvgM(momentum=0.9)
    first = advance(server, [0.0], [[1.0]]).parameters
    second = advance(server, first, [[0.5]]).parameters
    assert first[0] == 1.0
    assert second[0] == pytest.approx(2.4)
    np.testing.assert_allclose(server.velocity, [1.4])


def test_velocity_is_the_sum_of_fading_means() -> None:
    means = np.random.default_rng(0).normal(size=(6, 3))
    now = np.zeros(0)
    for mean in means:
        now = velocity(now, mean, 0.8)
    np.testing.assert_allclose(now, sum(0.8 ** (5 - t) * means[t] for t in range(6)))


def test_without_momentum_it_is_fedavg(quadratic) -> None:
    with_zero = quadratic.run(FedAvgM(momentum=0.0, weights="equal"), 20, [1, 2, 3])
    np.testing.assert_array_equal(with_zero, quadratic.run(FedAvg(weights="equal"), 20, [1, 2, 3]))


def test_fixed_point_is_that_of_fedavg(quadratic) -> None:
    reached = quadratic.run(FedAvgM(weights="equal", momentum=0.5), 300, [1, 1, 1])
    np.testing.assert_allclose(reached, quadratic.optimum, atol=1e-5)


@pytest.mark.parametrize("momentum", [-0.1, 1.0])
def test_momentum_outside_its_range_is_refused(population, momentum) -> None:
    with pytest.raises(ConfigError, match="momentum"):
        FedAvgM(momentum=momentum).check(population())
