"""From evaluations that clients made on their own test data to one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from muster.core.arrays import Floats
from muster.engine.base import Evaluation
from muster.flower.wire import Scores


def summed(scores: Mapping[int, Scores], clients: int, classes: int, attributes: int | None) -> Evaluation:
    """The sums over all clients that evaluated, by client id: the order of answers does not matter."""
    confusion = np.zeros((classes, classes), dtype=np.int64)
    correct, count = np.zeros((2, clients), dtype=np.int64)
    loss: Floats = np.zeros(clients)
    group_correct, group_count = np.zeros((2, classes * (attributes or 0)), dtype=np.int64)
    for client, own in sorted(scores.items()):
        confusion += own.confusion
        correct[client], count[client] = np.trace(own.confusion), own.confusion.sum()
        loss[client] = own.loss_sum
        group_correct, group_count = group_correct + own.group_correct, group_count + own.group_count
    shape = (classes, attributes or 0)
    return Evaluation(
        confusion,
        float(loss.sum()),
        correct,
        loss,
        count,
        group_correct=group_correct.reshape(shape) if attributes else None,
        group_count=group_count.reshape(shape) if attributes else None,
    )
