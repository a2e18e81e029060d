"""The updates of one training: from answers in any order to movements in the order of the request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np

from muster.core.arrays import Ints, Vector
from muster.core.parameters import ParameterSpec
from muster.engine.base import TrainOrder

T = TypeVar("T")


def in_order(clients: Ints, answers: Iterator[tuple[int, T]]) -> Iterator[tuple[int, T]]:
    """Answers as they arrive, handed on in the order of `clients`: sums must not depend on who was quicker."""
    waiting: dict[int, T] = {}
    for client in clients.tolist():
        while client not in waiting:
            other, answer = next(answers)
            waiting[other] = answer
        yield client, waiting.pop(client)


class CohortMovements:
    """Movements of the clients of one training; all of them stay when the aggregator wants the matrix."""

    def __init__(self, order: TrainOrder, spec: ParameterSpec) -> None:
        self._origin, self._spec, self._keep = order.parameters, spec, order.keep_all
        self._clients = np.sort(order.clients)
        rows = len(self._clients) if self._keep else 0
        self._rows: Vector = np.empty((rows, spec.size), dtype=np.float32)

    def movement(self, client: int, trained: Vector) -> Vector:
        """How far the trained model (overwritten) is from where the client started; counters stay as they are."""
        averaged = self._spec.averaged
        with np.errstate(invalid="ignore", over="ignore"):  # the guard judges what is not finite
            trained[averaged] -= self._origin[averaged]
        if not self._keep:
            return trained
        row: Vector = self._rows[np.searchsorted(self._clients, client)]
        row[:] = trained
        return row

    def matrix(self, clients: Ints) -> Vector:
        """The movements of `clients` (ascending) as rows; others may be overwritten."""
        for row, slot in enumerate(np.searchsorted(self._clients, clients)):
            if row != slot:
                self._rows[row] = self._rows[slot]
        return self._rows[: len(clients)]
