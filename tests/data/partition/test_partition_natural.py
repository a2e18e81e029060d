"""natural: keys as clients, small keys, and keys dealt out to clients."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError, DataError
from muster.data.partition.natural import Natural, clients_of_keys, deal_keys, shared_keys


@pytest.fixture
def speakers(make_dataset):
    # Key 0: 5 samples, 1: 1, 2: 3, 3: 2; the test split has keys 0, 2 and 4 (who never speaks in training).
    owners = np.repeat([0, 1, 2, 3], [5, 1, 3, 2])
    return make_dataset(np.arange(11) % 2, np.arange(4) % 2, owners=(owners, [2, 0, 0, 4]))


def test_every_key_is_a_client_and_keeps_its_test_samples(speakers, check_partition):
    partition = Natural().divide(speakers, np.random.default_rng(0))
    check_partition(partition, speakers, 4)
    assert partition.train.sizes.tolist() == [5, 1, 3, 2]
    assert [partition.test[k].tolist() for k in range(4)] == [[1, 2], [], [0], []]


def test_small_keys_are_dropped(speakers, check_partition):
    partition = Natural(min_samples=3).divide(speakers, np.random.default_rng(0))
    check_partition(partition, speakers, 2, complete=False)
    assert partition.train.sizes.tolist() == [5, 3]
    assert [partition.test[k].tolist() for k in range(2)] == [[1, 2], [0]]


def test_small_keys_are_merged(speakers, check_partition):
    partition = Natural(min_samples=3, small="merge").divide(speakers, np.random.default_rng(0))
    check_partition(partition, speakers, 3)
    assert partition.train.sizes.tolist() == [5, 3, 3]
    assert partition.train[2].tolist() == [5, 9, 10]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([2, 2, 2, 9], [1, 1, 1, 0]),  # the incomplete second run joins the first
        ([2, 9, 0], [-1, 0, -1]),  # nobody to merge with
        ([2, 2, 2, 2], [0, 0, 1, 1]),
    ],
)
def test_merging_runs(sizes, expected):
    assert clients_of_keys(np.array(sizes), 4, "merge").tolist() == expected


def test_some_clients_are_chosen_at_random_and_keep_their_order(speakers, check_partition):
    seen = set()
    for seed in range(20):
        partition = Natural(clients=2).divide(speakers, np.random.default_rng(seed))
        fed = check_partition(partition, speakers, 2, complete=False)
        seen.add(tuple(fed.sizes.tolist()))
    assert seen <= {(5, 1), (5, 3), (5, 2), (1, 3), (1, 2), (3, 2)}
    assert len(seen) > 3


@settings(max_examples=50, deadline=None)
@given(clients=st.integers(1, 30), keys=st.integers(1, 20), data=st.data())
def test_hands_have_different_keys_and_use_them_evenly(clients, keys, data):
    per_client = data.draw(st.integers(1, keys))
    hands = deal_keys(np.arange(keys, 0, -1), clients, per_client)
    assert all(len(set(hand)) == per_client for hand in hands.tolist())
    if per_client == 1:
        assert np.ptp(np.bincount(hands.ravel(), minlength=keys)) <= 1


def test_the_largest_keys_are_dealt_first():
    assert deal_keys(np.array([1, 9, 0, 5]), 3, 1).ravel().tolist() == [1, 3, 0]


def test_holders_share_a_key_or_all_have_it():
    owners = np.array([0, 0, 0, 0, 1, 1, 2])
    hands = np.array([[0], [0], [1]])
    shared = shared_keys(owners, hands, duplicate=False)
    assert [shared[k].tolist() for k in range(3)] == [[0, 2], [1, 3], [4, 5]]
    doubled = shared_keys(owners, hands, duplicate=True)
    assert [doubled[k].tolist() for k in range(3)] == [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5]]


@settings(max_examples=25, deadline=None)
@given(clients=st.integers(1, 10), per_client=st.integers(1, 6), duplicate=st.booleans())
def test_dealt_keys_cover_what_they_hold(clients, per_client, duplicate, make_dataset):
    owners = np.random.default_rng(5).integers(6, size=300)
    dataset = make_dataset(np.arange(300) % 3, np.arange(60) % 3, owners=(owners, np.arange(60) % 6))
    scheme = Natural(clients=clients, keys_per_client=per_client, duplicate=duplicate)
    partition = scheme.divide(dataset, np.random.default_rng(0))
    hands = deal_keys(np.bincount(owners), clients, per_client)
    for index, of_sample in ((partition.train, owners), (partition.test, np.arange(60) % 6)):
        copies = np.bincount(index.samples, minlength=len(of_sample))
        holders = np.bincount(hands.ravel(), minlength=6)[of_sample]
        assert copies.tolist() == (holders if duplicate else np.minimum(holders, 1)).tolist()
        for k in range(clients):
            assert set(of_sample[index[k]]) == set(hands[k])


def test_without_owners_in_the_test_split_clients_have_no_test_samples(make_dataset):
    dataset = make_dataset([0, 1, 0], [0, 1], owners=([0, 1, 1], None))
    assert Natural().divide(dataset, np.random.default_rng(0)).test is None


def test_data_without_natural_clients_is_refused(make_dataset):
    with pytest.raises(DataError, match="does not name the owners"):
        Natural().divide(make_dataset([0, 1]), np.random.default_rng(0))


def test_a_minimum_that_nobody_has_is_refused(speakers):
    with pytest.raises(DataError, match="no natural client"):
        Natural(min_samples=6).divide(speakers, np.random.default_rng(0))


@pytest.mark.parametrize(
    "options",
    [
        {"clients": 5},
        {"clients": 0},
        {"keys_per_client": 2},
        {"clients": 2, "keys_per_client": 5},
        {"clients": 2, "keys_per_client": 2, "small": "merge"},
    ],
)
def test_impossible_options_are_refused(options, speakers):
    with pytest.raises(ConfigError):
        Natural(**options).divide(speakers, np.random.default_rng(0))
