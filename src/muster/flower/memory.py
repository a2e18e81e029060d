"""What a client keeps between exchanges: control variates, previous models, the probed model.

It lives in Flower's `context.state`. An answer may come too late for the server to count it, its update may be
refused or left out, or the server may go back to a checkpoint: so new state is kept beside the version that it
came from and the checkpoint's, and every order says which one the server counts on. These are two versions when
clients train once between checkpoints, else three. A SuperNode that restarts has lost them: the client then starts
like a new one and says so.
"""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from muster.core.arrays import Vector
from muster.flower.wire import Order, version_of
from muster.training.context import PROBE, PROBES

_ARRAYS, _NOTES = "muster.state", "muster.notes"


class NodeMemory:
    """Named vectors in a node's context: `version/name` for an algorithm's state, `version/probe` for a probe."""

    def __init__(self, state: RecordDict, experiment: str) -> None:
        self._state = state
        notes = state.config_records.get(_NOTES)
        if notes is None or notes["experiment"] != experiment:
            state[_NOTES] = ConfigRecord({"experiment": experiment})
            state[_ARRAYS] = ArrayRecord()

    def state_for(self, order: Order, names: tuple[str, ...]) -> tuple[dict[str, Vector], bool]:
        """The state that the server counts on, and whether some of it was lost."""
        found: dict[str, Vector] = {}
        if order.state:
            found |= {name: self._get(order.state, name) for name in names if self._has(order.state, name)}
        lost = bool(names and order.state and not found)
        if order.probe and self._has(order.probe, PROBE):
            found |= {name: self._get(order.probe, name) for name in PROBES if self._has(order.probe, name)}
        elif order.probe:
            lost = True
        return found, lost

    def trained(self, order: Order, state: dict[str, Vector]) -> None:
        """Keep the new state beside those that the server may still count on; a probed model is done with."""
        before = {
            name: array
            for name, array in self._arrays.items()
            if name.startswith((f"{order.state}/", f"{order.saved}/")) and not _is_of_a_probe(name)
        }
        self._put(before, version_of(order.place), state)

    def asked(self, order: Order, probed: dict[str, Vector]) -> None:
        """Keep what a probe left until the training that may continue from it."""
        if probed:
            others = {name: array for name, array in self._arrays.items() if not _is_of_a_probe(name)}
            self._put(others, version_of(order.place), probed)

    @property
    def _arrays(self) -> ArrayRecord:
        return self._state.array_records[_ARRAYS]

    def _has(self, version: str, name: str) -> bool:
        return f"{version}/{name}" in self._arrays

    def _get(self, version: str, name: str) -> Vector:
        vector: Vector = self._arrays[f"{version}/{name}"].numpy()
        return vector

    def _put(self, kept: dict[str, Array], version: str, vectors: dict[str, Vector]) -> None:
        new = {f"{version}/{name}": Array(np.ascontiguousarray(vector)) for name, vector in vectors.items()}
        self._state[_ARRAYS] = ArrayRecord({**kept, **new})


def _is_of_a_probe(name: str) -> bool:
    return name.endswith(tuple(f"/{probe}" for probe in PROBES))
