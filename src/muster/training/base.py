"""Local training: hyper-parameters, the loop over mini-batches, and the hooks of local algorithms."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import nn

from muster.core.arrays import Floats, Ints, Vector
from muster.core.component import Component, Population
from muster.core.errors import ConfigError, DataError, TrainingError
from muster.core.registry import Registry
from muster.training.accumulation import accumulation_norm
from muster.training.augmentation import OperationConfig, build_operations
from muster.training.context import ClientContext, TrainOutcome
from muster.training.descent import PlainDescent, fused_steps
from muster.training.objectives import Objective
from muster.training.schedules import Schedule


@dataclass(frozen=True)
class LocalTraining(Schedule):
    """How a client trains: optimiser, amount of work, and the learning-rate schedule."""

    #: Who trains: clients, each on its own data, or one model on the data of all of them together (a baseline).
    mode: Literal["federated", "centralised"] = "federated"
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    epochs: int = 1
    #: Mini-batches instead of epochs; None: whole epochs.
    steps: int | None = None
    batch_size: int = 16
    #: Leave out the last, shorter mini-batch of every epoch; a client with less than one mini-batch keeps it.
    drop_last: bool = False
    #: Largest gradient norm; None: no limit.
    clip_norm: float | None = None
    #: How pictures are changed at random in training: names of operations, or tables with a name and options.
    augmentation: tuple[OperationConfig, ...] = field(default=(), hash=False)  # tables have no hash

    def check(self) -> None:
        super().check()
        positive: dict[str, float | None] = {"epochs": self.epochs, "batch_size": self.batch_size}
        positive |= {"steps": self.steps, "clip_norm": self.clip_norm}
        for key, value in positive.items():
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"bad value for 'training.{key}': {value}", expected="a positive number")
        for key, value in {"momentum": self.momentum, "weight_decay": self.weight_decay}.items():
            if not 0 <= value < (1 if key == "momentum" else math.inf):
                raise ConfigError(f"bad value for 'training.{key}': {value}", expected="0 ≤ value (momentum < 1)")
        if self.optimizer == "adam" and (self.momentum or self.nesterov):
            raise ConfigError(
                "training.momentum and training.nesterov apply to SGD; the optimiser is adam", fix="leave them out"
            )
        if self.nesterov and not self.momentum:
            raise ConfigError("training.nesterov needs momentum", fix="set training.momentum, e.g. to 0.9")
        if self.schedule_per == "batch" and not self.centralised:
            raise ConfigError(
                "training.schedule_per = 'batch' in a federation: clients start a new optimiser in every round",
                fix="leave it out, or set training.mode = 'centralised'",
            )
        if self.momentum_range is not None and not self.momentum:
            raise ConfigError("training.momentum_range needs momentum", fix="set training.momentum, e.g. to 0.9")
        build_operations(self.augmentation)

    def cautions(self) -> list[str]:
        found = super().cautions()
        if self.steps is not None and self.epochs != 1:
            found.append(f"training.epochs has no effect here: every training has training.steps = {self.steps}")
        return found

    @property
    def centralised(self) -> bool:
        return self.mode == "centralised"

    def epoch_for(self, size: int) -> int:
        """How many mini-batches an epoch of a client with `size` samples has."""
        return max(1, size // self.batch_size) if self.drop_last else math.ceil(size / self.batch_size)

    def epoch_samples(self, size: int) -> int:
        """How many samples an epoch has: all, unless the last, shorter mini-batch is left out."""
        return min(size, self.epoch_for(size) * self.batch_size)

    def steps_for(self, size: int) -> int:
        """How many mini-batches a client with `size` samples trains on."""
        return self.steps if self.steps is not None else self.epochs * self.epoch_for(size)

    def samples_for(self, size: int) -> int:
        """How many samples that is."""
        return self.samples_in(self.steps_for(size), size)

    def samples_in(self, steps: int, size: int) -> int:
        """How many samples the first `steps` mini-batches of a client with `size` samples have."""
        full, rest = divmod(steps, self.epoch_for(size))
        return full * self.epoch_samples(size) + rest * self.batch_size

    def check_accumulates(self, method: str) -> None:
        """Refuse an optimiser whose movement is not a sum of gradients with known coefficients."""
        if self.optimizer != "sgd":
            raise ConfigError(
                f"{method} divides movements by how often the local optimiser counts each gradient; "
                f"{self.optimizer} has no such number, because it scales every coordinate by the gradients seen",
                fix="set training.optimizer = 'sgd' (momentum and Nesterov are understood)",
            )

    def progress(
        self, steps: Ints | int, lr: Floats | float, pull: Floats | float = 0.0, restart: Ints | int = 0
    ) -> Floats:
        """How much of a constant gradient `steps` local steps add up to, in units of the learning rate.

        It is the number of steps for plain SGD; see `accumulation_norm` for momentum, an algorithm's `pull` and
        weight decay. Adam has no such number: NaN.
        """
        if self.optimizer != "sgd":
            return np.full(np.broadcast_shapes(*map(np.shape, (steps, lr, pull, restart))), np.nan)
        return accumulation_norm(
            steps,
            lr=lr,
            momentum=self.momentum,
            pull=np.add(pull, self.weight_decay),
            nesterov=self.nesterov,
            restart=restart,
        )

    def make_optimizer(self, parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer | PlainDescent:
        if self.optimizer == "adam":
            return torch.optim.Adam(parameters, lr=lr, weight_decay=self.weight_decay, fused=True)
        if not self.momentum:
            return PlainDescent(parameters, lr, self.weight_decay)
        return torch.optim.SGD(
            parameters,
            lr=lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
            fused=True,
        )

    def keep_pace(
        self, optimizer: torch.optim.Optimizer | PlainDescent, round: int, rounds: int, batch: int, batches: int
    ) -> None:
        """Where the schedule moves with every mini-batch: give the optimiser its numbers for this one."""
        if self.schedule_per == "round":
            return
        lr, momentum = self.at_batch(round, rounds, batch, batches)
        for group in optimizer.param_groups:
            group["lr"] = lr
            if momentum is not None:
                group["momentum"] = momentum

    def fusing(
        self, module: nn.Module, optimizer: torch.optim.Optimizer | PlainDescent
    ) -> AbstractContextManager[None]:
        """While it lasts, large layers take their steps in the backward pass, where those are the same steps."""
        if isinstance(optimizer, PlainDescent) and self.clip_norm is None:
            return fused_steps(module, optimizer)
        return nullcontext()


@dataclass
class LocalRun:
    """One client's training while it runs; local algorithms look at it and change gradients or loss."""

    context: ClientContext
    #: The parameters that are trained.
    parameters: list[nn.Parameter]
    lr: float
    optimizer: torch.optim.Optimizer | PlainDescent
    #: The vector that the aggregator broadcasts, when it does.
    broadcast: torch.Tensor | None = None
    #: Vectors to send to the server besides the movement.
    extra: dict[str, Vector] | None = None
    steps: int = 0
    #: Of the algorithm's proximal strength, for this client: see `LocalAlgorithm.honours_pull_factors`.
    pull_factor: float = 1.0
    #: What the algorithm remembers from step to step, by name; gone after the training.
    memory: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def origin(self) -> list[torch.Tensor]:
        """The global parameters, tensor by tensor, in the order of `parameters`. Not to be written to."""
        model = self.context.model
        return model.views(self.context.origin.to(model.device))


class LocalAlgorithm(Component):
    """What a client does differently from plain optimisation. The base class is plain optimisation.

    >>> import muster
    >>> class SignDescent(LocalAlgorithm):
    ...     '''Only the sign of each gradient counts.'''
    ...
    ...     def correct(self, job: LocalRun) -> None:
    ...         for parameter in job.parameters:
    ...             parameter.grad.sign_()
    >>> experiment = muster.Experiment(rounds=1, algorithm=SignDescent(), training={"lr": 0.001})
    >>> result = muster.run(experiment, workers=0)
    >>> len(result.records)
    1
    """

    #: Names of the flat vectors that it keeps on the client between trainings.
    client_state: ClassVar[tuple[str, ...]] = ()
    #: Names of the flat vectors that it sends besides the movement.
    extra: ClassVar[tuple[str, ...]] = ()
    #: Names of the aggregation methods that it works with; None: all.
    requires_aggregation: ClassVar[tuple[str, ...] | None] = None
    #: The optimiser continues from the client's last training: its first steps contain gradients of that one.
    continues_optimiser: ClassVar[bool] = False
    #: Multiplies its proximal strength by `LocalRun.pull_factor`, so that a selector may set it for each client.
    honours_pull_factors: ClassVar[bool] = False
    #: What a client keeps depends on the movement that it made, and the server's part of the method on what
    #: arrives: no filter may change movements in between.
    exact_movements: ClassVar[bool] = False

    @property
    def pull(self) -> float:
        """Strength μ of a term (μ/2)‖w − w_global‖² in the local objective."""
        return 0.0

    def check_training(self, training: LocalTraining) -> None:
        """Raise ConfigError if it cannot work with this training."""
        return

    def extra_samples(self, size: int) -> int:
        """Samples that a client of this size runs through the model besides its local steps."""
        return 0

    def begin(self, job: LocalRun) -> None:
        """Before the first step."""

    def loss(
        self, job: LocalRun, features: torch.Tensor, logits: torch.Tensor, loss: torch.Tensor
    ) -> torch.Tensor:
        """The loss to minimise on this batch, given the plain one."""
        return loss

    def correct(self, job: LocalRun) -> None:
        """Change `parameter.grad` after the backward pass."""

    def end(self, job: LocalRun) -> None:
        """After the last step: update `job.context.state`, fill `job.extra`."""


algorithms: Registry[LocalAlgorithm] = Registry("local algorithm", "muster.training", "muster.algorithms")


@algorithms.register("plain")
@dataclass(frozen=True)
class Plain(LocalAlgorithm):
    """Plain optimisation of the local loss, as in FedAvg."""

    def check(self, population: Population) -> None:
        """Nothing can be wrong."""


def batches(size: int, training: LocalTraining, rng: np.random.Generator, skip: int = 0) -> Iterator[Ints]:
    """The sample positions of every local step: epochs in new random orders, the last batch of each shorter (or,
    with `drop_last`, left out).

    `skip` leaves out the first steps, which a probe has done already.
    """
    if size < 1:
        raise DataError("a client without samples cannot train", expected="at least one sample per client")
    total, done = training.steps_for(size), 0
    while done < total:
        order = rng.permutation(size)
        for start in range(0, training.epoch_samples(size), training.batch_size):
            if done >= total:
                return
            if done >= skip:
                yield order[start : start + training.batch_size]
            done += 1


@dataclass(frozen=True)
class Probed:
    """What a probe has done of a training that continues from it."""

    #: Steps that it took.
    steps: int = 0
    #: Mini-batches that the training leaves out.
    skip: int = 0
    #: SGD's velocity after them, flat; None: the training starts with a new optimiser.
    velocity: torch.Tensor | None = None

    @property
    def restart(self) -> int:
        """After how many steps the optimiser forgot its velocity."""
        return self.steps if self.velocity is None else 0


def train(
    context: ClientContext,
    algorithm: LocalAlgorithm,
    lr: float,
    *,
    broadcast: torch.Tensor | None = None,
    squared_loss: bool = False,
    probed: Probed = Probed(),  # noqa: B008 (frozen)
    pull_factor: float = 1.0,
) -> LocalRun:
    """Train the context's model in place on its data. By-products are in `context.outcome`."""
    model, training, skip, objective = context.model, context.training, probed.skip, context.objective
    parameters = [p for p in model.module.parameters() if p.requires_grad]
    optimizer = training.make_optimizer(parameters, lr)
    if probed.velocity is not None:
        for parameter, part in zip(parameters, model.views(probed.velocity), strict=True):
            optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(part)
    job = LocalRun(context, parameters, lr, optimizer, broadcast, extra={}, pull_factor=pull_factor)
    model.train()
    algorithm.begin(job)
    losses = _Losses(context.size if squared_loss else 0, objective)
    steps = training.steps_for(context.size)
    # Only plain optimisation leaves gradients alone; others look at them between backward pass and step.
    with training.fusing(model.module, optimizer) if type(algorithm) is Plain else nullcontext():
        for positions in batches(context.size, training, context.rng, skip):
            index = torch.from_numpy(positions).to(model.device)
            features, labels = _rows(context.features, index), context.labels.index_select(0, index)
            if context.augment is not None:
                features = context.augment(features, skip + job.steps)
            training.keep_pace(optimizer, context.round, context.rounds, skip + job.steps, steps)
            for parameter in parameters:
                parameter.grad = None
            logits = forward(model.module, features)
            loss = objective.mean_loss(logits, labels)
            algorithm.loss(job, features, logits, loss).backward()  # type: ignore[no-untyped-call]
            algorithm.correct(job)
            if training.clip_norm is not None:
                nn.utils.clip_grad_norm_(parameters, training.clip_norm)
            optimizer.step()
            job.steps += 1
            losses.add(loss, logits, labels)
    algorithm.end(job)
    context.evaluation = None  # of the model as it was
    context.outcome = losses.outcome()
    steps = probed.steps + job.steps
    context.outcome.progress = _progress(training, steps, lr, pull_factor * algorithm.pull, probed.restart)
    return job


@lru_cache(maxsize=1024)
def _progress(training: LocalTraining, steps: int, lr: float, pull: float, restart: int) -> float:
    # Clients of one round differ at most in their steps: not worth a matrix power each.
    return float(training.progress(steps, lr, pull, restart))


def _rows(features: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    # index_select is the faster of the two, but forgets channels_last.
    return features.index_select(0, index) if features.is_contiguous() else features[index]


def single_sample_error() -> TrainingError:
    """The error for a mini-batch of one sample with batch normalisation."""
    return TrainingError(
        "batch normalisation cannot train on a mini-batch of one sample here: it has one value per channel",
        fix="set training.drop_last = true, change training.batch_size so that no client is left with one sample "
        'at the end of an epoch, or use group normalisation (model.norm = "group")',
    )


def forward(module: nn.Module, features: torch.Tensor) -> torch.Tensor:
    """The module's outputs on a mini-batch, with a clear error where batch normalisation cannot handle it."""
    try:
        logits: torch.Tensor = module(features)
    except ValueError as error:
        if len(features) > 1 or "more than 1 value per channel" not in str(error):
            raise
        raise single_sample_error() from error
    return logits


@dataclass
class _Losses:
    """The by-products of training, gathered without waiting for the device."""

    #: Square the losses of this many samples: those of the first epoch.
    squared: int
    objective: Objective
    losses: list[torch.Tensor] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    squares: list[torch.Tensor] = field(default_factory=list)
    samples: int = 0
    squared_samples: int = 0

    @torch.no_grad()
    def add(self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> None:
        self.losses.append(loss.detach())
        self.sizes.append(len(labels))
        self.samples += len(labels)
        if self.samples <= self.squared:
            each = self.objective.losses(logits, labels)
            self.squares.append(each.square().sum())
            self.squared_samples = self.samples

    def outcome(self) -> TrainOutcome:
        steps = len(self.sizes)
        if not steps:
            return TrainOutcome()
        losses = torch.stack(self.losses).double().cpu().numpy()
        squares = torch.stack(self.squares).double().sum().item() if self.squares else math.nan
        return TrainOutcome(
            steps=steps,
            samples=self.samples,
            mean_loss=float(losses @ np.array(self.sizes)) / self.samples,
            mean_squared_loss=squares / max(1, self.squared_samples),
        )
