"""FADAS."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.aggregation.fadas import FADAS, delayed_rate
from muster.core.errors import ConfigError
from muster.pacing.buffered import Buffered


def test_worked_example(advance) -> None:
    """Means 0.2, then 0.1, with β = (0.9, 0.99), ε = 0.0001 and η = 0.5.

    m = 0.02, v = v̂ = 0.0004: step 0.5 · 0.02/√0.0005 = 0.447214. Then m = 0.028, v = v̂ = 0.000496: 0.5 · 0.028
    over √0.000596. Then mean 0: m = 0.0252, v = 0.00049104, and v̂ stays 0.000496: 0.5 · 0.0252/√0.000596.
    """
    server, now = FADAS(server_lr=0.5, epsilon=1e-4), np.zeros(1, dtype=np.float32)
    steps = []
    for mean in (0.2, 0.1, 0.0):
        after = advance(server, now, [[mean], [mean]]).parameters
        steps.append(after[0] - now[0])
        now = after
    expected = [0.447214, 0.5 * 0.028 / math.sqrt(0.000596), 0.5 * 0.0252 / math.sqrt(0.000596)]
    np.testing.assert_allclose(steps, expected, rtol=1e-5)
    np.testing.assert_allclose(server.largest, [0.000496])


@pytest.mark.parametrize(
    ("delay", "expected"),
    [("ignore", [0.4] * 5), ("divide", [0.4, 0.4, 0.2, 0.4 / 3, 0.1]), ("cap", [0.4, 0.4, 0.4, 1 / 3, 0.25])],
)
def test_rates_by_the_oldest_answer(delay, expected) -> None:
    got = [delayed_rate(0.4, oldest, threshold=1, delay=delay) for oldest in range(5)]
    np.testing.assert_allclose(got, expected)


def textbook(current, buffers, ages, *, rate, beta1, beta2, epsilon, threshold, delay, correct) -> np.ndarray:
    """Coordinate by coordinate."""
    result = np.array(current, dtype=float)
    for i in range(len(result)):
        first = second = largest = 0.0
        for t, (rows, old) in enumerate(zip(buffers, ages, strict=True), start=1):
            mean = sum(float(row[i]) for row in rows) / len(rows)
            first = beta1 * first + (1 - beta1) * mean
            second = beta2 * second + (1 - beta2) * mean**2
            largest = max(largest, second)
            now, oldest = rate, max(old)
            if oldest > threshold and delay == "divide":
                now = rate / oldest
            if oldest > threshold and delay == "cap":
                now = min(rate, 1 / oldest)
            if correct:
                now *= 1 / (1 - beta1**t)
                result[i] += now * first / math.sqrt(largest / (1 - beta2**t) + epsilon)
            else:
                result[i] += now * first / math.sqrt(largest + epsilon)
    return result


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10_000),
    rounds=st.integers(1, 6),
    delay=st.sampled_from(["ignore", "cap", "divide"]),
    correct=st.booleans(),
)
def test_equals_the_textbook(layout, cohort, *, seed, rounds, delay, correct) -> None:
    rng, spec = np.random.default_rng(seed), layout([3])
    options = {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3, "delay": delay}
    server = FADAS(**options, server_lr=0.3, delay_threshold=2, bias_correction="adam" if correct else "none")
    start = rng.normal(size=3).astype(np.float32)
    now, buffers, ages = start, [], []
    for _ in range(rounds):
        buffers.append(rng.normal(size=(rng.integers(1, 4), 3)).astype(np.float32))
        ages.append(rng.integers(0, 9, len(buffers[-1])))
        updates = cohort(buffers[-1], staleness=ages[-1], version=20 - ages[-1])
        now = server.aggregate(now, updates, spec).parameters
    expected = textbook(start, buffers, ages, rate=0.3, threshold=2, correct=correct, **options)
    np.testing.assert_allclose(now, expected, rtol=1e-4, atol=1e-5)


def test_an_answer_that_counts_nothing_does_not_shorten_the_step(advance) -> None:
    ages = {"staleness": np.array([0, 9]), "version": np.array([9, 0]), "weights": np.array([1.0, 0.0])}
    slowed = {**ages, "weights": np.array([1.0, 1e-12])}
    full, short = (advance(FADAS(), [0.0], [[0.5], [0.5]], **given).parameters[0] for given in (ages, slowed))
    assert full == pytest.approx(9 * short)


def test_the_second_moment_never_falls_and_still_coordinates_stay(advance) -> None:
    server, now = FADAS(), np.zeros(2, dtype=np.float32)
    before = 0.0
    for mean in (1.0, 0.3, 0.0, 2.0):
        now = advance(server, now, [[mean, 0.0]]).parameters
        assert server.largest[0] >= before
        before = server.largest[0]
    assert now[1] == 0


def test_one_optimum_is_reached_whoever_answers_how_often(agreed) -> None:
    result = agreed.run(FADAS(server_lr=0.1), 1000)
    np.testing.assert_allclose(result.parameters, [3.0, -2.0], atol=1e-2)
    assert max(agreed.arrivals(result)[1]) > 5


def test_with_everybody_in_the_buffer_it_reaches_the_optimum(asynchronous) -> None:
    asynchronous.speeds = (1.0, 1.0, 1.0)
    pacing = Buffered(in_flight=3, k=3)
    result = asynchronous.run(FADAS(server_lr=0.1), 1000, pacing=pacing, per_round=3)
    np.testing.assert_allclose(result.parameters, asynchronous.problem.optimum, atol=1e-2)


def test_where_clients_differ_it_stays_with_those_who_answer_often(asynchronous) -> None:
    """Nothing in it corrects for how often a client answers, as in FedBuff."""
    asynchronous.run(FADAS(server_lr=0.1), 1000)
    assert np.linalg.norm(asynchronous.centre - asynchronous.problem.optimum) > 1.0


@pytest.mark.parametrize("option", [{"beta1": 1.0}, {"beta2": -0.1}, {"epsilon": 0.0}, {"delay_threshold": -1}])
def test_impossible_options_are_refused(population, option) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        FADAS(**option).check(population())
