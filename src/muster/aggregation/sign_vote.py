"""Sign vote: every client has one vote per coordinate (signSGD with majority vote; Bernstein et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from muster.aggregation._blocks import cached_width, column_blocks
from muster.aggregation._robust import MedianStatistics
from muster.aggregation.base import Aggregated, StaleUse, aggregators
from muster.core.arrays import Floats, Vector
from muster.core.component import Population
from muster.core.parameters import ParameterSpec
from muster.updates.table import Updates


def majority(rows: Vector, least: int = 1) -> Floats:
    """+1, −1 or 0 for each column: the sign on which at least `least` more rows agree than disagree."""
    result = np.empty(rows.shape[1])
    for block in column_blocks(rows.shape[1], cached_width(len(rows))):
        votes = np.sign(rows[:, block]).sum(axis=0, dtype=np.float64)
        result[block] = np.where(np.abs(votes) >= least, np.sign(votes), 0.0)
    return result


@aggregators.register("sign-vote")
@dataclass
class SignVote(MedianStatistics):
    """A step of fixed length in every coordinate, in the direction of the majority."""

    #: The length of the step in every coordinate.
    server_lr: float = 0.001
    #: A coordinate moves only if the votes for exceed those against by this share of all; 0: a simple majority.
    margin: float = 0.0

    honours_multiplicity: ClassVar[bool] = False
    honours_weights: ClassVar[bool] = False
    stale: ClassVar[StaleUse | None] = "movements"

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("margin", 0 <= self.margin <= 1, "0 to 1")

    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        step = np.empty(spec.averaged.stop)
        least = max(1, int(np.ceil(self.margin * len(updates) - 1e-9)))
        step[spec.trainable] = majority(updates.movements[:, spec.trainable], least)
        return self.moved(current, step, spec, updates, np.full(len(updates), 1 / len(updates)))
