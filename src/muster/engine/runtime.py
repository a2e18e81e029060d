"""What runs on a client: training, measuring, predicting. The same code under every engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import nn

from muster.arrays import Floats, Ints, Vector
from muster.data.federated import FederatedData
from muster.devices import Devices
from muster.engine.base import Place
from muster.parameters import FlatModel
from muster.randomness import generator, torch_seed
from muster.signals.base import PROBE, PROBE_VELOCITY, ClientContext, Signal
from muster.training.augmentation import augmenter
from muster.training.base import LocalAlgorithm, LocalTraining, Probed, train
from muster.training.descent import allow_fused_steps
from muster.training.gradient import local_gradient

#: Samples per forward pass in evaluation: fixed, so that results do not depend on how work is divided.
EVALUATION_BATCH = 500


@dataclass(frozen=True)
class Job:
    """What a client is told to do: the request without the parameters, which travel separately."""

    client: int
    place: Place
    lr: float
    signals: tuple[Signal, ...] = ()
    #: Factor of the local algorithm's proximal strength.
    pull_factor: float = 1.0


@dataclass(frozen=True)
class Facts:
    """What a client says after training, beside the movement."""

    steps: int
    samples: int
    reports: dict[str, Floats]
    #: Steps of a probe that the training went on from.
    credited_steps: int = 0
    extra: dict[str, Vector] = field(default_factory=dict)


class ClientRuntime:
    """Carries out jobs for any client of a federation, one after the other, on one device."""

    def __init__(
        self,
        data: FederatedData,
        module: nn.Module,
        training: LocalTraining,
        algorithm: LocalAlgorithm,
        *,
        seed: int,
        device: str = "cpu",
        devices: Devices | None = None,
    ) -> None:
        self.data, self.training, self.algorithm, self.seed = data, training, algorithm, seed
        allow_fused_steps(module)
        self.model = FlatModel(module, device)
        self.devices = devices
        self._augmenter = augmenter(training.augmentation, data.dataset, self.model.device)

    def train(
        self,
        job: Job,
        origin: torch.Tensor,
        out: torch.Tensor,
        state: dict[str, Vector],
        broadcast: torch.Tensor | None = None,
        *,
        trained: torch.Tensor | None = None,
    ) -> Facts:
        """Train a client from `origin`; write its movement into `out` and its new state into `state`.

        The trained model itself goes into `trained`, where somebody wants it.
        """
        context = self.context(job, origin, state, self.training_order(job))
        self.model.load(origin)
        probed = self._continue_probe(state)
        _seed(self.model.device, self.dropout_seed(job))
        finished = train(
            context,
            self.algorithm,
            job.lr,
            broadcast=broadcast,
            squared_loss=any(signal.needs_squared_loss for signal in job.signals),
            probed=probed,
            pull_factor=job.pull_factor,
        )
        self.model.store_movement(origin, out)
        if trained is not None:
            self.model.store(trained)
        context.movement = out.numpy()
        context.rng = self.report_rng(job)
        reports = {signal.name: numbers(signal.measure(context)) for signal in job.signals}
        assert context.outcome is not None
        samples = context.outcome.samples + self.algorithm.extra_samples(context.size)
        return Facts(context.outcome.steps, samples, reports, probed.steps, finished.extra or {})

    def local_gradient(self, job: Job, origin: torch.Tensor) -> torch.Tensor:
        """Of the client's whole loss at the global model: as a local algorithm has it when its training begins."""
        self.model.load(origin)
        _seed(self.model.device, self.dropout_seed(job))
        features, labels = self._on_device(*self.data.client(job.client))
        return local_gradient(self.model, features, labels, self.training.batch_size)

    def ask(self, job: Job, origin: torch.Tensor, state: dict[str, Vector]) -> dict[str, Floats]:
        """Measure signals on a client."""
        context = self.context(job, origin, state, self.ask_rng(job))
        context.embeds = any(signal.embeds for signal in job.signals)
        values = {}
        for number, signal in enumerate(job.signals):
            if signal.uses_model:
                self.model.load(origin)
            if signal.uses_model or signal.draws:
                _seed(self.model.device, torch_seed(self.seed, "dropout-ask", *self._coordinates(job), number))
            values[signal.name] = numbers(signal.measure(context))
        return values

    @torch.no_grad()
    def predict(
        self, positions: Ints, origin: torch.Tensor, split: Literal["test", "train"] = "test"
    ) -> tuple[Ints, Floats]:
        """Predicted classes and losses of test samples, or of training samples, under the global model."""
        self.model.load(origin)
        self.model.module.eval()
        samples = self.data.dataset.test if split == "test" else self.data.dataset.train
        features, labels = self._on_device(*self.data.tensors(samples, positions))
        logits = self.model.module(features)
        losses = nn.functional.cross_entropy(logits, labels, reduction="none")
        return logits.argmax(dim=1).cpu().numpy(), losses.double().cpu().numpy()

    def training_order(self, job: Job) -> np.random.Generator:
        """Makes the order of the client's mini-batches."""
        return generator(self.seed, "train", *self._coordinates(job))

    def ask_rng(self, job: Job) -> np.random.Generator:
        """What measurements on request draw from."""
        return _drawn(job, lambda: generator(self.seed, "ask", job.place.round, job.place.exchange, job.client))

    def report_rng(self, job: Job) -> np.random.Generator:
        """What reports draw from: a stream of their own, so that asking for one does not change the training."""
        return _drawn(job, lambda: generator(self.seed, "report", *self._coordinates(job)))

    def dropout_seed(self, job: Job) -> int:
        """For what the model draws while it trains."""
        return torch_seed(self.seed, "dropout", *self._coordinates(job))

    def context(
        self, job: Job, origin: torch.Tensor, state: dict[str, Vector], rng: np.random.Generator
    ) -> ClientContext:
        """What a measurement or a training of this client sees."""
        features, labels = self._on_device(*self.data.client(job.client))
        return ClientContext(
            client=job.client,
            features=features,
            labels=labels,
            classes=self.data.classes,
            model=self.model,
            origin=origin,
            rng=rng,
            training=self.training,
            training_rng=lambda: self.training_order(job),
            lr=job.lr,
            round=job.place.round,
            rounds=job.place.rounds,
            attributes=self.data.client_attributes(job.client),
            attribute_values=self.data.dataset.attribute_values,
            state=state,
            device_times=self._device_times(job.client, len(labels)),
            augment=self._augment(job),
        )

    def _augment(self, job: Job) -> Callable[[torch.Tensor, int], torch.Tensor] | None:
        """Every step draws from a stream of its own, so that a probe's steps may be left out without a trace."""
        change = self._augmenter
        if change is None:
            return None
        return lambda pictures, step: change(
            pictures, generator(self.seed, "augment", *self._coordinates(job), step)
        )

    def _coordinates(self, job: Job) -> tuple[int, int, int]:
        return job.place.round, job.place.iteration, job.client

    def _continue_probe(self, state: dict[str, Vector]) -> Probed:
        """Start from the probed model where there is one; what the probe has done of the training."""
        probed, velocity = state.pop(PROBE, None), state.pop(PROBE_VELOCITY, None)
        if probed is None:
            return Probed()
        self.model.load(torch.from_numpy(probed[:-2]))
        return Probed(int(probed[-2]), int(probed[-1]), None if velocity is None else torch.from_numpy(velocity))

    def _on_device(self, features: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features, labels = features.to(self.model.device), labels.to(self.model.device)
        if features.dim() == 4:
            features = features.contiguous(memory_format=self.model.memory_format)
        return features, labels

    def _device_times(self, client: int, size: int) -> Floats | None:
        if self.devices is None:
            return None
        samples = np.array([self.training.samples_for(size) + self.algorithm.extra_samples(size)])
        model = self.model.spec.bytes
        times: Floats = self.devices.times(np.array([client]), samples, model, model)[0]
        return times


def _drawn(job: Job, make: Callable[[], np.random.Generator]) -> np.random.Generator:
    # Making a generator takes longer than most measurements: only for those that draw from it.
    return make() if any(signal.draws for signal in job.signals) else _NO_DRAWS


#: In the place of a generator for signals that declare not to draw: using it is an error.
_NO_DRAWS: np.random.Generator = None  # type: ignore[assignment]


def _seed(device: torch.device, seed: int) -> None:
    """Seed what a computation on `device` draws from.

    `torch.manual_seed` makes a note for every kind of device that is not in use, with the whole call stack: that
    takes longer than a small client's training step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def numbers(values: Floats | Sequence[float]) -> Floats:
    """What a signal measured, as it travels."""
    return np.atleast_1d(np.asarray(values, dtype=np.float64))
