"""Stale reply: a client that trains once and sends the same update from then on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from muster.core.arrays import State, Vector
from muster.core.parameters import ParameterSpec
from muster.updates.attacks.base import Attack
from muster.updates.filters import Draws, Filtered, Side, filters
from muster.updates.table import Updates


@filters.register("stale-reply")
@dataclass(frozen=True)
class StaleReply(Attack):
    """Attack: train once, and send that update again whenever one is asked for.

    Simulated on the server, which keeps what each lazy client sent first. Running statistics are those of its
    present training: repeating their movement would take them out of their range.
    """

    side: Side = field(default="server", init=False)

    whole: ClassVar[bool] = True

    _first: dict[int, Vector] = field(default_factory=dict, init=False, repr=False, compare=False)

    def apply(self, updates: Updates, spec: ParameterSpec, draws: Draws) -> Filtered:
        changed = 0
        for row in self.attackers(updates):
            client, movement = int(updates.clients[row]), updates.movements[row]
            if client in self._first:
                movement[spec.trainable] = self._first[client]
                changed += 1
            else:
                self._first[client] = movement[spec.trainable].copy()
        return Filtered(updates, changed=changed)

    def state_dict(self) -> State:
        clients = sorted(self._first)
        return {
            "clients": np.array(clients, dtype=np.int64),
            "movements": [self._first[client] for client in clients],
        }

    def load_state_dict(self, values: State) -> None:
        self._first.clear()
        self._first.update(zip(values["clients"].tolist(), values["movements"], strict=True))
