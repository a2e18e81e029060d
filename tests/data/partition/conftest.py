"""Small data sets with known labels, and the checks that every partition must pass."""

from collections.abc import Callable

import numpy as np
import pytest

from muster.data.federated import Dataset, FederatedData, Index, Samples
from muster.data.partition import Partition


def samples(labels, attributes=None, owners=None) -> Samples:
    labels = np.asarray(labels, dtype=np.int64)
    return Samples(
        np.zeros((len(labels), 1), dtype=np.uint8),
        labels,
        None if attributes is None else np.asarray(attributes, dtype=np.int64),
        None if owners is None else np.asarray(owners, dtype=np.int64),
    )


@pytest.fixture(scope="session")
def make_dataset() -> Callable[..., Dataset]:
    def make(
        train, test=(), classes=None, *, attributes=(None, None), owners=(None, None), values=None
    ) -> Dataset:
        return Dataset(
            "made",
            samples(train, attributes[0], owners[0]),
            samples(test, attributes[1], owners[1]),
            classes=classes or int(np.max(train)) + 1,
            attribute_values=values,
        )

    return make


def no_sample_twice(index: Index, total: int) -> None:
    assert index.starts[0] == 0
    assert index.starts[-1] == len(index.samples)
    assert (index.sizes >= 0).all()
    assert len(np.unique(index.samples)) == len(index.samples)
    assert ((index.samples >= 0) & (index.samples < total)).all()


@pytest.fixture(scope="session")
def check_partition() -> Callable[..., FederatedData]:
    """No index twice, every client has training samples, and (unless said otherwise) every sample a client."""

    def check(partition: Partition, dataset: Dataset, clients: int, *, complete: bool = True) -> FederatedData:
        no_sample_twice(partition.train, len(dataset.train))
        assert partition.train.clients == clients
        assert (partition.train.sizes > 0).all()
        if complete:
            assert len(partition.train.samples) == len(dataset.train)
        if partition.test is not None:
            no_sample_twice(partition.test, len(dataset.test))
            assert partition.test.clients == clients
        return FederatedData(dataset, partition.train, partition.test)

    return check


@pytest.fixture(scope="session")
def check_matching_test() -> Callable[..., None]:
    """Every client's share of a class's test samples is its share of the training samples, rounded up or down."""

    def check(fed: FederatedData) -> None:
        dataset = fed.dataset
        train_counts = fed.label_histograms
        labels = dataset.test.labels[fed.test_index.samples]
        test_counts = np.zeros_like(train_counts)
        np.add.at(test_counts, (fed.test_index.owners, labels), 1)
        available = np.bincount(dataset.train.labels, minlength=dataset.classes)
        pool = np.bincount(dataset.test.labels, minlength=dataset.classes)
        quota = train_counts * pool / np.maximum(available, 1)
        assert (np.abs(test_counts - quota) < 1 + 1e-9).all()

    return check
