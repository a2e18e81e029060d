"""sampled-shards: random class counts, equal sizes, refilling when classes run out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError
from muster.data.partition._filling import fill_in_order
from muster.data.partition.sampled_shards import SampledShards, from_fullest, sampled_shards


@pytest.mark.parametrize("seed", range(10))
def test_the_last_client_takes_what_is_left(seed):
    labels = np.repeat([0, 1], 3)
    index = sampled_shards(labels, 2, 3, np.random.default_rng(seed), min_classes=1, max_classes=1)
    assert index.sizes.tolist() == [2, 2, 2]
    counts = sorted(np.bincount(labels[index[k]], minlength=2).tolist() for k in range(3))
    # Two clients may choose the same class first; then the second of them takes 1 + 1 and the third what is left.
    assert [1, 1] in counts
    assert np.sum(counts, axis=0).tolist() == [3, 3]


def test_shortfall_comes_from_the_fullest_classes():
    assert from_fullest(5, np.zeros(4), np.array([1, 4, 0, 3])).tolist() == [0, 4, 0, 1]
    assert from_fullest(3, np.zeros(2), np.array([2, 2])).tolist() == [2, 1]


def test_a_class_that_was_emptied_exactly_is_not_chosen_again():
    def propose(present, needs):
        counts = np.zeros((len(needs), len(present)), dtype=np.int64)
        counts[:, 0] = needs
        return counts, counts.astype(float)

    def complete(need, weights, stock):
        raise AssertionError("nobody asks for more than there is")

    taken = fill_in_order(np.array([4, 2, 4]), np.full(5, 2), propose, complete)
    assert taken.tolist() == [[2, 0, 0], [2, 0, 0], [0, 2, 0], [0, 0, 2], [0, 0, 2]]


@settings(max_examples=40, deadline=None)
@given(
    labels=st.lists(st.integers(0, 5), min_size=30, max_size=150),
    clients=st.integers(1, 30),
    limits=st.tuples(st.integers(1, 6), st.integers(1, 8)).map(sorted),
    sampler=st.sampled_from(["uniform", "poisson"]),
    allocation=st.sampled_from(["equal", "dirichlet", "random"]),
    seed=st.integers(0, 99),
)
def test_every_sample_has_one_client(
    *, labels, clients, limits, sampler, allocation, seed, make_dataset, check_partition, check_matching_test
):
    dataset = make_dataset(labels, np.arange(40) % 6, 6)
    scheme = SampledShards(clients, min(limits[0], 6), limits[1], sampler, 2.0, allocation, 0.3)
    one, two = (scheme.divide(dataset, np.random.default_rng(seed)) for _ in range(2))
    fed = check_partition(one, dataset, clients)
    check_matching_test(fed)
    expected = np.full(clients, len(labels) // clients)
    expected[: len(labels) % clients] += 1
    assert fed.sizes.tolist() == expected.tolist()
    np.testing.assert_array_equal(one.train.samples, two.train.samples)


def test_class_numbers_are_uniform_while_stocks_last(make_dataset, check_partition):
    dataset = make_dataset(np.arange(200_000) % 20)
    partition = SampledShards(2000, 1, 4).divide(dataset, np.random.default_rng(0))
    fed = check_partition(partition, dataset, 2000)
    held = (fed.label_histograms > 0).sum(axis=1)
    shares = np.bincount(held, minlength=5)[1:5] / 2000
    assert np.abs(shares - 0.25).max() < 0.05
    # Equal allocation: 100 samples over 1 to 4 classes.
    three = fed.label_histograms[held == 3]
    assert np.isin(np.sort(three, axis=1)[:, -3:], [33, 34]).mean() > 0.95


def test_an_infinite_alpha_allocates_equally(make_dataset, check_partition):
    dataset = make_dataset(np.arange(8000) % 4)
    scheme = SampledShards(10, 2, 2, allocation="dirichlet", alpha=np.inf)
    histograms = check_partition(scheme.divide(dataset, np.random.default_rng(0)), dataset, 10).label_histograms
    assert (np.sort(histograms, axis=1)[:, -2:] == 400).all(axis=1).sum() >= 5


def test_poisson_class_numbers_have_their_mean(make_dataset, check_partition):
    dataset = make_dataset(np.arange(400_000) % 40)
    partition = SampledShards(2000, 1, 40, "poisson", 5.0).divide(dataset, np.random.default_rng(0))
    held = (check_partition(partition, dataset, 2000).label_histograms > 0).sum(axis=1)
    assert held.mean() == pytest.approx(6, abs=0.3)


@pytest.mark.parametrize(
    "options",
    [{"min_classes": 0}, {"min_classes": 3}, {"max_classes": 0}, {"rate": -1.0}, {"alpha": 0.0}, {"clients": 0}],
)
def test_impossible_options_are_refused(options, make_dataset):
    with pytest.raises(ConfigError):
        SampledShards(**{"clients": 4, **options}).divide(make_dataset([0, 1] * 10), np.random.default_rng(0))
