"""q-FedAvg."""

import numpy as np
import pytest

from muster.aggregation.fedavg import FedAvg
from muster.aggregation.qfedavg import QFedAvg
from muster.core.errors import ConfigError, TrainingError

MOVEMENTS = np.array([[1.0, 0.0], [0.0, -2.0], [0.5, 0.5]])
LOSSES = np.array([0.5, 2.0, 1.0])


def textbook(movements, losses, q, lr) -> np.ndarray:
    """The paper's update with gradients L(w − w_k), L = 1/η (of all clients, or of each)."""
    gradients = -movements / np.reshape(lr, (-1, 1))
    top = (losses**q) @ gradients
    bottom = (q * losses ** (q - 1) * (gradients**2).sum(axis=1) + losses**q / lr).sum()
    return -top / bottom


@pytest.mark.parametrize("q", [0.0, 0.3, 1.0, 5.0])
def test_equals_the_textbook_formula(advance, q) -> None:
    result = advance(QFedAvg(q=q), [0.0, 0.0], MOVEMENTS, reports={"start_loss": LOSSES}, lr=0.1)
    np.testing.assert_allclose(result.parameters, textbook(MOVEMENTS, LOSSES, q, 0.1), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(result.weights, LOSSES**q / (LOSSES**q).sum())


@pytest.mark.parametrize("q", [0.0, 0.3, 5.0])
def test_clients_with_learning_rates_of_their_own(advance, q) -> None:
    factors, reports = np.array([1.0, 4.0, 0.5]), {"start_loss": LOSSES}
    result = advance(QFedAvg(q=q), [0.0, 0.0], MOVEMENTS, reports=reports, lr=0.1, lr_factors=factors)
    expected = textbook(MOVEMENTS, LOSSES, q, 0.1 * factors)
    np.testing.assert_allclose(result.parameters, expected, rtol=1e-5, atol=1e-8)
    given = advance(QFedAvg(q=q, lipschitz=5.0), [0.0, 0.0], MOVEMENTS, reports=reports, lr_factors=factors)
    np.testing.assert_allclose(given.parameters, textbook(MOVEMENTS, LOSSES, q, 0.2), rtol=1e-5, atol=1e-8)


def test_without_fairness_it_is_the_equal_mean(advance) -> None:
    reports = {"start_loss": LOSSES}
    fair = advance(QFedAvg(q=0.0), [0.0, 0.0], MOVEMENTS, sizes=[1, 5, 9], reports=reports)
    plain = advance(FedAvg(weights="equal"), [0.0, 0.0], MOVEMENTS, reports=reports)
    np.testing.assert_allclose(fair.parameters, plain.parameters)


def test_a_rate_of_zero_moves_nothing(advance) -> None:
    """As in the last round of a schedule that ends with zero: nobody has moved, and that is no error."""
    reports = {"start_loss": np.array([2.0, 1.0])}
    still = advance(QFedAvg(), [1.0, 2.0], np.zeros((2, 2)), reports=reports, lr=0.0)
    np.testing.assert_array_equal(still.parameters, [1.0, 2.0])


def test_lipschitz_constant_may_be_given(advance) -> None:
    reports = {"start_loss": LOSSES}
    given = advance(QFedAvg(lipschitz=10.0), [0.0, 0.0], MOVEMENTS, reports=reports, lr=float("nan"))
    derived = advance(QFedAvg(), [0.0, 0.0], MOVEMENTS, reports=reports, lr=0.1)
    np.testing.assert_allclose(given.parameters, derived.parameters)


def test_an_unknown_learning_rate_is_an_error(advance) -> None:
    with pytest.raises(ConfigError, match="lipschitz"):
        advance(QFedAvg(), [0.0, 0.0], MOVEMENTS, reports={"start_loss": LOSSES}, lr=float("nan"))


def test_a_loss_of_zero_is_no_division_by_zero(advance) -> None:
    result = advance(QFedAvg(q=0.5), [0.0, 0.0], MOVEMENTS, reports={"start_loss": np.zeros(3)})
    assert np.isfinite(result.parameters).all()


@pytest.mark.parametrize(("q", "kept"), [(0.0, 1e10), (1.0, 1e10), (15.0, 1e10), (30.0, 1e5)])
def test_losses_without_use_are_objected_to(cohort, q, kept) -> None:
    losses = np.array([1.0, np.nan, 1e25, np.inf, 0.0, kept, -1.0])
    updates = cohort(np.zeros((7, 2)), reports={"start_loss": losses})
    assert list(QFedAvg(q=q).objections(updates)) == [1, 2, 3]


@pytest.mark.parametrize("q", [0.0, 1.0, 15.0])
def test_the_largest_losses_and_movements_stay_finite(advance, q) -> None:
    losses, movements = np.array([1e10, 1e10, 1e-10]), np.full((3, 2), 1e37)
    result = advance(QFedAvg(q=q), [0.0, 0.0], movements, reports={"start_loss": losses}, lr=1e-6)
    assert np.isfinite(result.parameters).all()
    assert np.isfinite(result.weights).all()


def test_one_update_that_cannot_be_weighed_is_named(advance) -> None:
    with pytest.raises(TrainingError, match="client 1: qfedavg cannot weight its loss of nan"):
        advance(QFedAvg(), [0.0, 0.0], MOVEMENTS, reports={"start_loss": np.array([1.0, np.nan, 1.0])})


def test_larger_q_makes_the_losses_more_equal(advance) -> None:
    """Two clients on a line, losses 1 + 4(w − 1)² and 1 + (w + 1)²: the plain optimum is bad for the second."""
    gaps = []
    for q in (0.0, 1.0, 4.0):
        w = np.zeros(1, dtype=np.float32)
        for _ in range(800):
            losses = np.array([1 + 4 * (w[0] - 1) ** 2, 1 + (w[0] + 1) ** 2], dtype=float)
            gradients = np.array([[8 * (w[0] - 1)], [2 * (w[0] + 1)]])
            w = advance(QFedAvg(q=q), w, -0.02 * gradients, lr=0.02, reports={"start_loss": losses}).parameters
        gaps.append(abs(losses[0] - losses[1]))
    assert gaps[0] > gaps[1] > gaps[2]


@pytest.mark.parametrize("option", [{"q": -1.0}, {"lipschitz": 0.0}])
def test_impossible_options_are_refused(population, option) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        QFedAvg(**option).check(population())
