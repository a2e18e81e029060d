"""Subsets of the classes and varying amounts: tables of who holds what, shares, and mistakes."""

import numpy as np
import pytest

from muster.core.errors import ConfigError, DataError
from muster.data.partition.class_subsets import ClassSubsets, class_subsets, varied_class_sets


@pytest.fixture
def dataset(make_dataset):
    return make_dataset(np.repeat(np.arange(12), 40), np.repeat(np.arange(12), 10))


def test_who_holds_what():
    rng = np.random.default_rng(0)
    for _ in range(20):
        numbers = rng.integers(1, 12, size=15, endpoint=True)
        holds = varied_class_sets(numbers, 12, rng)
        assert holds.sum(axis=1).tolist() == numbers.tolist()
        holders = holds.sum(axis=0)
        assert holders.max() - holders.min() <= 1


def test_all_subsets_are_as_likely():
    """Of two classes out of four: each of the six pairs, for the first client as for the last."""
    rng = np.random.default_rng(1)
    drawn = [varied_class_sets(np.array([2, 1, 2]), 4, rng) for _ in range(3000)]
    for client in (0, 2):
        _, counts = np.unique([holds[client].tobytes() for holds in drawn], return_counts=True)
        assert len(counts) == 6
        assert counts.min() > 400, "500 on average, standard deviation 20"


def test_a_slow_form_divides_the_same():
    """One sample for each holder, the rest by largest remainders of the weights, class by class."""
    labels = np.repeat(np.arange(5), [30, 7, 12, 50, 9])
    numbers, weights = np.array([5, 2, 3, 4]), np.array([0.1, 0.5, 0.3, 0.9])
    index = class_subsets(labels, 5, numbers, weights, np.random.default_rng(3))
    table = np.array([np.bincount(labels[index[client]], minlength=5) for client in range(4)])
    assert (table > 0).sum(axis=1).tolist() == numbers.tolist()
    for c, size in enumerate([30, 7, 12, 50, 9]):
        holders = np.flatnonzero(table[:, c])
        quotas = [(size - len(holders)) * weights[k] / weights[holders].sum() for k in holders]
        wanted = [1 + int(np.floor(quota + 1e-9)) for quota in quotas]
        rest = np.argsort([-(quota - np.floor(quota + 1e-9)) for quota in quotas], kind="stable")
        for which in rest[: size - sum(wanted)]:
            wanted[which] += 1
        assert table[holders, c].tolist() == wanted


def test_it_is_a_partition_with_subsets_and_varying_sizes(dataset, check_partition):
    scheme = ClassSubsets(clients=10, min_classes=3, max_classes=6, spread=1.0)
    partition = scheme.divide(dataset, np.random.default_rng(0))
    fed = check_partition(partition, dataset, 10)
    known = (fed.label_histograms > 0).sum(axis=1)
    assert known.min() >= 3
    assert known.max() <= 6
    assert len(set(known.tolist())) > 1
    assert fed.sizes.max() > 2 * fed.sizes.min()
    again = scheme.divide(dataset, np.random.default_rng(0))
    assert again.train.samples.tolist() == partition.train.samples.tolist()


def test_without_spread_the_holders_of_a_class_share_it_equally(dataset):
    fed = ClassSubsets(clients=6, min_classes=4, max_classes=4, spread=0).divide(dataset, np.random.default_rng(2))
    table = np.array([np.bincount(dataset.train.labels[fed.train[k]], minlength=12) for k in range(6)])
    for column in table.T:
        held = column[column > 0]
        assert held.max() - held.min() <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_classes": 0}, "min_classes"),
        ({"min_classes": 5, "max_classes": 4}, "min_classes ≤ max_classes"),
        ({"max_classes": 13}, "≤ 12"),
        ({"spread": -1.0}, "partition.spread"),
        ({"spread": float("nan")}, "partition.spread"),
    ],
)
def test_mistakes(dataset, options, message):
    with pytest.raises(ConfigError, match=message):
        ClassSubsets(clients=4, **options).divide(dataset, np.random.default_rng(0))


def test_more_holders_than_samples(make_dataset):
    with pytest.raises(DataError, match="class 0 has 2 samples, but 3 clients"):
        ClassSubsets(clients=3, min_classes=2, max_classes=2).divide(
            make_dataset([0, 0, 1, 1, 1]), np.random.default_rng(0)
        )
