"""FedAdagrad."""

import numpy as np

from muster.aggregation.fedadagrad import FedAdagrad


def test_worked_example(advance) -> None:
    result = advance(FedAdagrad(tau=1e-9), [1.0, 1.0], [[0.1, -0.2]])
    np.testing.assert_allclose(result.parameters, [1.1, 0.9], atol=1e-6)


def test_steps_from_equal_movements_fade_like_one_over_root_t(advance) -> None:
    server = FedAdagrad(server_lr=1.0, tau=1e-9)
    current = np.zeros(1, dtype=np.float32)
    steps = []
    for _ in range(5):
        after = advance(server, current, [[0.3]]).parameters
        steps.append(float(after[0] - current[0]))
        current = after
    np.testing.assert_allclose(steps, 1 / np.sqrt(np.arange(1, 6)), rtol=1e-5)


def test_comes_to_rest_at_the_optimum(quadratic) -> None:
    reached = quadratic.run(FedAdagrad(weights="equal", server_lr=1.0), 500, [1, 1, 1])
    np.testing.assert_allclose(reached, quadratic.optimum, atol=1e-3)
