"""FedNova, and the measure of local work that clients report for it."""

import numpy as np
import pytest

from muster.aggregation.fedavg import FedAvg
from muster.aggregation.fednova import FedNova
from muster.errors import ConfigError, TrainingError
from muster.training import LocalTraining

SIZES, STEPS = [5, 3, 2], [2, 5, 10]
MOVEMENTS = [[-0.2], [-1.0], [-1.0]]


def step(advance, server, progress=STEPS, **more) -> float:
    reports = {"local_progress": np.array(progress, dtype=float)}
    return float(
        advance(server, [0.0], MOVEMENTS, sizes=SIZES, steps=STEPS, reports=reports, **more).parameters[0]
    )


def test_worked_example(advance) -> None:
    assert step(advance, FedNova()) == pytest.approx(-0.585)
    assert step(advance, FedAvg()) == pytest.approx(-0.6)
    assert step(advance, FedNova(normalise="average")) == pytest.approx(-0.393939, abs=1e-6)


@pytest.mark.parametrize("options", [{}, {"effective": "steps"}, {"normalise": "average"}])
def test_a_step_with_twice_the_learning_rate_is_twice_the_work(advance, options) -> None:
    factors = np.array([1.0, 0.5, 2.0])
    reports = {"local_progress": np.array(STEPS, dtype=float)}
    own = advance(
        FedNova(**options), [0.0], MOVEMENTS, sizes=SIZES, steps=STEPS, reports=reports, lr_factors=factors
    )
    work = np.array(STEPS) * factors
    directions = np.array(MOVEMENTS)[:, 0] / work
    shares = np.array(SIZES) / sum(SIZES)
    goes = 1 / (shares @ (1 / work)) if options.get("normalise") == "average" else shares @ work
    assert own.parameters[0] == pytest.approx(goes * (shares @ directions))


def test_local_work_of_momentum_and_of_a_proximal_term() -> None:
    momentum = LocalTraining(momentum=0.9)
    work = momentum.progress(np.array(STEPS), lr=0.1)
    assert work == pytest.approx([2.9, 13.1441, 41.38106], abs=1e-5)
    assert np.dot([0.5, 0.3, 0.2], work) == pytest.approx(13.669442, abs=1e-6)
    plain = LocalTraining()
    assert plain.progress(np.array(STEPS), lr=0.1).tolist() == STEPS
    assert plain.progress(np.array(STEPS), lr=0.1, pull=0.1) == pytest.approx([1.99, 4.900995, 9.561792], abs=1e-6)


def test_local_work_of_momentum_with_a_proximal_term() -> None:
    work = LocalTraining(momentum=0.9).progress(np.array([50, 10]), lr=0.1, pull=0.1)
    np.testing.assert_allclose(work, [105.8, 37.9], atol=0.05)


def test_local_work_has_weight_decay_in_it() -> None:
    decayed = LocalTraining(weight_decay=0.1).progress(np.array(STEPS), lr=0.1)
    assert decayed == pytest.approx([1.99, 4.900995, 9.561792], abs=1e-6)


def test_adam_has_no_local_work() -> None:
    assert np.isnan(LocalTraining(optimizer="adam").progress(np.array(STEPS), lr=0.1)).all()


def test_mean_work_can_be_counted_in_steps(advance) -> None:
    shrunk = LocalTraining().progress(np.array(STEPS), lr=0.1, pull=0.1).tolist()
    expected = 4.5 * sum(p * d[0] / a for p, d, a in zip([0.5, 0.3, 0.2], MOVEMENTS, shrunk, strict=True))
    assert step(advance, FedNova(effective="steps"), shrunk) == pytest.approx(expected)


def test_clients_without_a_step_are_objected_to(advance, cohort) -> None:
    work = {"local_progress": np.array([2.0, 0.0, np.nan, -1.0])}
    movements = [[1.0], [7.0], [7.0], [7.0]]
    assert list(FedNova().objections(cohort(movements, reports=work))) == [1, 2, 3]
    with pytest.raises(TrainingError, match="client 1: fednova cannot divide by its local work of 0"):
        advance(FedNova(), [0.0], movements, reports=work)


def test_momentum_acts_on_the_normalised_step(advance) -> None:
    server = FedNova(momentum=0.5)
    first = step(advance, server)
    second = step(advance, server)
    assert second == pytest.approx(1.5 * first)


def test_removes_the_inconsistency_of_unequal_steps(quadratic) -> None:
    """With unequal steps FedAvg ends elsewhere; FedNova ends at the optimum as the learning rate goes to 0."""
    steps = [1, 8, 3]
    quadratic.lr = 0.002
    averaged = quadratic.run(FedAvg(weights="equal"), 2500, steps)
    normalised = quadratic.run(FedNova(weights="equal"), 2500, steps)
    weighted = np.array(steps) * quadratic.curvatures
    np.testing.assert_allclose(averaged, weighted @ quadratic.centres / weighted.sum(), atol=0.03)
    assert np.linalg.norm(averaged - quadratic.optimum) > 1
    np.testing.assert_allclose(normalised, quadratic.optimum, atol=0.03)


def test_impossible_options_are_refused(population) -> None:
    with pytest.raises(ConfigError, match="momentum"):
        FedNova(momentum=1.0).check(population())
