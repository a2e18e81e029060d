"""FedYogi."""

import numpy as np
import pytest

from muster.aggregation.fedyogi import FedYogi
from muster.core.errors import ConfigError


def test_worked_example(advance) -> None:
    result = advance(FedYogi(), [1.0, 1.0], [[0.1, -0.2]])
    np.testing.assert_allclose(result.parameters, [1.009091, 0.990476], atol=1e-6)


def test_second_moment_changes_by_a_bounded_amount() -> None:
    server = FedYogi(beta2=0.9)
    second, square = np.array([1.0, 1.0, 1.0]), np.array([0.25, 1.0, 4.0])
    np.testing.assert_allclose(server.next_second(second, square), [1 - 0.025, 1.0, 1 + 0.4])


def test_comes_to_rest_at_the_optimum(quadratic) -> None:
    reached = quadratic.run(FedYogi(weights="equal", server_lr=0.02, tau=0.1), 1500, [1, 1, 1])
    np.testing.assert_allclose(reached, quadratic.optimum, atol=1e-3)


def test_impossible_options_are_refused(population) -> None:
    with pytest.raises(ConfigError, match="beta2"):
        FedYogi(beta2=1.0).check(population())
