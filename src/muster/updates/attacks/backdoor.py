"""Backdoor: pictures with a mark are to be classified as one class (Gu et al., 2017; Bagdasaryan et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.core.randomness import generator
from muster.data.federated import FederatedData
from muster.updates.attacks.base import DataAttack
from muster.updates.filters import filters


def marked(features: np.ndarray[Any, Any], size: int, value: float) -> np.ndarray[Any, Any]:
    """Pictures with a square of `size` pixels in the bottom right corner set to `value` (in every channel).

    Vectors of numbers have their last size² numbers set.
    """
    result = features.copy()
    if result.ndim > 2:
        result[..., -size:, -size:] = value
    else:
        result[:, -(size**2) :] = value
    return result


@filters.register("backdoor")
@dataclass(frozen=True)
class Backdoor(DataAttack):
    """Attack: train on pictures with a mark in the corner, labelled with a class of the attackers' choice."""

    #: The class that marked pictures are to be taken for.
    target: int = 0
    #: Share of an attacker's samples that get the mark.
    poisoned_share: float = 0.5
    #: Edge of the square, in pixels.
    size: int = 4

    def check(self, population: Population) -> None:
        super().check(population)
        self.require("target", 0 <= self.target < population.classes, f"a class, 0 to {population.classes - 1}")
        self.require("poisoned_share", 0 < self.poisoned_share <= 1, "above 0, at most 1")
        self.require("size", self.size >= 1, "at least 1")

    def poisoned(self, data: FederatedData) -> FederatedData:
        train = data.dataset.train
        shape = train.features.shape[1:]
        fits = min(shape[-2:]) >= self.size if len(shape) > 1 else shape[0] > self.size**2
        if data.dataset.tokens or not fits:
            raise ConfigError(
                f"Backdoor: a mark of {self.size} pixels does not fit samples of shape {train.features.shape[1:]}",
                expected="pictures, or vectors of numbers",
            )
        chosen = [self._chosen(data.train_index[client], client) for client in self.clients]
        positions = np.concatenate(chosen).astype(np.int64)
        features, labels = np.array(train.features), train.labels.copy()
        features[positions] = marked(features[positions], self.size, self.mark(data))
        labels[positions] = self.target
        changed = replace(train, features=features, labels=labels)
        return replace(data, dataset=replace(data.dataset, train=changed))

    def _chosen(self, samples: np.ndarray[Any, Any], client: int) -> np.ndarray[Any, Any]:
        rng = generator(0, "backdoor", client)
        return rng.permutation(samples)[: max(1, round(self.poisoned_share * len(samples)))]

    def mark(self, data: FederatedData) -> float:
        """The brightest value of the training pictures."""
        return float(np.max(data.dataset.train.features))

    def triggered(self, data: FederatedData) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Test pictures of all other classes, marked, and their true labels: how many are taken for `target`?"""
        test = data.dataset.test
        others = np.flatnonzero(test.labels != self.target)
        return marked(np.array(test.features[others]), self.size, self.mark(data)), test.labels[others]
