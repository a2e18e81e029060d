"""A client's own estimate of its table of counts, class × hidden attribute (Németh et al., 2025).

A model that is trained briefly, with a loss for easy patterns, relies on the attribute that is correlated with the
class. What it gets right is taken for the majority group of a class, what it gets wrong for the minority group.
One class (the pivot) teaches a linear classifier to tell the two apart, and that classifier labels the other
classes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import nn

from muster.core.arrays import Bools, Ints
from muster.core.parameters import in_training

Loss: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

#: Samples that run through a model at once when nothing is trained.
_EVALUATION_BATCH = 512


@dataclass(frozen=True)
class EstimateRecipe:
    """How a client trains the two models of the estimate."""

    biased_steps: int = 50
    attribute_steps: int = 10
    #: Exponent of the generalised cross entropy: towards 0 cross entropy, 1 mean absolute error.
    q: float = 0.3
    lr: float = 1e-3
    momentum: float = 0.9
    batch_size: int = 28
    #: Where the biased model's classification layer comes from: the global model, or freshly drawn.
    head: Literal["global", "fresh"] = "global"


@dataclass(frozen=True)
class Grouping:
    """What a biased model makes of one class."""

    label: int
    #: For each sample of the class, whether the model recognises it.
    correct: Bools
    #: The model's penultimate features of all samples, of every class.
    embedded: torch.Tensor
    #: The model itself. Its first two outputs stand for the two groups.
    model: nn.Module

    @property
    def majority(self) -> int:
        return int(self.correct.sum())

    @property
    def minority(self) -> int:
        return len(self.correct) - self.majority

    @property
    def rank(self) -> tuple[int, int, int]:
        """Pivots are those with the smallest gap; then larger classes, then lower labels."""
        return abs(self.majority - self.minority), -len(self.correct), self.label


@dataclass(frozen=True)
class Estimator:
    """Estimates one client's table of counts. The model that it starts from is not changed."""

    module: nn.Module
    #: Name of the model's classification layer, an nn.Linear.
    final_layer: str
    classes: int
    recipe: EstimateRecipe
    rng: np.random.Generator

    def matrix(self, features: torch.Tensor, labels: torch.Tensor) -> Ints | None:
        """The estimated counts, classes × 2; None when no class splits into two groups."""
        pivot = self.pivot(features, labels)
        if pivot is None:
            return None
        cells = labels.cpu().numpy() * 2 + self.attributes(pivot, labels)
        counts = np.bincount(cells, minlength=2 * self.classes).reshape(self.classes, 2)
        counts[pivot.label] = pivot.majority, pivot.minority
        return counts

    def pivot(self, features: torch.Tensor, labels: torch.Tensor) -> Grouping | None:
        """The class whose two groups are most similar in size; None when no class splits into two groups."""
        pivot: Grouping | None = None
        for grouping in self.groupings(features, labels):
            splits = grouping.majority > 0 and grouping.minority > 0
            if splits and (pivot is None or grouping.rank < pivot.rank):
                pivot = grouping
        return pivot

    def groupings(self, features: torch.Tensor, labels: torch.Tensor) -> Iterator[Grouping]:
        """Majority and minority of every class that occurs: one biased model for two classes, else one each.

        Without steps the biased model is the given one, whatever the number of classes.
        """
        loss = partial(generalised_cross_entropy, q=self.recipe.q)
        present = [int(label) for label in torch.unique(labels).cpu()]
        if self.classes == 2 or self.recipe.biased_steps == 0:
            fresh = self.recipe.head == "fresh"
            model = with_new_head(self.module, self.final_layer, self.rng) if fresh else copy.deepcopy(self.module)
            self._fit(model, features, labels, loss, self.recipe.biased_steps)
            embedded, logits = look(model, self.final_layer, features)
            for label in present:
                recognised = (logits.argmax(dim=1) == label)[labels == label]
                yield Grouping(label, recognised.cpu().numpy(), embedded, model)
            return
        for label in present:
            belongs = labels == label
            model = with_new_head(self.module, self.final_layer, self.rng)
            self._fit(model, features, belongs.long(), loss, self.recipe.biased_steps)
            embedded, logits = look(model, self.final_layer, features)
            yield Grouping(label, (logits.argmax(dim=1) == 1)[belongs].cpu().numpy(), embedded, model)

    def attributes(self, pivot: Grouping, labels: torch.Tensor) -> Ints:
        """0 (like the pivot's majority) or 1 (like its minority) for every sample, by a linear classifier."""
        classifier = two_way(pivot.embedded.shape[1], self.rng).to(pivot.embedded.device)
        inputs = pivot.embedded[labels == pivot.label]
        targets = torch.from_numpy((~pivot.correct).astype(np.int64)).to(inputs.device)
        self._fit(classifier, inputs, targets, nn.functional.cross_entropy, self.recipe.attribute_steps)
        with torch.no_grad():
            return np.asarray(classifier(pivot.embedded).argmax(dim=1).cpu().numpy())

    def _fit(self, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, loss: Loss, steps: int) -> None:
        """A few steps of SGD on batches in which every label is equally likely."""
        optimizer = torch.optim.SGD(model.parameters(), lr=self.recipe.lr, momentum=self.recipe.momentum)
        in_training(model)
        for positions in balanced_batches(targets.cpu().numpy(), steps, self.recipe.batch_size, self.rng):
            batch = torch.from_numpy(positions).to(inputs.device)
            optimizer.zero_grad(set_to_none=True)
            loss(model(inputs[batch]), targets[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def generalised_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, q: float) -> torch.Tensor:
    """Mean of (1 − p^q)/q with p the probability of the right class (Zhang and Sabuncu, 2018)."""
    log_p = nn.functional.log_softmax(logits, dim=1).gather(1, labels[:, None])[:, 0]
    return ((1 - torch.exp(q * log_p)) / q).mean()


def balanced_batches(labels: Ints, steps: int, batch_size: int, rng: np.random.Generator) -> Ints:
    """Positions of `steps` batches, drawn with replacement so that every label that occurs is equally likely."""
    _, which, counts = np.unique(labels, return_inverse=True, return_counts=True)
    weights = 1 / (len(counts) * counts[which])
    return rng.choice(len(labels), size=(steps, batch_size), p=weights)


@torch.no_grad()
def look(model: nn.Module, final_layer: str, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What enters the final layer and what leaves the model, for every sample, in evaluation mode."""
    model.eval()
    entering: list[torch.Tensor] = []
    hook = model.get_submodule(final_layer).register_forward_pre_hook(
        lambda _, inputs: entering.append(inputs[0].flatten(1))
    )
    try:
        leaving = [
            model(features[start : start + _EVALUATION_BATCH])
            for start in range(0, len(features), _EVALUATION_BATCH)
        ]
    finally:
        hook.remove()
    return torch.cat(entering), torch.cat(leaving)


def counts_by(model: nn.Module, features: torch.Tensor, labels: torch.Tensor, classes: int) -> Ints:
    """The counts, classes × 2, where the larger of the model's first two outputs is taken for the attribute."""
    model.eval()
    with torch.no_grad():
        outputs = [
            model(features[at : at + _EVALUATION_BATCH]) for at in range(0, len(features), _EVALUATION_BATCH)
        ]
    attributes = torch.cat(outputs)[:, :2].argmax(dim=1)
    cells = (labels * 2 + attributes).cpu().numpy()
    return np.bincount(cells, minlength=2 * classes).reshape(classes, 2)


def with_two_outputs_of(model: nn.Module, module: nn.Module, final_layer: str) -> nn.Module:
    """A copy of `model` with a classification layer as large as `module`'s: its first two outputs, and zeros."""
    widened = copy.deepcopy(model)
    old, narrow = module.get_submodule(final_layer), model.get_submodule(final_layer)
    assert isinstance(old, nn.Linear)
    assert isinstance(narrow, nn.Linear)
    head = copy.deepcopy(old)
    with torch.no_grad():
        for wide, given in zip(head.parameters(), narrow.parameters(), strict=True):
            wide.zero_()
            wide[:2] = given[:2]
    parent, _, name = final_layer.rpartition(".")
    setattr(widened.get_submodule(parent), name, head)
    return widened


def with_new_head(module: nn.Module, final_layer: str, rng: np.random.Generator) -> nn.Module:
    """A copy of the model with a fresh two-way classification layer."""
    model = copy.deepcopy(module)
    old = model.get_submodule(final_layer)
    assert isinstance(old, nn.Linear)
    head = two_way(old.in_features, rng, bias=old.bias is not None).to(old.weight.device)
    parent, _, name = final_layer.rpartition(".")
    setattr(model.get_submodule(parent), name, head)
    return model


def two_way(inputs: int, rng: np.random.Generator, bias: bool = True) -> nn.Linear:
    """A linear layer with two outputs and PyTorch's usual range of initial values, drawn from `rng`."""
    layer = nn.Linear(inputs, 2, bias=bias, device="meta").to_empty(device="cpu")
    bound = inputs**-0.5
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.from_numpy(rng.uniform(-bound, bound, tuple(parameter.shape))))
    return layer
