"""Centred clipping: worked example, the textbook form, memory of the last step."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.aggregation.centred_clipping import CentredClipping, clipped_mean
from muster.core.errors import ConfigError


def textbook(rows, centre, radius, iterations):
    for _ in range(iterations):
        pulls = []
        for row in rows:
            difference = row - centre
            length = np.linalg.norm(difference)
            pulls.append(difference * min(1.0, radius / length) if length > 0 else difference)
        centre = centre + np.mean(pulls, axis=0)
    return centre


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 9), st.floats(0.1, 50), st.integers(1, 4))
def test_equals_the_textbook(seed, clients, radius, iterations):
    rng = np.random.default_rng(seed)
    rows, centre = rng.normal(size=(clients, 5)).astype(np.float32) * 3, rng.normal(size=5)
    got, factors = clipped_mean(rows, centre, radius, iterations)
    np.testing.assert_allclose(got, textbook(rows.astype(float), centre, radius, iterations), atol=1e-6)
    assert ((factors > 0) & (factors <= 1)).all()


def test_worked_example(advance):
    # From 0 with radius 1, one step: 0.5 stays, 4 is shortened to 1.
    result = advance(CentredClipping(radius=1.0, iterations=1), [0.0], [[0.5], [4.0]])
    np.testing.assert_allclose(result.parameters, [0.75])
    np.testing.assert_allclose(result.weights, [0.8, 0.2])


def test_the_last_step_is_the_next_centre_and_is_saved(advance):
    one = CentredClipping(radius=1.0, iterations=1)
    advance(one, [0.0], [[0.5], [4.0]])
    other = CentredClipping(radius=1.0, iterations=1)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for aggregator in (one, other):
        # From 0.75: the distances 0.25 and 3.25; the second is shortened to 1.
        np.testing.assert_allclose(advance(aggregator, [0.0], [[0.5], [4.0]]).parameters, [0.75 + (1 - 0.25) / 2])


def test_an_attacker_moves_it_by_the_radius_at_most(advance):
    honest = np.random.default_rng(1).normal(size=(9, 4)) * 0.1
    near = advance(CentredClipping(radius=0.5, iterations=1), np.zeros(4), honest).parameters
    far = advance(
        CentredClipping(radius=0.5, iterations=1), np.zeros(4), np.vstack([honest, np.full((1, 4), 1e9)])
    ).parameters
    assert np.linalg.norm(far - 0.9 * near) <= 0.5 / 10 + 1e-6


@pytest.mark.parametrize("options", [{"radius": 0.0}, {"radius": float("inf")}, {"iterations": 0}])
def test_bad_options(population, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        CentredClipping(**options).check(population())
