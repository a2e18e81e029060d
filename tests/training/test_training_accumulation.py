"""The sum of the coefficients with which gradients enter a local movement, against PyTorch's SGD itself."""

import numpy as np
import pytest
import torch

from muster.training.accumulation import accumulation_norm
from muster.training.base import LocalTraining


def really_iterated(
    steps, *, lr, momentum=0.0, pull=0.0, nesterov=False, decay=0.0, restart=0, start=0.0
) -> float:
    """The slow form: PyTorch's optimiser on a constant gradient, one step after the other."""
    weight = torch.nn.Parameter(torch.full((1,), start, dtype=torch.float64))
    optimizer = None
    for done in range(steps):
        if done in {0, restart}:
            optimizer = torch.optim.SGD([weight], lr, momentum, weight_decay=decay, nesterov=nesterov)
        weight.grad = 1.0 + pull * (weight.detach() - start)
        optimizer.step()
    # Weight decay adds decay · start to the constant gradient; what remains of it is a pull.
    return (start - weight.item()) / lr / (1.0 + decay * start)


def test_published_values() -> None:
    found = accumulation_norm(np.array([50, 10]), lr=0.1, momentum=0.9, pull=0.1)
    np.testing.assert_allclose(found, [105.8, 37.9], atol=0.05)


def test_plain_steps_count_one_each() -> None:
    np.testing.assert_array_equal(accumulation_norm(np.array([0, 1, 7, 123_456]), lr=0.1), [0, 1, 7, 123_456])


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("pull", [0.0, 0.1, 3.0])
def test_is_what_sgd_makes_of_a_constant_gradient(momentum, nesterov, pull) -> None:
    for steps in (0, 1, 2, 3, 17, 200):
        for restart in (0, 1, 10):
            options = {"lr": 0.1, "momentum": momentum, "pull": pull, "nesterov": nesterov, "restart": restart}
            expected = really_iterated(steps, **options)
            assert accumulation_norm(steps, **options) == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("start", [0.0, 2.0])
def test_weight_decay_is_a_pull_beside_the_proximal_one(start) -> None:
    expected = really_iterated(40, lr=0.1, momentum=0.9, pull=0.1, decay=0.05, start=start)
    assert accumulation_norm(40, lr=0.1, momentum=0.9, pull=0.1 + 0.05) == pytest.approx(expected, rel=1e-10)


def test_a_trainings_own_weight_decay_counts_beside_the_algorithms_pull() -> None:
    training = LocalTraining(momentum=0.9, weight_decay=0.05)
    expected = really_iterated(40, lr=0.1, momentum=0.9, pull=0.1, decay=0.05)
    assert training.progress(40, 0.1, pull=0.1) == pytest.approx(expected, rel=1e-10)
    assert training.progress(40, 0.1) == pytest.approx(really_iterated(40, lr=0.1, momentum=0.9, decay=0.05))


def test_only_the_signed_sum_gives_a_constant_gradient_back() -> None:
    """With momentum and a strong pull some gradients enter with a negative coefficient."""

    def moved(gradients) -> float:
        way = velocity = 0.0
        for gradient in gradients:
            velocity = 0.9 * velocity + gradient - 0.1 * 1.0 * way
            way += velocity
        return way

    coefficients = np.array([moved(np.eye(20)[step]) for step in range(20)])
    assert coefficients.min() < -0.1
    found = accumulation_norm(20, lr=0.1, momentum=0.9, pull=1.0)
    assert found == pytest.approx(coefficients.sum())
    assert found != pytest.approx(np.abs(coefficients).sum(), rel=0.01)


def test_every_client_has_its_own_steps_rate_and_pull() -> None:
    rng = np.random.default_rng(0)
    steps, restart = rng.integers(0, 60, 40), rng.integers(0, 5, 40)
    lr, pull = rng.uniform(0.01, 0.3, 40), rng.uniform(0, 1, 40)
    found = accumulation_norm(steps, lr=lr, momentum=0.9, pull=pull, restart=restart)
    for client in range(40):
        expected = really_iterated(
            int(steps[client]), lr=lr[client], momentum=0.9, pull=pull[client], restart=int(restart[client])
        )
        assert found[client] == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_time_grows_with_the_digits_of_the_steps() -> None:
    """Ten thousand clients with up to a million steps: iterating them would take minutes."""
    found = accumulation_norm(np.linspace(0, 10**6, 10_000).astype(np.int64), lr=0.01, momentum=0.9, pull=0.01)
    # A pull lets the way converge to 1/(ημ).
    assert found[0] == 0
    assert found[-1] == pytest.approx(1e4)
