"""What a client keeps between exchanges: control variates, previous models, the probed model.

It lives in Flower's `context.state`. An answer may come too late for the server to count it, or the server may go
back to a checkpoint: so the client keeps its state in two versions, and every order says on which one the server
counts. A SuperNode that restarts has lost them: the client then starts like a new one and says so.
"""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from muster.arrays import Vector
from muster.engine.flower.wire import Order, version_of
from muster.signals.base import PROBE

_ARRAYS, _NOTES = "muster.state", "muster.notes"


class Memory:
    """Named vectors in a node's context, by version."""

    def __init__(self, state: RecordDict, experiment: str) -> None:
        self._state = state
        notes = state.config_records.get(_NOTES)
        if notes is None or notes["experiment"] != experiment:
            state[_ARRAYS] = ArrayRecord()
            state[_NOTES] = ConfigRecord({"experiment": experiment, "versions": [], "probe": ""})

    def state_for(self, order: Order, names: tuple[str, ...]) -> tuple[dict[str, Vector], bool]:
        """The state that the server counts on, and whether some of it was lost."""
        found: dict[str, Vector] = {}
        lost = False
        if names and order.state:
            lost = order.state not in self._notes["versions"]  # type: ignore[operator]
            found = {name: self._get(order.state, name) for name in names if self._has(order.state, name)}
        if order.probe:
            if self._notes["probe"] == order.probe:
                found[PROBE] = self._get("", PROBE)
            else:
                lost = True
        return found, lost

    def trained(self, order: Order, state: dict[str, Vector]) -> None:
        """Keep the new state beside the one that it came from; a probed model has had its use."""
        version = version_of(order.place)
        kept = (
            {}
            if not order.state
            else {name: self._get(order.state, name) for name in state if self._has(order.state, name)}
        )
        arrays = {f"{order.state}/{name}": vector for name, vector in kept.items()}
        arrays |= {f"{version}/{name}": vector for name, vector in state.items()}
        versions = [order.state] if kept else []
        self._put(arrays, versions + ([version] if state else []), probe="")

    def asked(self, order: Order, probed: Vector | None) -> None:
        """Keep a probed model until the training that may go on from it."""
        if probed is None:
            return
        record = self._state.array_records[_ARRAYS]
        arrays = {name: array.numpy() for name, array in record.items() if name != f"/{PROBE}"}
        self._put(arrays | {f"/{PROBE}": probed}, list(self._notes["versions"]), probe=version_of(order.place))  # type: ignore[arg-type]

    @property
    def _notes(self) -> ConfigRecord:
        return self._state.config_records[_NOTES]

    def _has(self, version: str, name: str) -> bool:
        return f"{version}/{name}" in self._state.array_records[_ARRAYS]

    def _get(self, version: str, name: str) -> Vector:
        vector: Vector = self._state.array_records[_ARRAYS][f"{version}/{name}"].numpy()
        return vector

    def _put(self, arrays: dict[str, Vector], versions: list[str], probe: str) -> None:
        self._state[_ARRAYS] = ArrayRecord({name: Array(np.ascontiguousarray(v)) for name, v in arrays.items()})
        notes = {"experiment": self._notes["experiment"], "versions": versions, "probe": probe}
        self._state[_NOTES] = ConfigRecord(notes)
