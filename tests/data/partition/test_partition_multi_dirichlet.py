"""multi-dirichlet: groups in file order, the same draws for training and test, bounded retries."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError, DataError
from muster.data.partition.multi_dirichlet import MultiDirichlet, multi_dirichlet

TERRAFORM = (0.001, 0.002, 0.005, 0.01, 0.5)


@pytest.fixture(scope="module")
def cifar_like():
    return np.repeat(np.arange(10), 5000), np.repeat(np.arange(10), 1000)


@pytest.mark.parametrize("alpha", [1.0, 100.0])
def test_groups_have_their_slices_in_file_order(alpha):
    labels = np.repeat([0, 1], 40)
    train, _ = multi_dirichlet(labels, labels[:0], 2, (alpha, alpha), np.random.default_rng(0), clients=4)
    first = np.sort(np.concatenate([train[0], train[1]]))
    second = np.sort(np.concatenate([train[2], train[3]]))
    assert first.tolist() == [*range(20), *range(40, 60)]
    assert second.tolist() == [*range(20, 40), *range(60, 80)]


def test_equal_proportions_give_every_client_ten_and_ten():
    labels = np.repeat([0, 1], 40)
    train, _ = multi_dirichlet(labels, labels, 2, (np.inf, np.inf), np.random.default_rng(0), clients=4)
    for k in range(4):
        assert np.bincount(labels[train[k]]).tolist() == [10, 10]


def test_training_samples_are_shuffled_within_a_slice_and_test_samples_are_not():
    labels = np.repeat([0, 1], 40)
    divisions = [
        multi_dirichlet(labels, labels, 2, (np.inf, np.inf), np.random.default_rng(seed), clients=4)
        for seed in range(5)
    ]
    assert len({tuple(train[0].tolist()) for train, _ in divisions}) == 5
    assert {tuple(test[0].tolist()) for _, test in divisions} == {(*range(10), *range(40, 50))}


@pytest.mark.parametrize("on_degenerate", ["redraw", "ref"])
@pytest.mark.parametrize("seed", range(4))
def test_sizes_of_the_published_scenario(seed, on_degenerate, cifar_like, make_dataset, check_partition):
    dataset = make_dataset(*cifar_like)
    scheme = MultiDirichlet(50, TERRAFORM, on_degenerate=on_degenerate)
    partition = scheme.divide(dataset, np.random.default_rng(seed))
    fed = check_partition(partition, dataset, 50)
    assert fed.sizes.min() >= 200
    assert fed.sizes.max() < 2000
    assert fed.test_index.sizes.min() >= 40
    assert fed.test_index.sizes.max() < 400
    assert fed.test_index.sizes.sum() == 10_000


def test_training_and_test_proportions_agree(cifar_like, make_dataset, check_partition):
    dataset = make_dataset(*cifar_like)
    partition = MultiDirichlet(50, TERRAFORM).divide(dataset, np.random.default_rng(3))
    fed = check_partition(partition, dataset, 50)
    tests = np.zeros((50, 10))
    np.add.at(tests, (fed.test_index.owners, dataset.test.labels[fed.test_index.samples]), 1)
    # The masks of the two splits are separate, so a few boundary cases may differ; most must agree.
    assert np.mean(np.abs(fed.label_histograms / 5 - tests) <= 1) > 0.95


def test_skew_follows_the_alphas(cifar_like, make_dataset, check_partition):
    dataset = make_dataset(*cifar_like)
    partition = MultiDirichlet(50, (0.01, 0.1, 0.5, 1.0, 100.0)).divide(dataset, np.random.default_rng(0))
    fed = check_partition(partition, dataset, 50)
    shares = fed.label_histograms / fed.sizes[:, None]
    largest = shares.max(axis=1).reshape(5, 10).mean(axis=1)
    assert (np.diff(largest) < 0).all()


def test_unequal_classes_leave_only_the_remainders(make_dataset, check_partition):
    dataset = make_dataset(np.repeat([0, 1, 2], [41, 62, 100]))
    partition = MultiDirichlet(4, (5.0, 5.0)).divide(dataset, np.random.default_rng(0))
    fed = check_partition(partition, dataset, 4, complete=False)
    assert np.flatnonzero(fed.unassigned()).tolist() == [40]
    assert partition.test is None


@settings(max_examples=25, deadline=None)
@given(
    labels=st.lists(st.integers(0, 3), min_size=120, max_size=240),
    alphas=st.lists(st.sampled_from([0.5, 2.0, np.inf]), min_size=1, max_size=3),
    members=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_no_sample_twice_and_equal_groups(*, labels, alphas, members, seed, make_dataset, check_partition):
    dataset = make_dataset(labels, labels, 4)
    scheme = MultiDirichlet(members * len(alphas), tuple(alphas))
    one, two = (scheme.divide(dataset, np.random.default_rng(seed)) for _ in range(2))
    fed = check_partition(one, dataset, members * len(alphas), complete=False)
    assert len(np.unique(fed.sizes.reshape(len(alphas), members).sum(axis=1))) == 1
    assert fed.unassigned().sum() <= 4 * (len(alphas) - 1)
    np.testing.assert_array_equal(one.train.samples, two.train.samples)


def test_clients_that_the_alphas_do_not_divide_are_refused(make_dataset):
    dataset = make_dataset(np.repeat([0, 1], 100))
    with pytest.raises(ConfigError, match="3 alphas do not divide 10 clients") as caught:
        MultiDirichlet(10, (1.0, 1.0, 1.0)).divide(dataset, np.random.default_rng(0))
    assert "partition.clients = 9" in caught.value.fix


def test_odd_clients_can_be_left_out(make_dataset, check_partition):
    dataset = make_dataset(np.repeat([0, 1], 120))
    scheme = MultiDirichlet(10, (5.0, 5.0, 5.0), allow_drop=True)
    check_partition(scheme.divide(dataset, np.random.default_rng(0)), dataset, 9, complete=False)


def test_what_cannot_succeed_ends_with_a_reason(make_dataset):
    # One group of fifty clients, ten classes, next to one client a class: forty clients stay empty.
    dataset = make_dataset(np.repeat(np.arange(10), 100))
    with pytest.raises(DataError, match=r"alpha = 0\.001 gave each of 50 clients"):
        MultiDirichlet(50, (0.001,), max_tries=20).divide(dataset, np.random.default_rng(0))


@pytest.mark.parametrize("options", [{"alphas": ()}, {"alphas": (0.0,)}, {"alphas": (1.0,), "min_share": 1.0}])
def test_values_out_of_range_are_refused(options, make_dataset):
    with pytest.raises(ConfigError):
        MultiDirichlet(2, **options).divide(make_dataset([0, 1] * 10), np.random.default_rng(0))
