"""Compressed updates: one-dimensional k-means."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from muster.core.component import Population
from muster.signals.compressed import CompressedUpdate, centres


def test_well_separated_values():
    values = np.array([5.1, -1.0, 0.0, 4.9, 0.1, -0.9, -1.1, 5.0, -0.1])
    np.testing.assert_allclose(centres(values, 3), [-1.0, 0.0, 5.0], atol=1e-12)


@pytest.mark.parametrize("count", [2, 5, 11])
def test_equals_scikit_learn_from_the_same_start(count):
    values = np.random.default_rng(count).standard_normal(400)
    start = np.quantile(values, (np.arange(count) + 0.5) / count)[:, None]
    expected = KMeans(count, init=start, n_init=1, max_iter=300, tol=0).fit(values[:, None])
    np.testing.assert_allclose(centres(values, count, 0.0), np.sort(expected.cluster_centers_[:, 0]), atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.integers(1, 6))
def test_ascending_and_inside_the_values(values, count):
    found = centres(np.array(values), count)
    assert found.shape == (count,)
    assert (np.diff(found) >= 0).all()
    assert min(values) - 1e-9 <= found[0]
    assert found[-1] <= max(values) + 1e-9


def test_measured_on_movement_or_weights(make_client):
    client = make_client()
    client.movement = np.full(client.spec.size, 0.25, dtype=np.float32)
    signal = CompressedUpdate(ratio=0.05)
    width = signal.width(Population(np.array([1]), 3, client.spec, 1))
    assert width == int(0.05 * client.spec.trainable.stop)
    np.testing.assert_allclose(signal.measure(client), np.full(width, 0.25))
    weights = CompressedUpdate(ratio=0.05, of="weights").measure(client)
    trained = client.origin.numpy()[client.spec.trainable] + 0.25
    np.testing.assert_allclose(weights, centres(trained.astype(np.float64), width), atol=1e-6)


def test_a_small_model_still_sends_one_number(make_client):
    client = make_client()
    assert CompressedUpdate().width(Population(np.array([1]), 3, client.spec, 1)) == 1
