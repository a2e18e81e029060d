"""From predictions on the test set to the sums that metrics are made of."""

from __future__ import annotations

import numpy as np

from muster.core.arrays import Floats, Ints
from muster.data.federated import FederatedData
from muster.engine.base import Evaluation, HeldBack


def summarise_validation(labels: Ints, predicted: Ints, losses: Floats) -> HeldBack:
    """Sums over the samples that are kept back."""
    return HeldBack(int((predicted == labels).sum()), float(losses.sum()), len(labels))


def summarise(data: FederatedData, predicted: Ints, losses: Floats) -> Evaluation:
    """Everything that metrics need, from one pass over the test set: globally, by client, by group."""
    test, classes = data.dataset.test, data.classes
    correct = predicted == test.labels
    confusion = np.bincount(test.labels * classes + predicted, minlength=classes * classes)
    # Empty where clients have no test data of their own: arrays of zeros for a million of them take their time.
    client_correct, client_count = np.zeros((2, 0), dtype=np.int64)
    client_loss_sum: Floats = np.zeros(0)
    if (index := data.test_index) is not None:
        # Test data may have more clients than training data: centralised training pools the latter.
        owners = len(index.sizes)
        client_correct = np.bincount(index.owners[correct[index.samples]], minlength=owners)
        sums = np.bincount(index.owners, weights=losses[index.samples], minlength=owners)
        client_loss_sum = sums.astype(np.float64)
        client_count = index.sizes
    group_correct = group_count = None
    if test.attributes is not None and data.dataset.attribute_values is not None:
        shape = (classes, data.dataset.attribute_values)
        cells = test.labels * shape[1] + test.attributes
        group_count = np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)
        group_correct = np.bincount(cells[correct], minlength=shape[0] * shape[1]).reshape(shape)
    return Evaluation(
        confusion=confusion.reshape(classes, classes),
        loss_sum=float(losses.sum()),
        client_correct=client_correct,
        client_loss_sum=client_loss_sum,
        client_count=client_count,
        group_correct=group_correct,
        group_count=group_count,
    )
