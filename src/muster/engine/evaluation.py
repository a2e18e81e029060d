"""From predictions on the test set to the sums that metrics are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from muster.core.arrays import Floats, Ints
from muster.data.federated import FederatedData, Index
from muster.engine.base import Evaluation, HeldBack, RowSums
from muster.training.objectives import Classification, Objective


@dataclass(frozen=True)
class Predictions:
    """What the global model says about some samples."""

    losses: Floats
    #: Predicted classes; None: samples have none.
    classes: Ints | None = None
    #: samples × numbers (`Objective.rows`); None: predicted classes say it all.
    rows: Floats | None = None

    @classmethod
    def concatenated(cls, parts: Sequence[Predictions]) -> Predictions:
        return cls(
            losses=np.concatenate([part.losses for part in parts]),
            classes=_joined([part.classes for part in parts]),
            rows=_joined([part.rows for part in parts]),
        )


def classes_suffice(objective: Objective) -> bool:
    """Whether predicted classes say all that is measured."""
    return objective.class_labels and not objective.metrics and type(objective) is Classification


def summarise_validation(labels: Ints, predicted: Predictions) -> HeldBack:
    """Sums over the samples that are held out."""
    correct = 0 if predicted.classes is None else int((predicted.classes == labels).sum())
    total = None if predicted.rows is None else predicted.rows.sum(axis=0)
    return HeldBack(correct, float(predicted.losses.sum()), len(labels), total)


def summarise(
    data: FederatedData,
    predicted: Predictions,
    objective: Objective = Classification(),  # noqa: B008 (frozen)
) -> Evaluation:
    """Everything that metrics need, from one pass over the test set: globally, by client, by group."""
    row_sums = None if predicted.rows is None else _row_sums_of(data, predicted.rows, objective)
    if predicted.classes is None:
        return _without_classes(data, predicted.losses, row_sums)
    test, classes, losses = data.dataset.test, data.classes, predicted.losses
    correct = predicted.classes == test.labels
    confusion = np.bincount(test.labels * classes + predicted.classes, minlength=classes * classes)
    # Empty where clients have no test data: arrays of zeros for a million of them take time.
    client_correct, client_count = np.zeros((2, 0), dtype=np.int64)
    client_loss_sum: Floats = np.zeros(0)
    if (index := data.test_index) is not None:
        # Test data may have more clients than training data: centralised training pools the latter.
        owners = len(index.sizes)
        client_correct = np.bincount(index.owners[correct[index.samples]], minlength=owners)
        client_loss_sum = _sums_by_client(index, losses)
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
        row_sums=row_sums,
    )


def _without_classes(data: FederatedData, losses: Floats, row_sums: RowSums | None) -> Evaluation:
    empty, index = np.zeros(0, dtype=np.int64), data.test_index
    return Evaluation(
        confusion=empty.reshape(0, 0),
        loss_sum=float(losses.sum()),
        client_correct=empty if index is None else np.zeros(len(index.sizes), dtype=np.int64),
        client_loss_sum=np.zeros(0) if index is None else _sums_by_client(index, losses),
        client_count=empty if index is None else index.sizes,
        row_sums=row_sums,
    )


def _row_sums_of(data: FederatedData, rows: Floats, objective: Objective) -> RowSums:
    clients: Floats = np.zeros((0, rows.shape[1]))
    if (index := data.test_index) is not None:
        clients = np.stack([_sums_by_client(index, column) for column in rows.T], axis=1)
    groups, values = None, data.dataset.attribute_values
    attributes = data.dataset.test.attributes
    if attributes is not None and values is not None:
        cells = [np.bincount(attributes, weights=column, minlength=values) for column in rows.T]
        groups = np.stack(cells, axis=1).astype(np.float64)
    return RowSums(objective, rows.sum(axis=0), clients, groups)


def _sums_by_client(index: Index, values: Floats) -> Floats:
    sums = np.bincount(index.owners, weights=values[index.samples], minlength=len(index.sizes))
    return sums.astype(np.float64)


def _joined(parts: Sequence[np.ndarray[Any, Any] | None]) -> np.ndarray[Any, Any] | None:
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if known else None
