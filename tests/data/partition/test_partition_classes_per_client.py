"""classes-per-client: exactly N_c classes, shards, and what cannot be had."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError, DataError
from muster.data.federated import Index
from muster.data.partition.classes_per_client import ClassesPerClient, label_shards, random_class_sets, truncated


def test_one_class_each(make_dataset, check_partition):
    dataset = make_dataset(np.repeat(np.arange(4), 5))
    fed = check_partition(ClassesPerClient(4, 1).divide(dataset, np.random.default_rng(0)), dataset, 4)
    assert np.sort(fed.label_histograms, axis=1).tolist() == [[0, 0, 0, 5]] * 4
    assert (fed.label_histograms.sum(axis=0) == 5).all()


def test_two_clients_share_each_class(make_dataset, check_partition):
    dataset = make_dataset(np.repeat([0, 1], 8))
    fed = check_partition(ClassesPerClient(4, 1).divide(dataset, np.random.default_rng(0)), dataset, 4)
    assert np.sort(fed.label_histograms, axis=1).tolist() == [[0, 4]] * 4
    assert ((fed.label_histograms > 0).sum(axis=0) == 2).all()


@settings(max_examples=40, deadline=None)
@given(clients=st.integers(1, 40), classes=st.integers(1, 12), seed=st.integers(0, 999), data=st.data())
def test_class_sets_have_the_right_margins(clients, classes, seed, data):
    per_client = data.draw(st.integers(1, classes))
    holds = random_class_sets(clients, classes, per_client, np.random.default_rng(seed))
    assert (holds.sum(axis=1) == per_client).all()
    assert np.ptp(holds.sum(axis=0)) <= 1


def test_class_sets_are_uniform():
    # Three clients, two of three classes each, every class twice: six equally likely tables.
    rng = np.random.default_rng(0)
    seen: dict[bytes, int] = {}
    for _ in range(3000):
        key = random_class_sets(3, 3, 2, rng).tobytes()
        seen[key] = seen.get(key, 0) + 1
    assert len(seen) == 6
    assert max(abs(count - 500) for count in seen.values()) < 110  # five standard deviations


@settings(max_examples=30, deadline=None)
@given(
    clients=st.integers(2, 12),
    per_client=st.integers(1, 5),
    mode=st.sampled_from(["exact", "shards", "sampled"]),
    equal_size=st.booleans(),
    seed=st.integers(0, 99),
)
def test_modes_keep_their_promises(
    *, clients, per_client, mode, equal_size, seed, make_dataset, check_partition, check_matching_test
):
    dataset = make_dataset(np.arange(400) % 5, np.arange(50) % 5)
    scheme = ClassesPerClient(clients, per_client, mode, allow_missing=True, equal_size=equal_size)
    one, two = (scheme.divide(dataset, np.random.default_rng(seed)) for _ in range(2))
    missing = mode == "exact" and clients * per_client < 5
    fed = check_partition(one, dataset, clients, complete=not missing and not equal_size)
    check_matching_test(fed)
    np.testing.assert_array_equal(one.train.samples, two.train.samples)
    held = (fed.label_histograms > 0).sum(axis=1)
    if equal_size:
        assert np.ptp(fed.sizes) == 0
    elif mode == "exact":
        assert (held == per_client).all()
        for column in fed.label_histograms.T:
            assert np.ptp(column[column > 0]) <= 1 if column.any() else missing


def test_shards_are_runs_of_the_sorted_samples():
    labels = np.tile(np.arange(4), 10)
    index = label_shards(labels, 4, 4, 2, np.random.default_rng(0))
    assert index.sizes.tolist() == [10] * 4
    for k in range(4):
        assert set(np.bincount(labels[index[k]], minlength=4).tolist()) <= {0, 5, 10}


def test_truncation_keeps_clients_apart():
    index = truncated(Index.from_lists([[0, 1, 2, 3], [4, 5], [6, 7, 8]]), np.random.default_rng(0))
    assert index.sizes.tolist() == [2, 2, 2]
    assert set(index[0]) < {0, 1, 2, 3}
    assert set(index[1]) == {4, 5}
    assert set(index[2]) < {6, 7, 8}


def test_classes_that_no_client_would_have_need_permission(make_dataset, check_partition):
    dataset = make_dataset(np.arange(100) % 10)
    with pytest.raises(ConfigError, match="cannot cover 10 classes"):
        ClassesPerClient(3, 2).divide(dataset, np.random.default_rng(0))
    partition = ClassesPerClient(3, 2, allow_missing=True).divide(dataset, np.random.default_rng(0))
    fed = check_partition(partition, dataset, 3, complete=False)
    assert fed.unassigned().sum() == 40


def test_more_holders_than_samples_is_an_error(make_dataset):
    dataset = make_dataset(np.repeat([0, 1], [3, 100]))
    with pytest.raises(DataError, match="class 0 has 3 samples"):
        ClassesPerClient(10, 2).divide(dataset, np.random.default_rng(0))


@pytest.mark.parametrize(
    "options", [{"classes": 0}, {"classes": 3}, {"clients": 21}, {"mode": "shards", "clients": 15}]
)
def test_impossible_options_are_refused(options, make_dataset):
    dataset = make_dataset([0, 1] * 10)
    with pytest.raises(ConfigError):
        ClassesPerClient(**{"clients": 4, **options}).divide(dataset, np.random.default_rng(0))
