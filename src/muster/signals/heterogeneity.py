"""What a client discloses about classes and attributes: its table of counts, or only three numbers about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from torch import nn

from muster.core.arrays import Floats, Ints
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.core.parameters import FlatModel
from muster.heterogeneity.estimate import EstimateRecipe, Estimator, counts_by, with_two_outputs_of
from muster.heterogeneity.metrics import triplet
from muster.signals.base import COUNT, Range, Sensitivity, Signal, signals
from muster.training.context import ClientContext

if TYPE_CHECKING:
    from muster.data.federated import FederatedData

_NO_ATTRIBUTES = "the data set has no attributes"


def _without_linear_end(population: Population) -> str | None:
    if not population.spec.final_layer_name or len(population.spec.final_weight.shape) != 2:
        return "the model does not end in a linear classification layer"
    return None


def _counts(client: ClientContext) -> Ints:
    if client.attributes is None or client.attribute_values is None:
        raise ConfigError(f"client {client.client} cannot count attributes: {_NO_ATTRIBUTES}")
    cells = client.labels.cpu().numpy() * client.attribute_values + client.attributes
    flat = np.bincount(cells, minlength=client.classes * client.attribute_values)
    return flat.reshape(client.classes, client.attribute_values)


@signals.register("interaction_matrix")
@dataclass(frozen=True)
class InteractionMatrix(Signal):
    """How many local samples each pair of class and attribute has, class by class."""

    name: ClassVar[str] = "interaction_matrix"
    discloses: ClassVar[str] = "how many samples of each class and attribute the client has"
    draws: ClassVar[bool] = False
    of_data: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = True

    def width(self, population: Population) -> int:
        return population.classes * (population.attributes or 0)

    def unavailable(self, population: Population) -> str | None:
        return _NO_ATTRIBUTES if population.attributes is None else None

    def sensitivity(self, classes: int) -> Sensitivity:
        return Sensitivity.of_counts()

    def allowed(self, population: Population) -> Range:
        return COUNT

    def measure(self, client: ClientContext) -> Floats:
        return _counts(client).astype(np.float64).ravel()

    def measure_all(self, data: FederatedData, clients: Ints) -> Floats:
        return data.counts(clients, by_attribute=True).reshape(len(clients), -1).astype(np.float64)


@signals.register("heterogeneity_triplet")
@dataclass(frozen=True)
class HeterogeneityTriplet(Signal):
    """Class imbalance, attribute imbalance and spurious correlation of the local data: three numbers.

    "estimated": attributes are not known, and are guessed with a biased model that starts from the global one
    (which stays as it is). "true": from known attributes, for comparison.
    """

    name: ClassVar[str] = "heterogeneity_triplet"
    needs_classes: ClassVar[bool] = True
    discloses: ClassVar[str] = (
        "how uneven classes and attributes are, and how much they go together (three numbers)"
    )

    estimate: Literal["estimated", "true"] = "estimated"
    #: When no class splits into two groups: "single" counts one attribute only, "skip" leaves attributes out.
    degenerate: Literal["single", "skip"] = "skip"
    recipe: EstimateRecipe = field(default_factory=EstimateRecipe)
    #: How many biased models a client trains, for the accounting: 1 for two classes, else one for each class.
    models: int = 1

    @property
    def uses_model(self) -> bool:  # type: ignore[override]
        return self.estimate == "estimated"

    def width(self, population: Population) -> int:
        return 3

    def samples(self, size: int, batch_size: int) -> int:
        if self.estimate == "true":
            return 0
        return self.models * (self.recipe.biased_steps * self.recipe.batch_size + size)

    def unavailable(self, population: Population) -> str | None:
        if self.estimate == "true":
            return _NO_ATTRIBUTES if population.attributes is None else None
        return _without_linear_end(population)

    def sensitivity(self, classes: int) -> Sensitivity:
        # The estimate goes through two trained models: no smaller bound than the range is known.
        return Sensitivity.of_range(3, 1.0)

    def allowed(self, population: Population) -> Range:
        return Range(0.0, 1.0)

    def measure(self, client: ClientContext) -> Floats:
        if self.estimate == "true":
            return triplet(_counts(client))
        with _estimator(client, self.recipe) as estimator:
            matrix = None if estimator is None else estimator.matrix(client.features, client.labels)
        if matrix is not None:
            return triplet(matrix)
        known = np.bincount(client.labels.cpu().numpy(), minlength=client.classes)
        alone = 1.0 if self.degenerate == "single" else 0.0
        return np.array([triplet(known[:, None])[0], alone, 0.0])


@signals.register("biased_model")
@dataclass(frozen=True)
class BiasedModel(Signal):
    """The model behind a client's estimated triplet, as a flat vector: its first two outputs are the two groups.

    Asked in the same round and for the same recipe as the triplet, it is exactly the model of that estimate. NaN
    where no class splits into two groups.
    """

    name: ClassVar[str] = "biased_model"
    needs_classes: ClassVar[bool] = True
    discloses: ClassVar[str] = "a copy of the model fitted to the client's own data: as much as a model update"
    uses_model: ClassVar[bool] = True
    reveals_update: ClassVar[bool] = True

    recipe: EstimateRecipe = field(default_factory=EstimateRecipe)
    #: As for the triplet.
    models: int = 1

    def width(self, population: Population) -> int:
        return population.spec.size

    def samples(self, size: int, batch_size: int) -> int:
        return HeterogeneityTriplet(recipe=self.recipe, models=self.models).samples(size, batch_size)

    def unavailable(self, population: Population) -> str | None:
        return _without_linear_end(population)

    def allowed(self, population: Population) -> Range:
        return Range(may_be_missing=True)

    def measure(self, client: ClientContext) -> Floats:
        with _estimator(client, self.recipe) as estimator:
            pivot = None if estimator is None else estimator.pivot(client.features, client.labels)
        if estimator is None or pivot is None:
            return np.full(client.spec.size, np.nan)
        model = with_two_outputs_of(pivot.model, client.model.module, estimator.final_layer)
        return FlatModel(model, client.model.device).vector().astype(np.float64)


@signals.register("shared_triplet")
@dataclass(frozen=True)
class SharedTriplet(Signal):
    """The heterogeneity triplet, with attributes derived from the model that comes with the question."""

    name: ClassVar[str] = "shared_triplet"
    needs_classes: ClassVar[bool] = True
    discloses: ClassVar[str] = HeterogeneityTriplet.discloses
    uses_model: ClassVar[bool] = True
    draws: ClassVar[bool] = False

    def width(self, population: Population) -> int:
        return 3

    def unavailable(self, population: Population) -> str | None:
        return None if population.classes > 1 else "the data set has a single class"

    def sensitivity(self, classes: int) -> Sensitivity:
        return Sensitivity.of_range(3, 1.0)

    def allowed(self, population: Population) -> Range:
        return Range(0.0, 1.0)

    def measure(self, client: ClientContext) -> Floats:
        return triplet(counts_by(client.model.module, client.features, client.labels, client.classes))


@contextmanager
def _estimator(client: ClientContext, recipe: EstimateRecipe) -> Iterator[Estimator | None]:
    """The estimator of a client; None where a single class leaves nothing to estimate.

    It draws from a stream that depends on the round and the client, but not on the question: the biased model can
    be asked for after the triplet that it led to.
    """
    if client.classes < 2:
        yield None
        return
    module, layer = client.model.module, client.spec.final_layer_name
    if not isinstance(module.get_submodule(layer), nn.Linear):
        raise ConfigError("the heterogeneity estimate needs a model that ends in nn.Linear")
    device = client.model.device
    rng = np.random.default_rng(client.training_rng().integers(2**63))
    # Dropout draws from PyTorch's global generator: seed it from the client's own and put it back afterwards.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int(rng.integers(2**62)))
        yield Estimator(module, layer, client.classes, recipe, rng)
