"""fixed-size-dirichlet: exact sizes, the entropies of its groups, and stocks that do not suffice."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy

from muster.core.errors import ConfigError
from muster.data.partition.fixed_size_dirichlet import FixedSizeDirichlet, capped, fixed_size_dirichlet


@pytest.mark.parametrize(
    ("beta", "expected"),
    [(0.1, 0.37), (0.2, 0.53), (0.3, 0.62), (0.4, 0.68), (0.5, 0.73), (0.6, 0.76), (0.7, 0.785), (0.8, 0.81)],
)
def test_label_entropy_of_a_group(beta, expected):
    labels = np.repeat(np.arange(10), 40_000)
    index = fixed_size_dirichlet(labels, 10, np.full(200, beta), 1000, np.random.default_rng(0))
    counts = np.stack([np.bincount(labels[index[k]], minlength=10) for k in range(200)])
    assert entropy(counts, axis=1).mean() / np.log(10) == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize(
    ("betas", "groups"),
    [((0.1, 0.4, 0.5, 0.8), (3, 3, 3, 3)), ((0.1, 0.4, 0.5, 0.8), (1, 5, 5, 1)), ((0.1, 0.2, 0.3, 0.4), None)],
)
def test_workloads_have_two_thousand_samples_a_client(
    *, betas, groups, make_dataset, check_partition, check_matching_test
):
    dataset = make_dataset(np.repeat(np.arange(10), 5000), np.repeat(np.arange(10), 1000))
    scheme = FixedSizeDirichlet(12, betas, groups)
    fed = check_partition(scheme.divide(dataset, np.random.default_rng(2)), dataset, 12, complete=False)
    assert (fed.sizes == 2000).all()
    assert fed.unassigned().sum() == 26_000
    check_matching_test(fed)


@settings(max_examples=40, deadline=None)
@given(
    labels=st.lists(st.integers(0, 3), min_size=40, max_size=100),
    clients=st.integers(1, 8),
    size=st.integers(1, 12),
    beta=st.sampled_from([0.01, 0.5, np.inf]),
    tries=st.sampled_from([1, 50]),
    seed=st.integers(0, 99),
)
def test_exact_sizes_whatever_the_stock(
    *, labels, clients, size, beta, tries, seed, make_dataset, check_partition
):
    if clients * size > len(labels):
        return
    dataset = make_dataset(labels, classes=5)
    scheme = FixedSizeDirichlet(clients, (beta,), None, size, tries)
    one, two = (scheme.divide(dataset, np.random.default_rng(seed)) for _ in range(2))
    fed = check_partition(one, dataset, clients, complete=False)
    assert (fed.sizes == size).all()
    np.testing.assert_array_equal(one.train.samples, two.train.samples)


def test_demand_that_never_fits_is_capped_in_proportion():
    counts = np.array([[8, 0, 0], [4, 4, 0]])
    mixtures = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    result = capped(counts, mixtures, np.array([6, 6, 9]))
    # Class 0 is shared 4 : 2. Client 0 has no other class, so the rest is spread over what is there; client 1
    # takes what it lost from class 1 as far as that goes.
    assert result[:, 0].tolist() == [4, 2]
    assert result.sum(axis=1).tolist() == [8, 8]
    assert (result.sum(axis=0) <= [6, 6, 9]).all()
    assert result[0, 1:].tolist() == [2, 2]
    assert result[1].tolist() == [2, 4, 2]


@pytest.mark.parametrize(
    "options",
    [
        {"betas": ()},
        {"betas": (0.0,)},
        {"betas": (0.1, 0.2, 0.3)},
        {"betas": (0.1, 0.2), "group_sizes": (1, 2)},
        {"size": 6},
        {"size": 0},
    ],
)
def test_impossible_options_are_refused(options, make_dataset):
    with pytest.raises(ConfigError):
        FixedSizeDirichlet(**{"clients": 4, "size": 2, **options}).divide(
            make_dataset([0, 1] * 10), np.random.default_rng(0)
        )
