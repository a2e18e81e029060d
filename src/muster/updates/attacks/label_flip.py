"""Label flip: attackers train on wrong labels (Tolpegin et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.data.federated import FederatedData
from muster.updates.attacks.base import DataAttack
from muster.updates.filters import filters


@filters.register("label-flip")
@dataclass(frozen=True)
class LabelFlip(DataAttack):
    """Attack: train on wrong labels: class c as class C − 1 − c, or one class as another."""

    #: The class whose label is changed; None: all of them.
    source: int | None = None
    #: Its new label; None: C − 1 − c.
    target: int | None = None

    def check(self, population: Population) -> None:
        super().check(population)
        for name in ("source", "target"):
            label = getattr(self, name)
            self.require(
                name, label is None or 0 <= label < population.classes, f"a class, 0 to {population.classes - 1}"
            )
        if self.source is not None and self.source == self.target:
            raise ConfigError(f"LabelFlip: source and target are both {self.source}", expected="two classes")

    def poisoned(self, data: FederatedData) -> FederatedData:
        theirs, _ = data.train_index.of_many(np.array(self.clients, dtype=np.int64))
        labels = data.dataset.train.labels.copy()
        if self.source is not None:
            theirs = theirs[labels[theirs] == self.source]
        labels[theirs] = data.classes - 1 - labels[theirs] if self.target is None else self.target
        return replace(data, dataset=replace(data.dataset, train=replace(data.dataset.train, labels=labels)))
