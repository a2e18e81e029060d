"""The Objective protocol: losses of samples, and numbers of samples that add up to metrics.

Whatever is measured is a row of numbers per sample. Rows are added up over the test set, over a client or over a
group, wherever the samples are, and a metric is a function of such a sum. So metrics do not depend on how samples
are divided over blocks, workers or nodes, and clients of a federation need not send anything but sums.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch

from muster.core.arrays import Floats
from muster.core.component import Component
from muster.core.errors import ConfigError
from muster.core.modules import object_named
from muster.core.registry import Registry

#: (outputs of the model, targets) → one number per sample.
Function: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Objective(Component):
    """What a client minimises and what is measured on test data.

    Your own loss and metrics are functions of the model's outputs and the targets that give one
    number per sample, or "module:name" of such a function:

    >>> import torch
    >>> from muster.training.objectives.regression import Regression
    >>> objective = Regression(metrics={"within_one": lambda y, t: ((y - t).abs() < 1).float()})
    >>> rows = objective.rows(torch.tensor([[1.0], [5.0]]), torch.tensor([1.5, 3.0]))
    >>> float(objective.scores(rows.sum(0).numpy())["within_one"])
    0.5
    """

    #: Replaces the usual loss.
    loss: str | Function | None = None
    #: Further metrics, by name: the mean over samples counts.
    metrics: Mapping[str, str | Function] = field(default_factory=dict, hash=False)

    #: The kind of targets that it is for (`muster.data.Dataset.task`).
    task: ClassVar[str]
    #: The metric that is also measured on every client's own test data and in every group.
    score: ClassVar[str] = "accuracy"
    #: The names of its metrics.
    usual_metrics: ClassVar[tuple[str, ...]] = ()
    #: Those of them for which less is better.
    errors: ClassVar[tuple[str, ...]] = ()

    @property
    def class_labels(self) -> bool:
        """Every sample has one class: what many methods look at."""
        return self.task == "classification"

    @property
    def usual(self) -> bool:
        """Cross-entropy of class labels: what can be computed for many clients at once."""
        return False

    @property
    def may_be_negative(self) -> bool:
        """Whether a sample's loss may be negative: a user's own may be, the usual ones are not."""
        return self.loss is not None or not type(self).__module__.startswith("muster.")

    # --- the loss ----------------------------------------------------------------------------------------

    @abstractmethod
    def usual_losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One loss per sample, where the user has no other."""

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One loss per sample."""
        if self._loss is None:
            return self.usual_losses(outputs, targets)
        return _one_a_sample(self._loss(outputs, targets), targets, self.loss_name)

    def mean_loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean over a mini-batch: what a step goes down."""
        return self.losses(outputs, targets).mean()

    def total_loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.losses(outputs, targets).sum()

    # --- metrics -----------------------------------------------------------------------------------------

    @abstractmethod
    def usual_rows(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """samples × numbers: what the usual metrics are made of, when it is added up."""

    @abstractmethod
    def usual_scores(self, count: Floats, totals: Floats) -> dict[str, Floats]:
        """The usual metrics of sums over `samples` samples; the last axis of `totals` is that of the numbers."""

    @torch.no_grad()
    def rows(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """samples × numbers, in float64: a one, what the usual metrics are made of, and the user's metrics."""
        usual = self.usual_rows(outputs, targets).double()
        own = [
            _one_a_sample(function(outputs, targets), targets, f"the metric '{name}'").double().unsqueeze(1)
            for name, function in self._metrics.items()
        ]
        return torch.cat([usual.new_ones(len(usual), 1), usual, *own], dim=1)

    def scores(self, totals: Floats) -> dict[str, Floats]:
        """The metrics of sums of rows (… × numbers): NaN where there are no samples."""
        last = totals.shape[-1] - len(self._metrics)
        count = totals[..., 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = self.usual_scores(count, totals[..., 1:last])
            own = {name: totals[..., last + k] / count for k, name in enumerate(self._metrics)}
        return scores | own

    # --- fitting together --------------------------------------------------------------------------------

    def obstacle(self, outputs: torch.Tensor, targets: torch.Tensor, classes: int) -> str:
        """What is wrong with the outputs of a model for these targets; empty: nothing."""
        return ""

    @property
    def loss_name(self) -> str:
        return "the loss" if self.loss is None else f"the loss {_name(self.loss)}"

    @cached_property
    def _loss(self) -> Function | None:
        return None if self.loss is None else _without_reduction(resolved(self.loss, "objective.loss"))

    @cached_property
    def _metrics(self) -> dict[str, Function]:
        return {name: resolved(given, f"objective.metrics.{name}") for name, given in self.metrics.items()}

    def resolve(self) -> Objective:
        """Look up the user's functions now, while a mistake can still be reported."""
        usual = {"round", "loss", "accuracy", *self.usual_metrics}
        if taken := usual & set(self._metrics):
            raise ConfigError(f"a metric cannot be called '{min(taken)}'", fix="choose another name")
        _ = self._loss
        return self

    def __getstate__(self) -> dict[str, Any]:
        # Functions that were looked up are looked up again where the objective goes.
        return {key: value for key, value in vars(self).items() if key not in ("_loss", "_metrics")}


def resolved(given: object, where: str) -> Function:
    """A user's function, from itself or from "module:name"."""
    function = object_named(given, where) if isinstance(given, str) else given
    if isinstance(function, type) and issubclass(function, torch.nn.Module):
        function = function()
    if not callable(function):
        raise ConfigError(
            f"bad value for '{where}': {given!r}",
            expected="a function of outputs and targets, or 'module:name' of one",
        )
    checked: Function = function
    return checked


def _without_reduction(loss: Function) -> Function:
    """PyTorch's losses take the mean of a batch unless told not to."""
    if getattr(loss, "reduction", "none") == "none":
        return loss
    changed: Any = copy.copy(loss)
    changed.reduction = "none"
    function: Function = changed
    return function


def _one_a_sample(values: object, targets: torch.Tensor, what: str) -> torch.Tensor:
    if not isinstance(values, torch.Tensor):
        raise ConfigError(f"{what} gave a {type(values).__name__}", expected="a tensor with one number per sample")
    if values.dim() == 0 or len(values) != len(targets):
        raise ConfigError(
            f"{what} gave a tensor of shape {tuple(values.shape)} for {len(targets)} samples",
            expected=f"one number per sample: shape ({len(targets)},)",
            fix='leave the mean over the batch to Muster (in PyTorch: reduction="none")',
        )
    return values if values.dim() == 1 else values.flatten(1).mean(dim=1)


def _name(given: str | Function) -> str:
    if isinstance(given, str):
        return given
    return getattr(given, "__name__", type(given).__name__)


def shape_of(tensor: torch.Tensor) -> str:
    """The shape of one sample, for messages."""
    return "×".join(map(str, tensor.shape[1:])) or "a single number"


objectives: Registry[Objective] = Registry("objective", "muster.training.objectives", "muster.objectives")
