"""What a client discloses about its labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.stats import entropy

from muster.core.arrays import Floats, Ints
from muster.core.component import Population
from muster.signals.base import COUNT, Range, Sensitivity, Signal, signals
from muster.training.context import ClientContext

if TYPE_CHECKING:
    from muster.data.federated import FederatedData


def label_entropies(histograms: Floats) -> Floats:
    """clients × classes → clients × 1, in nats."""
    return np.asarray(entropy(histograms, axis=1))[:, None]


def _histogram(client: ClientContext) -> Floats:
    counts = np.bincount(client.labels.cpu().numpy(), minlength=client.classes)
    return counts.astype(np.float64)


@signals.register("label_histogram")
@dataclass(frozen=True)
class LabelHistogram(Signal):
    """How many local samples each class has."""

    name: ClassVar[str] = "label_histogram"
    discloses: ClassVar[str] = "how many samples of each class the client has"
    reportable: ClassVar[bool] = True
    draws: ClassVar[bool] = False
    of_data: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True

    def width(self, population: Population) -> int:
        return population.classes

    def sensitivity(self, classes: int) -> Sensitivity:
        return Sensitivity.of_counts()

    def allowed(self, population: Population) -> Range:
        return COUNT

    def measure(self, client: ClientContext) -> Floats:
        return _histogram(client)

    def measure_all(self, data: FederatedData, clients: Ints) -> Floats:
        return data.counts(clients).astype(np.float64)


@signals.register("label_entropy")
@dataclass(frozen=True)
class LabelEntropy(Signal):
    """Entropy of the local label distribution, in nats."""

    name: ClassVar[str] = "label_entropy"
    discloses: ClassVar[str] = "how evenly the client's samples spread over the classes (one number)"
    reportable: ClassVar[bool] = True
    draws: ClassVar[bool] = False
    of_data: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True

    def sensitivity(self, classes: int) -> Sensitivity:
        return Sensitivity.of_range(1, float(np.log(classes)))

    def allowed(self, population: Population) -> Range:
        return Range(0.0, float(np.log(population.classes)))

    def measure(self, client: ClientContext) -> Floats:
        return label_entropies(_histogram(client)[None]).ravel()

    def measure_all(self, data: FederatedData, clients: Ints) -> Floats:
        return label_entropies(data.counts(clients).astype(np.float64))
