"""FedBuff: buffered asynchronous aggregation (Nguyen et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from muster.aggregation.base import Aggregated, aggregators, running_sum
from muster.aggregation.fedavg import FedAvg
from muster.aggregation.staleness import Discount
from muster.core.arrays import Floats, Vector
from muster.core.component import Population
from muster.core.parameters import ParameterSpec
from muster.updates.table import Updates, total_of


@aggregators.register("fedbuff")
@dataclass
class FedBuff(FedAvg):
    """Mean of the movements in the buffer, each discounted by the aggregations that it has missed.

    With `norm = "count"`, as in the paper, the sum of the discounted movements is divided by their number: a
    buffer of old answers makes a short step. With `"weights"` it is divided by the sum of the discounts, and old
    answers only lose against younger ones.
    """

    weights: Literal["samples", "equal"] = "equal"
    norm: Literal["count", "weights"] = "count"
    staleness: Discount = "polynomial"

    def cautions(self, population: Population) -> list[str]:
        if population.late_answers is False:
            return [f"{aggregators.name_of(self)} is {self._without_age} here: no answer is ever late in this run"]
        return super().cautions(population)

    @property
    def _without_age(self) -> str:
        return "fedavg" if self.weights == "samples" else "fedavg with equal weights"

    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        # How short the step is follows from the answers' age, not from a cap on single weights.
        weights = self.undiscounted(updates)
        self._shortened = float((weights * self.discount(updates)).sum()) / total_of(weights)
        return super().aggregate(current, updates, spec)

    def begin(self, current: Vector, spec: ParameterSpec) -> None:
        super().begin(current, spec)
        self._discounted = self._full = 0.0

    def noted(self, updates: Updates, weights: Floats, coefficients: Floats) -> None:
        self._discounted = running_sum(self._discounted, weights)
        self._full = running_sum(self._full, self.undiscounted(updates))

    def step(self, mean: Floats) -> Floats:
        if self.norm == "count":
            # The mean is divided by the sum of the discounted weights; this is the quotient of both sums.
            mean *= self._discounted / self._full if self.max_weight is None else self._shortened
        return mean
