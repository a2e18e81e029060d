"""From a description to the parts of a run: everything built and checked, nothing started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from muster.aggregation.base import Aggregator, aggregators
from muster.config.centralised import pooled
from muster.config.experiment import EngineOptions, EvaluationOptions, Experiment, build_filters
from muster.config.flower import FlowerOptions
from muster.core.errors import ConfigError
from muster.core.registry import build
from muster.data.federated import FederatedData
from muster.engine.base import Engine
from muster.engine.choice import choose_engine
from muster.engine.local import LocalEngine
from muster.experiment.components import (
    build_component,
    build_data,
    build_network,
    build_objective,
    build_selector,
    named_method,
)
from muster.experiment.dry_batch import check_dry_batch
from muster.experiment.features import with_features
from muster.models.flops import training_flops
from muster.pacing import Pacing, pacings
from muster.privacy.account import Privacy
from muster.selection.base import Selector, selectors
from muster.server.clocks import ServerClock
from muster.server.limits import ClientLimits
from muster.server.loop import Observer, Server
from muster.training.base import LocalAlgorithm, LocalTraining, algorithms
from muster.training.objectives import Classification, Objective
from muster.updates.filters import Filter
from muster.updates.guard import Guard
from muster.world.availability import Availability, availabilities
from muster.world.devices import Devices, from_config


@dataclass(frozen=True)
class Ingredients:
    """What an engine is made of: which client has which data, the model, how clients train."""

    experiment: Experiment
    data: FederatedData
    module: nn.Module
    training: LocalTraining
    algorithm: LocalAlgorithm
    devices: Devices | None
    options: EngineOptions
    #: What clients do to their updates before they send them.
    filters: tuple[Filter, ...] = ()
    #: What clients learn.
    objective: Objective = Classification()  # noqa: RUF009 (frozen)


EngineFactory = Callable[[Ingredients], Engine]


@dataclass
class Parts:
    """Everything that an experiment is made of, built but not started."""

    experiment: Experiment
    data: FederatedData
    selector: Selector
    aggregator: Aggregator
    engine: Engine
    guard: Guard
    #: Of the server's side; the engine has those of the clients.
    filters: tuple[Filter, ...]
    evaluation: EvaluationOptions
    availability: Availability | None
    devices: Devices | None
    pacing: Pacing
    privacy: Privacy | None
    #: The network as it is before training.
    module: nn.Module
    limits: ClientLimits

    def server(self, observers: Sequence[Observer] = (), clock: ServerClock | None = None) -> Server:
        return Server(
            self.selector,
            self.aggregator,
            self.engine,
            seed=self.experiment.seed,
            guard=self.guard,
            filters=self.filters,
            evaluate_every=self.evaluation.every,
            availability=self.availability,
            devices=self.devices,
            pacing=self.pacing,
            privacy=self.privacy,
            limits=self.limits,
            clock=clock,
            observers=observers,
        )


def build_parts(
    experiment: Experiment, workers: int | None = None, make_engine: EngineFactory | None = None
) -> Parts:
    """Build data, model, methods and engine; every mistake in the description shows here, before round 1.

    `make_engine` brings clients from elsewhere (a Flower federation); without it they run on this machine.
    """
    experiment.check()
    experiment = experiment.as_run()
    if make_engine is not None and experiment.centralised:
        raise ConfigError("centralised training has no clients elsewhere", fix="run it with `muster run`")
    guard = build(Guard, experiment.guard, "guard")
    evaluation = build(EvaluationOptions, experiment.evaluation, "evaluation")
    privacy = build(Privacy, experiment.privacy, "privacy") if experiment.privacy else None
    limits = build(ClientLimits, experiment.limits, "limits")
    build(FlowerOptions, experiment.flower, "flower").check()
    # Methods before data: a misspelt name should not cost a decoding.
    named_method(experiment.selection, "method", "selection", selectors)
    aggregator = build_component(experiment.aggregation, "method", "aggregation", aggregators)
    filters = tuple(step for step in build_filters(experiment.filters) if step.side != "client")
    pacing = build_component(experiment.pacing or {"method": "synchronous"}, "method", "pacing", pacings)
    availability = None
    if experiment.availability:
        availability = build_component(experiment.availability, "method", "availability", availabilities)
    ingredients = build_ingredients(experiment)
    data, devices = ingredients.data, ingredients.devices
    filters = tuple(step.settled(data.clients, experiment.seed) for step in filters)
    if make_engine is None:
        if not data.clients:
            raise ConfigError(
                'the clients bring their own data (data.source = "own"): none of them is on this machine',
                fix="take the experiment to a Flower federation with `muster flower new`",
            )
        selector = build_selector(experiment.selection, data.clients, pacing)
        engine: Engine = local_engine(ingredients, workers)
    else:
        engine = make_engine(ingredients)
        selector = build_selector(experiment.selection, engine.population.clients, pacing)
    return Parts(
        experiment,
        data,
        selector,
        aggregator,
        engine,
        guard,
        filters,
        evaluation,
        availability,
        devices,
        pacing,
        privacy,
        ingredients.module,
        limits,
    )


def build_ingredients(experiment: Experiment) -> Ingredients:
    """Data, model and local training: what the clients' side of an experiment consists of."""
    experiment = experiment.as_run()
    options = build(EngineOptions, experiment.engine, "engine")
    training = build(LocalTraining, experiment.training, "training")
    training.check()
    algorithm = build_component(experiment.algorithm, "method", "algorithm", algorithms)
    built = build_filters(experiment.filters)
    data = pooled(build_data(experiment)) if training.centralised else build_data(experiment)
    if experiment.devices and not data.clients:
        raise ConfigError(
            "a model of devices needs clients that are known in advance",
            fix='leave [devices] out where data.source = "own"',
        )
    filters = tuple(step.settled(data.clients, experiment.seed) for step in built if step.side == "client")
    objective = build_objective(experiment.objective, data.dataset)
    module = build_network(experiment, data)
    check_dry_batch(module, data, training, objective)
    devices = None
    if experiment.devices:
        sample, _ = data.tensors(data.dataset.train, np.zeros(1, dtype=np.int64))
        devices = from_config(
            experiment.devices, data.clients, experiment.seed, lambda: training_flops(module, sample)
        )
    return Ingredients(experiment, data, module, training, algorithm, devices, options, filters, objective)


def local_engine(ingredients: Ingredients, workers: int | None = None) -> LocalEngine:
    """All clients on this machine, with the engine that the experiment asks for or that suits it best."""
    options = ingredients.options
    workers = options.workers if workers is None else workers
    data, module = with_features(
        ingredients.data, ingredients.module, obstacle=_why_samples_stay(ingredients), workers=workers
    )
    return choose_engine(
        options.kind,
        data,
        module,
        ingredients.training,
        ingredients.algorithm,
        seed=ingredients.experiment.seed,
        workers=workers,
        device=options.device,
        devices=ingredients.devices,
        filters=ingredients.filters,
        objective=ingredients.objective,
        client_memory=options.client_memory * 1024**2,
        task_deadline=options.task_deadline,
    )


def _why_samples_stay(ingredients: Ingredients) -> str:
    """Why clients must have the samples themselves, not what a frozen part of the network makes of them."""
    if ingredients.training.augmentation:
        return "training.augmentation changes samples anew every time"
    if any(step.poisons for step in ingredients.filters):
        return "attackers change samples"
    return ""
