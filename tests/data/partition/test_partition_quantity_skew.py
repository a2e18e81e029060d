"""quantity-skew: sizes from a distribution, labels alike."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError
from muster.data.partition.quantity_skew import QuantitySkew, size_weights, skewed_sizes


def test_the_minimum_is_reserved_first():
    assert skewed_sizes(100, np.array([0.5, 0.3, 0.2]), 10).tolist() == [45, 31, 24]


@settings(max_examples=30, deadline=None)
@given(
    samples=st.integers(60, 300),
    clients=st.integers(1, 12),
    distribution=st.sampled_from(["dirichlet", "lognormal", "power-law"]),
    parameter=st.sampled_from([0.05, 0.5, 3.0]),
    seed=st.integers(0, 99),
)
def test_exact_cover_with_minimum_sizes(
    *, samples, clients, distribution, parameter, seed, make_dataset, check_partition
):
    dataset = make_dataset(np.arange(samples) % 3, np.arange(100) % 3)
    scheme = QuantitySkew(clients, distribution, parameter, min_size=5)
    one, two = (scheme.divide(dataset, np.random.default_rng(seed)) for _ in range(2))
    fed = check_partition(one, dataset, clients)
    assert fed.sizes.min() >= 5
    assert (np.abs(fed.test_index.sizes - fed.sizes * 100 / samples) < 1).all()
    np.testing.assert_array_equal(one.train.samples, two.train.samples)


def test_power_law_weights_are_powers_of_the_ranks():
    weights = np.sort(size_weights("power-law", 4, 2.0, np.random.default_rng(0)))[::-1]
    np.testing.assert_allclose(weights, [1, 1 / 4, 1 / 9, 1 / 16])


def test_lognormal_weights_have_their_sigma():
    weights = size_weights("lognormal", 20_000, 0.7, np.random.default_rng(0))
    assert np.log(weights).std() == pytest.approx(0.7, rel=0.05)


def test_an_enormous_sigma_does_not_overflow():
    weights = size_weights("lognormal", 50, 1e6, np.random.default_rng(0))
    assert weights.max() == 1
    assert np.isfinite(weights).all()


def test_labels_are_alike(make_dataset, check_partition):
    dataset = make_dataset(np.repeat(np.arange(4), 5000))
    fed = check_partition(QuantitySkew(5, parameter=2.0).divide(dataset, np.random.default_rng(0)), dataset, 5)
    shares = fed.label_histograms / fed.sizes[:, None]
    assert np.abs(shares - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / fed.sizes.min())


@pytest.mark.parametrize(
    "options",
    [
        {"min_size": 6},
        {"min_size": 0},
        {"parameter": 0.0},
        {"distribution": "lognormal", "parameter": float("inf")},
    ],
)
def test_impossible_options_are_refused(options, make_dataset):
    with pytest.raises(ConfigError):
        QuantitySkew(**{"clients": 4, "min_size": 2, **options}).divide(
            make_dataset([0, 1] * 10), np.random.default_rng(0)
        )
