"""What runs on a client: training, measuring, predicting. The same code under every engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import nn

from muster.core.arrays import Floats, Ints, Vector
from muster.core.parameters import FlatModel, ParameterSpec
from muster.core.randomness import generator, torch_seed
from muster.data.federated import FederatedData
from muster.engine.evaluation import Predictions, classes_suffice
from muster.engine.task import ClientTask
from muster.training.augmentation import augmenter
from muster.training.base import LocalAlgorithm, LocalTraining, Probed, train
from muster.training.context import PROBE, PROBE_VELOCITY, ClientContext
from muster.training.descent import allow_fused_steps
from muster.training.gradient import local_gradient
from muster.training.objectives import Classification, Objective
from muster.updates.filters import Filter, as_sent, named, streams, working
from muster.updates.table import ANSWER_FIELDS, Updates
from muster.world.devices import Devices

#: Samples per forward pass in evaluation: fixed, so that results do not depend on how work is divided.
EVALUATION_BATCH = 500
#: The same where a sample has many outputs (pixels, positions), which would not fit into memory together.
LARGE_OUTPUTS_BATCH = 50
#: Evaluated samples are kept as the model takes them up to this many bytes: every evaluation wants the same again.
KEPT_FOR_EVALUATION = 32 * 2**20
#: What augmentation draws from: a stream for each step of each client's training.
AUGMENTATION = "augment"


class ClientRuntime:
    """Carries out tasks for any client of a federation, one at a time, on one device."""

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
        filters: Sequence[Filter] = (),
        objective: Objective = Classification(),  # noqa: B008 (frozen)
    ) -> None:
        self.data, self.training, self.algorithm, self.seed = data, training, algorithm, seed
        self.objective = objective
        allow_fused_steps(module)
        self.model = FlatModel(module, device)
        self.devices = devices
        #: What happens to an update before it is sent, by the names under which it is recorded.
        self.filters = tuple(named(filters))
        self._liars = tuple(step for step in self.filters if step[1].lies)
        #: What clients train on, and from which round (counted from 0) it is something else.
        self._data_from = poisoned_from(data, filters)
        self.augmenter = augmenter(training.augmentation, data.dataset, self.model.device)
        self._kept: dict[tuple[str, bytes], tuple[torch.Tensor, torch.Tensor]] = {}
        self._room = KEPT_FOR_EVALUATION

    def train(
        self,
        task: ClientTask,
        origin: torch.Tensor,
        out: torch.Tensor,
        state: dict[str, Vector],
        broadcast: torch.Tensor | None = None,
        *,
        trained: torch.Tensor | None = None,
    ) -> Updates:
        """Train a client from `origin`: its answer. The movement goes into `out`, its new state into `state`.

        The model itself goes into `trained`, if that is wanted. Both are as they are sent, after the filters
        of the client's side; reports are measured on that too.
        """
        self.enter(task.place.round)
        context = self.context(task, origin, state, self.training_order(task))
        self.model.load(origin)
        probed = self._continue_probe(state)
        _seed(self.model.device, self.dropout_seed(task))
        finished = train(
            context,
            self.algorithm,
            task.lr,
            broadcast=broadcast,
            squared_loss=any(signal.needs_squared_loss for signal in task.signals),
            probed=probed,
            pull_factor=task.pull_factor,
        )
        self.model.store_movement(origin, out)
        context.movement = out.numpy()
        assert context.outcome is not None
        stated = replace(
            context.outcome,
            samples=context.outcome.samples + self.algorithm.extra_samples(context.size),
            credited_steps=probed.steps,
        )
        numbers_of = {name: getattr(stated, name) for name in ANSWER_FIELDS}
        answer = Updates.of(task.client, context.size, context.movement, numbers_of, extra=finished.extra)
        if self.filters:
            before = out.clone()
            answer = self.filtered(task, answer)
            if not torch.equal(before, out):
                self.model.load(model_of(out, origin, self.model.spec))
        if trained is not None:
            self.model.store(trained)
        context.rng = self.report_rng(task)
        measured = {signal.name: numbers(signal.measure(context)) for signal in task.signals}
        reports = self.told(task, measured, "report")
        return replace(answer, reports={name: values[None] for name, values in reports.items()})

    def filtered(self, task: ClientTask, answer: Updates) -> Updates:
        """One client's answer as it is sent; its movement stays in the same memory."""
        if not self.filters:
            return answer
        draws = streams(self.seed, task.place.round, task.place.iteration)
        sent = as_sent(self.filters, answer, self.model.spec, draws, task.place.round)
        if sent.movements is not answer.movements:
            answer.movements[:] = sent.movements
        return replace(sent, movements=answer.movements)

    def local_gradient(self, task: ClientTask, origin: torch.Tensor) -> torch.Tensor:
        """Of the client's whole loss at the global model: as a local algorithm has it when its training begins."""
        self.model.load(origin)
        _seed(self.model.device, self.dropout_seed(task))
        features, labels = self._on_device(*self.data.client(task.client))
        return local_gradient(self.model, features, labels, self.training.batch_size, self.objective)

    def ask(self, task: ClientTask, origin: torch.Tensor, state: dict[str, Vector]) -> dict[str, Floats]:
        """Measure signals on a client."""
        self.enter(task.place.round)
        context = self.context(task, origin, state, self.ask_rng(task))
        context.embeds = any(signal.embeds for signal in task.signals)
        values = {}
        for number, signal in enumerate(task.signals):
            if signal.uses_model:
                self.model.load(origin)
            if signal.uses_model or signal.draws:
                _seed(self.model.device, torch_seed(self.seed, "dropout-ask", *self._coordinates(task), number))
            values[signal.name] = numbers(signal.measure(context))
        return self.told(task, values, "ask")

    def told(
        self, task: ClientTask, measured: Mapping[str, Floats], occasion: Literal["ask", "report"]
    ) -> dict[str, Floats]:
        """What one client reports after it has measured: the same, unless a filter on its side lies."""
        said, place = dict(measured), task.place
        for name, step in working(self._liars, place.round):
            rng = generator(self.seed, f"lie-{occasion}-{name}", place.round, place.exchange, task.client)
            for signal in task.signals:
                # What the server computes from the update cannot be lied about.
                if signal.name in said and not signal.in_update:
                    said[signal.name] = numbers(step.told(task.client, signal, said[signal.name], rng))
        return said

    @property
    def lies(self) -> bool:
        """Whether what is reported may differ from what is measured."""
        return bool(self._liars)

    def enter(self, round: int) -> None:
        """From now on clients train on what they have in this round."""
        self.data = next(data for start, data in reversed(self._data_from) if round >= start)

    @torch.no_grad()
    def predict(
        self, positions: Ints, origin: torch.Tensor, split: Literal["test", "train"] = "test"
    ) -> Predictions:
        """What the global model says about test samples, or about training samples."""
        self.model.load(origin)
        self.model.module.eval()
        features, labels = self._evaluated(positions, split)
        size = EVALUATION_BATCH if self.objective.class_labels else LARGE_OUTPUTS_BATCH
        parts = zip(torch.split(features, size), torch.split(labels, size), strict=True)
        return Predictions.concatenated([self._predictions(*part) for part in parts])

    def _evaluated(self, positions: Ints, split: Literal["test", "train"]) -> tuple[torch.Tensor, torch.Tensor]:
        """Samples that the global model is evaluated on, as it takes them."""
        key = split, positions.tobytes()
        if key in self._kept:
            return self._kept[key]
        data = self._data_from[0][1]
        samples = data.dataset.test if split == "test" else data.dataset.train
        features, labels = self._on_device(*data.tensors(samples, positions))
        if features.nbytes <= self._room:
            self._room -= features.nbytes
            self._kept[key] = features, labels
        return features, labels

    def _predictions(self, features: torch.Tensor, labels: torch.Tensor) -> Predictions:
        objective, logits = self.objective, self.model.module(features)
        return Predictions(
            losses=objective.losses(logits, labels).double().cpu().numpy(),
            classes=logits.argmax(dim=1).cpu().numpy() if objective.class_labels else None,
            # Not every device has double precision.
            rows=None if classes_suffice(objective) else objective.rows(logits.cpu(), labels.cpu()).numpy(),
        )

    def training_order(self, task: ClientTask) -> np.random.Generator:
        """Makes the order of the client's mini-batches."""
        return generator(self.seed, "train", *self._coordinates(task))

    def ask_rng(self, task: ClientTask) -> np.random.Generator:
        """What measurements on request draw from."""
        return _drawn(
            task, lambda: generator(self.seed, "ask", task.place.round, task.place.exchange, task.client)
        )

    def report_rng(self, task: ClientTask) -> np.random.Generator:
        """What reports draw from: a separate stream, so that asking for one does not change the training."""
        return _drawn(task, lambda: generator(self.seed, "report", *self._coordinates(task)))

    def dropout_seed(self, task: ClientTask) -> int:
        """For what the model draws while it trains."""
        return torch_seed(self.seed, "dropout", *self._coordinates(task))

    def context(
        self, task: ClientTask, origin: torch.Tensor, state: dict[str, Vector], rng: np.random.Generator
    ) -> ClientContext:
        """What a measurement or a training of this client sees."""
        features, labels = self._on_device(*self.data.client(task.client))
        return ClientContext(
            client=task.client,
            features=features,
            labels=labels,
            classes=self.data.classes,
            model=self.model,
            origin=origin,
            rng=rng,
            training=self.training,
            training_rng=lambda: self.training_order(task),
            lr=task.lr,
            round=task.place.round,
            rounds=task.place.rounds,
            attributes=self.data.client_attributes(task.client),
            attribute_values=self.data.dataset.attribute_values,
            state=state,
            device_times=self._device_times(task.client, len(labels)),
            augment=self._augment(task),
            objective=self.objective,
        )

    def _augment(self, task: ClientTask) -> Callable[[torch.Tensor, int], torch.Tensor] | None:
        """Every step draws from its own stream, so that leaving out a probe's steps changes nothing else."""
        change = self.augmenter
        if change is None:
            return None
        return lambda pictures, step: change(
            pictures, generator(self.seed, AUGMENTATION, *self._coordinates(task), step)
        )

    def _coordinates(self, task: ClientTask) -> tuple[int, int, int]:
        return task.place.round, task.place.iteration, task.client

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


def poisoned_from(data: FederatedData, filters: Sequence[Filter]) -> list[tuple[int, FederatedData]]:
    """What clients train on, and what each poisoning filter makes of it: (first round, data)."""
    result = [(0, data)]
    for step in sorted((step for step in filters if step.poisons), key=lambda step: step.from_round):
        result.append((step.from_round - 1, step.poisoned(result[-1][1])))
    return result


def model_of(movement: torch.Tensor, origin: torch.Tensor, spec: ParameterSpec) -> torch.Tensor:
    """The model that has moved this far from `origin`; counters are already the client's own."""
    model = movement.clone()
    model[spec.averaged] += origin[spec.averaged]
    return model


def _drawn(task: ClientTask, make: Callable[[], np.random.Generator]) -> np.random.Generator:
    # Making a generator takes longer than most measurements: only for those that draw from it.
    return make() if any(signal.draws for signal in task.signals) else _NO_DRAWS


#: Instead of a generator, for signals that declare that they do not draw: using it is an error.
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
