"""iid: nearly equal parts of a permutation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError
from muster.data.partition import schemes
from muster.data.partition.iid import IID, iid


def test_sizes_differ_by_one_at_most_and_the_first_are_larger():
    assert iid(10, 3, np.random.default_rng(0)).sizes.tolist() == [4, 3, 3]


@settings(max_examples=25, deadline=None)
@given(samples=st.integers(1, 300), clients=st.integers(1, 40), test=st.integers(0, 50), seed=st.integers(0, 99))
def test_exact_cover_by_equal_clients(*, samples, clients, test, seed, make_dataset, check_partition):
    if clients > samples:
        return
    dataset = make_dataset(np.arange(samples) % 3, np.arange(test) % 3, 3)
    partition = IID(clients).divide(dataset, np.random.default_rng(seed))
    check_partition(partition, dataset, clients)
    assert np.ptp(partition.train.sizes) <= 1
    assert (partition.test is None) == (test == 0)
    if test:
        assert np.ptp(partition.test.sizes) <= 1
        assert partition.test.sizes.sum() == test


def test_labels_are_mixed(make_dataset, check_partition):
    dataset = make_dataset(np.repeat(np.arange(10), 1000))
    fed = check_partition(IID(10).divide(dataset, np.random.default_rng(1)), dataset, 10)
    assert np.abs(fed.label_histograms - 100).max() < 50  # five standard deviations


@pytest.mark.parametrize("clients", [0, 11])
def test_impossible_numbers_of_clients_are_refused(clients, make_dataset):
    with pytest.raises(ConfigError, match="clients"):
        schemes.build("iid", {"clients": clients}).divide(make_dataset([0, 1] * 5), np.random.default_rng(0))
