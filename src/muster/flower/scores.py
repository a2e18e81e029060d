"""From evaluations that clients made on their own test data to one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from muster.core.arrays import Floats
from muster.engine.base import Evaluation, RowSums
from muster.flower.wire import Scores
from muster.server.limits import ClientLimits
from muster.training.objectives import Classification, Objective


def believed(scores: Mapping[int, Scores], limits: ClientLimits) -> tuple[dict[int, Scores], list[str]]:
    """The evaluations as far as they count, and whose count as fewer samples, in words."""
    clients = sorted(scores)
    stated = np.array([scores[client].count for client in clients], dtype=np.int64)
    counted, events = dict(scores), []
    for client, mine, most in zip(clients, stated.tolist(), limits.counted(stated).tolist(), strict=True):
        if most < mine:
            counted[client] = scores[client].counted_as(most)
            events.append(f"client {client} states {mine:,} test samples and counts as {most:,}")
    return counted, events


def summed(
    scores: Mapping[int, Scores],
    clients: int,
    classes: int,
    attributes: int | None,
    *,
    objective: Objective = Classification(),  # noqa: B008 (frozen)
    width: int = 0,
) -> Evaluation:
    """The sums over all clients that evaluated, by client id: the order of answers does not matter.

    `width`: how many numbers a row of the objective has, where it has any.
    """
    classes = classes if objective.class_labels else 0
    confusion = np.zeros((classes, classes), dtype=np.int64)
    correct, count = np.zeros((2, clients), dtype=np.int64)
    loss: Floats = np.zeros(clients)
    group_correct, group_count = np.zeros((2, classes * (attributes or 0)), dtype=np.int64)
    for client, own in sorted(scores.items()):
        confusion += own.confusion
        correct[client], count[client] = np.trace(own.confusion), own.confusion.sum()
        loss[client] = own.loss_sum
        group_correct, group_count = group_correct + own.group_correct, group_count + own.group_count
    row_sums = None
    if width:
        rows: Floats = np.zeros((clients, width))
        groups: Floats = np.zeros((attributes or 0, width))
        for client, own in sorted(scores.items()):
            rows[client], count[client] = own.totals, round(own.totals[0])
            groups += own.group_totals.reshape(groups.shape)
        row_sums = RowSums(objective, rows.sum(axis=0), rows, groups if attributes else None)
    shape = (classes, attributes or 0)
    return Evaluation(
        confusion,
        float(loss.sum()),
        correct,
        loss,
        count,
        group_correct=group_correct.reshape(shape) if attributes and classes else None,
        group_count=group_count.reshape(shape) if attributes and classes else None,
        row_sums=row_sums,
    )
