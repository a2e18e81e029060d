"""SimProx: weights from pairwise similarity and from how far clients moved (El-Niss et al., 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import ClassVar, Literal

import numpy as np
from scipy.special import softmax

from muster.aggregation._blocks import norms
from muster.aggregation._gram import InnerProducts, Shifts, inner_products, sketched_inner_products
from muster.aggregation.base import Aggregated, DiscountingAggregator, StaleUse, aggregators
from muster.aggregation.staleness import Discount
from muster.core.arrays import Floats, Ints, State, Vector
from muster.core.component import Population
from muster.core.parameters import ParameterSpec
from muster.updates.clientstate import ClientStore
from muster.updates.table import Updates, normalised

#: How raw weights become aggregation weights: normalised and then softmax, as the paper says, or only normalised.
Post = Literal["softmax", "normalise"]

_LAST = "last_model"


def weights(  # noqa: PLR0917  the documented order
    models: Vector | Floats,
    global_model: Vector | Floats,
    previous: Vector | Floats | None = None,
    lam: float = 0.7,
    threshold: float = 0.9,
    temperature: float = 1.0,
    post: Post = "softmax",
) -> Floats:
    """The weight of each client's model.

    `models` has one row per client, `global_model` is what they started from, `previous` (a row per client, or one
    for all) is what the change of a client is measured from; by default the global model.
    """
    base = np.asarray(global_model, dtype=np.float64)
    movements = np.asarray(models, dtype=np.float64) - base
    change = movements if previous is None else movements + (base - np.asarray(previous, dtype=np.float64))
    inner = InnerProducts(movements @ movements.T, movements @ base, float(base @ base))
    lengths = np.linalg.norm(change, axis=1)
    return weights_from(inner, lengths, lam=lam, threshold=threshold, temperature=temperature, post=post)


def weights_from(
    inner: InnerProducts,
    change: Floats,
    *,
    lam: float = 0.7,
    threshold: float = 0.9,
    temperature: float = 1.0,
    post: Post = "softmax",
) -> Floats:
    """The weights from inner products of movements and global model, and the length of each client's change."""
    clients = len(change)
    if clients == 1:
        return np.ones(1)
    similarity = similarities(inner, lam, threshold)
    np.fill_diagonal(similarity, 0.0)
    closeness = 1 + similarity.sum(axis=1) / (clients - 1)
    # Only ratios survive the normalisation, so the shift is free; without it long changes underflow to 0/0.
    raw = np.exp(-(change - change.min())) * np.maximum(closeness, 0.0)
    # No model resembles another (λ = 1, opposite models): then all count the same.
    shares = normalised(raw) if raw.any() else np.full(clients, 1 / clients)
    if post == "normalise":
        return shares
    result: Floats = softmax(shares / temperature)
    return result


def similarities(inner: InnerProducts, lam: float = 0.7, threshold: float = 0.9) -> Floats:
    """λ · cosine + (1 − λ) · Gaussian similarity of every pair of models; λ falls when clients disagree."""
    cosine, to_global = cosines_of_updates(inner)
    mean = float(to_global.mean())
    if mean < threshold:
        lam *= max(mean, 0.0) / threshold
    return lam * cosine + (1 - lam) * gaussian(inner.squared_distances)


def gaussian(squared: Floats) -> Floats:
    """exp(−d²/2σ²) with σ the mean distance over all pairs; 1 when all models are the same."""
    sigma = np.sqrt(squared)[np.triu_indices(len(squared), k=1)].mean()
    return np.ones_like(squared) if sigma == 0 else np.exp(-0.5 * (squared / sigma) / sigma)


def cosines_of_updates(inner: InnerProducts) -> tuple[Floats, Floats]:
    """Cosines between the models w + Δ_i, and between each and w; 0 where a norm is zero."""
    along = inner.products + inner.reference
    between = inner.gram + np.add.outer(inner.products, along)
    lengths = np.sqrt(np.maximum(np.diagonal(between), 0.0))
    reference = np.sqrt(inner.reference)
    return _quotient(between, np.outer(lengths, lengths)), _quotient(along, lengths * reference)


def _quotient(numerator: Floats, denominator: Floats) -> Floats:
    safe = np.where(denominator > 0, denominator, 1.0)
    return np.where(denominator > 0, np.clip(numerator / safe, -1.0, 1.0), 0.0)


@dataclass(frozen=True)
class Received:
    """The models that clients started from: the current one, or older versions of it."""

    current: Vector
    shifts: Shifts | None

    def model(self, row: int) -> Vector:
        if self.shifts is None or self.shifts.which[row] < 0:
            return self.current
        model: Vector = self.current + self.shifts.vectors[self.shifts.which[row]]
        return model


@aggregators.register("simprox")
@dataclass
class SimProx(DiscountingAggregator):
    """Clients whose models resemble the others' and that moved little count more.

    Neither sample counts nor running statistics play a role: the latter are averaged with the weights that the
    trainable parameters give. The softmax at the end bounds the ratio of two weights by e^(1/temperature).

    On a buffer of answers to models of several versions, similarities are between the models that clients sent;
    the weights that the softmax gives are then discounted by staleness, and what is averaged are movements, as
    always.
    """

    #: Share of the cosine in the similarity when clients agree (λ₀).
    lam: float = 0.7
    #: Mean cosine to the global model below which that share shrinks.
    threshold: float = 0.9
    #: What a client's change is measured from: the global model it received, or its last model that entered an
    #: aggregation (the received one, the first time).
    prev: Literal["received", "own_last"] = "received"
    #: Divides the shares before the softmax: below 1 the weights differ more.
    temperature: float = 1.0
    post: Post = "softmax"
    #: Similarities from random projections to this many numbers, for large cohorts; None: exact.
    sketch: int | None = None
    #: Memory for the clients' last models with prev = "own_last", before they go to disk.
    memory_limit_mb: int = 1024
    staleness: Discount = "polynomial"

    honours_weights: ClassVar[bool] = False
    stale: ClassVar[StaleUse | None] = "models"

    _last: ClientStore = dataclass_field(init=False, repr=False, compare=False, default_factory=ClientStore)

    def __post_init__(self) -> None:
        self._last.memory_limit = self.memory_limit_mb * 2**20

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("lam", 0 <= self.lam <= 1, "0 to 1")
        self.require("threshold", 0 < self.threshold <= 1, "above 0, at most 1")
        self.require("temperature", self.temperature > 0, "a positive number")
        self.require("sketch", self.sketch is None or self.sketch >= 1, "at least 1")
        self.require("memory_limit_mb", self.memory_limit_mb >= 0, "zero or a positive number")

    def cautions(self, population: Population) -> list[str]:
        if self.lam == 0:
            return ["simprox makes no use of directions here: with lam = 0 only distances between models count"]
        return super().cautions(population)

    def aggregate(self, current: Vector, updates: Updates, spec: ParameterSpec) -> Aggregated:
        movements, base = updates.movements[:, spec.trainable], current[spec.trainable]
        shifts = Shifts(*updates.drift_rows(spec.trainable)) if updates.staleness.any() else None
        if self.sketch is None:
            inner = inner_products(movements, base, shifts)
        else:
            inner = sketched_inner_products(movements, base, self.sketch, shifts)
        received = Received(base, shifts)
        shares = weights_from(
            inner,
            self._changes(received, updates, movements, inner),
            lam=self.lam,
            threshold=self.threshold,
            temperature=self.temperature,
            post=self.post,
        )
        discounted = updates.multiplicity * shares * self.discount(updates)
        result = self.averaged(current, updates, normalised(discounted), spec)
        if self.prev == "own_last":
            self._remember(received, updates.clients, movements, result.weights)
        return result

    def _changes(self, received: Received, updates: Updates, movements: Vector, inner: InnerProducts) -> Floats:
        if self.prev == "received":
            # exp(−change) has no use for an estimate: a sketch is for similarities only.
            return np.sqrt(inner.squared_lengths) if self.sketch is None else norms(movements)
        lengths = np.empty(len(updates))
        for row, client in enumerate(updates.clients.tolist()):
            start = received.model(row)
            last = self._last.get(_LAST, client)
            change = (start + movements[row]) - (start if last is None else last)
            lengths[row] = norms(change[None])[0]
        return lengths

    def _remember(self, received: Received, clients: Ints, movements: Vector, weights: Floats) -> None:
        """Keep the models that are part of the result; what was not used is forgotten."""
        for row, client in enumerate(clients.tolist()):
            if weights[row] > 0:
                self._last.put(_LAST, client, received.model(row) + movements[row])

    def state_dict(self) -> State:
        return {"last_models": self._last.state_dict()}

    def load_state_dict(self, values: State) -> None:
        self._last.load_state_dict(values["last_models"])
