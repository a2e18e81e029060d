"""From a description to a result: builds the parts, runs the server."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import logging
import math
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import nn

from muster.aggregation.base import Aggregator, aggregators
from muster.config.centralised import pooled
from muster.config.experiment import EngineOptions, EvaluationOptions, Experiment, Section, build_filters
from muster.config.flower import FlowerOptions
from muster.core.errors import CheckpointError, ConfigError, MusterError, OutputError
from muster.core.randomness import generator
from muster.core.registry import build
from muster.data.checks import check_data, check_tokens
from muster.data.federated import Dataset, FederatedData
from muster.data.own import OWN, own_dataset, without_clients
from muster.data.partition.base import Scheme, schemes
from muster.data.sources.base import sources
from muster.data.validation import divide_rest, held_back
from muster.engine.base import Engine
from muster.engine.choice import choose_engine
from muster.engine.local import LocalEngine
from muster.experiment.dry_batch import check_dry_batch
from muster.experiment.extension import Beginning, find_beginning, go_on_from
from muster.experiment.features import with_features
from muster.models.base import build_model
from muster.models.flops import training_flops
from muster.pacing import Pacing, Synchronous, pacings
from muster.privacy.account import Privacy
from muster.results.store import Recorder, Store
from muster.results.store.environment import code_version, environment
from muster.results.store.stops import StopOnRequest
from muster.selection.base import Selector, selectors
from muster.server.clocks import ServerClock
from muster.server.limits import ClientLimits
from muster.server.loop import Observer, Server
from muster.server.origin import Provenance
from muster.server.result import Result
from muster.tracking import tracking
from muster.training.base import LocalAlgorithm, LocalTraining, algorithms
from muster.training.objectives import Classification, Objective, objectives
from muster.updates.filters import Filter
from muster.updates.guard import Guard
from muster.world.availability import Availability, availabilities
from muster.world.devices import Devices, from_config

log = logging.getLogger("muster")

T = TypeVar("T")

#: Where versions before the results store kept a run.
EARLIER_CHECKPOINT = "checkpoint.muster"


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
    _method(experiment.selection, "method", "selection", selectors)
    aggregator = _component(experiment.aggregation, "method", "aggregation", aggregators)
    filters = tuple(step for step in build_filters(experiment.filters) if step.side != "client")
    pacing = _component(experiment.pacing or {"method": "synchronous"}, "method", "pacing", pacings)
    availability = None
    if experiment.availability:
        availability = _component(experiment.availability, "method", "availability", availabilities)
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
    algorithm = _component(experiment.algorithm, "method", "algorithm", algorithms)
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


def run(
    experiment: Experiment,
    workers: int | None = None,
    *,
    out: Path | str | None = None,
    store: Store | Path | str | None = None,
    resume: bool = False,
    extend: bool = False,
    observers: Sequence[Observer] = (),
    make_engine: EngineFactory | None = None,
) -> Result:
    """Run an experiment.

    With a `store` (or the folder of one) every round is kept there, with a checkpoint; `resume` continues where an
    earlier run stopped. `extend` continues after the rounds of a complete or stopped run of the same experiment
    with another number of rounds, if there is one: the result is the same to the bit. `resume` does so, too.

    With `out`, plain result files are written there; without a `store`, it is the store's folder too.
    """
    check_is_experiment(experiment)
    experiment.check()
    experiment = experiment.settled()
    if out is not None:
        checked_folder(Path(out))
    if store is None and out is None:
        return _run(experiment, workers, observers, make_engine)
    # Clients of a real federation are not what they were: whoever wants more rounds of it begins anew.
    extend = (extend or resume) and make_engine is None
    with ExitStack() as stack:
        of_its_own = store is None
        if not isinstance(store, Store):
            store = stack.enter_context(Store(checked_folder(Path(store or str(out)))))
        begun = any(run.done for run in store.runs(fingerprint=experiment.fingerprint))
        beginning = find_beginning(experiment, store) if extend and not begun else None
        if of_its_own and not begun:
            _refuse_other_runs(store, experiment, resume, beginning)
        # Before the run: what its own code changes must not hide them.
        others = store.other_lengths(experiment) if of_its_own else []
        recorder = stack.enter_context(store.recorder(experiment, resume))
        observers = (*observers, StopOnRequest(store.folder, experiment.fingerprint))
        result = recorder.complete_result()
        try:
            if result is None:
                result = _run(experiment, workers, observers, make_engine, recorder=recorder, beginning=beginning)
            if of_its_own and result.complete:  # the folder belongs to one run: what was extended is part of it
                for other in others:
                    if other.rounds < experiment.rounds:
                        store.delete(other)
        except MusterError as error:
            # The cause may be in the rounds before.
            if out is not None and error.result is not None and not isinstance(error, OutputError):
                error.result.save(out)
            raise
    result = _named(result, experiment)
    if out is not None:
        result.save(out)
    return result


def check_is_experiment(value: object) -> None:
    """Refuse what is no experiment, such as a dict of its settings."""
    if not isinstance(value, Experiment):
        raise ConfigError(
            f"the experiment is a {type(value).__name__}",
            expected="a muster.Experiment",
            fix="read a file with muster.load(path), and settings in a dict with muster.experiment.from_dict",
        )


def _run(
    experiment: Experiment,
    workers: int | None,
    observers: Sequence[Observer],
    make_engine: EngineFactory | None,
    *,
    recorder: Recorder | None = None,
    beginning: Beginning | None = None,
) -> Result:
    trackers = tracking(experiment)
    parts = build_parts(experiment, workers, make_engine)
    server = parts.server((*observers, trackers))
    if recorder is not None and beginning is not None:
        log.log(logging.WARNING if beginning.hindrance else logging.INFO, "%s", beginning)
        if not beginning.hindrance:
            go_on_from(beginning, server, recorder, experiment.rounds)
    try:
        with parts.engine, trackers:
            result = _named(server.run(experiment.rounds, recorder), experiment)
            return dataclasses.replace(result, module=parts.module)
    except MusterError as error:
        if server.done:
            # Where the store is the trouble, it may not even have the rounds before.
            with suppress(MusterError):
                error.result = _named(server.result(), experiment)
        raise


def _refuse_other_runs(store: Store, experiment: Experiment, resume: bool, beginning: Beginning | None) -> None:
    """An output folder belongs to one experiment: plain files of a second one would replace the first one's."""
    if (store.folder / EARLIER_CHECKPOINT).exists() and not store.runs(fingerprint=experiment.fingerprint):
        raise CheckpointError(
            f"{store.folder / EARLIER_CHECKPOINT} was written by an earlier version of Muster",
            fix="finish that run with the version that started it, or choose another output folder",
        )
    allowed = {experiment.fingerprint}
    if beginning is not None:
        if beginning.hindrance:
            raise CheckpointError(
                f"{store.folder} holds a run with another number of rounds: {beginning}",
                fix="choose another output folder, and the run begins at round 1 there",
            )
        allowed.add(beginning.run.fingerprint)
    if any(run.done and run.fingerprint not in allowed for run in store.runs()):
        problem = f"{store.folder} holds a run of another experiment (another config, seed or number of rounds)"
        if resume:
            raise CheckpointError(problem, fix="resume with the config that started it, or use another --out")
        raise OutputError(problem, fix="choose another output folder, or keep many runs with --workspace")


def _named(result: Result, experiment: Experiment) -> Result:
    """With what the experiment knows about it; a result that was stored earlier keeps where it comes from."""
    provenance = result.provenance
    if not provenance.fingerprint:
        status = "complete" if result.complete else "stopped"
        provenance = Provenance(
            experiment.fingerprint, status, code_version=code_version(), environment=environment()
        )
    return dataclasses.replace(result, name=experiment.title, config=experiment.described(), provenance=provenance)


def checked_folder(folder: Path) -> Path:
    """The folder, made if need be, or an OutputError if nothing can be written into it."""
    probe = folder / f".muster-write-test-{os.getpid()}"  # runs side by side look at the same folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise OutputError(
            f"cannot write into {folder}: {error.strerror or error}", fix="choose another folder with --out"
        ) from error
    return folder


def build_data(experiment: Experiment) -> FederatedData:
    """The data set, divided among clients."""
    if isinstance(experiment.data, FederatedData | Dataset):
        check_data(experiment.data)
    if isinstance(experiment.data, FederatedData):
        return experiment.data
    section, validation = experiment.data, None
    if isinstance(section, dict):
        section = dict(section)
        validation = section.pop("validation", None)
    dataset = _dataset(section)
    if dataset.name == OWN:
        if validation is not None:
            raise ConfigError(
                'data.validation with data.source = "own": none of the clients\' data is here to be held out',
                fix="leave data.validation out",
            )
        return without_clients(dataset)
    seed, scheme = experiment.seed, experiment.partition
    if isinstance(scheme, dict):
        options = dict(scheme)
        seed = options.pop("seed", experiment.seed)
        if not isinstance(seed, int) or seed < 0:
            raise ConfigError(f"bad value for 'partition.seed': {seed!r}", expected="zero or a positive integer")
        scheme = _component(options, "scheme", "partition", schemes)
    assert isinstance(scheme, Scheme)
    if scheme.needs_classes and dataset.task != "classification":
        raise ConfigError(
            f"{type(scheme).__name__} divides data by the classes of samples, but the task of "
            f"'{dataset.name}' is {dataset.task}",
            fix="set partition.scheme to iid, quantity-skew or natural",
        )
    rng = generator(seed, "partition")
    if validation is None:
        partition, kept_back = scheme.divide(dataset, rng), None
    else:
        kept_back = held_back(len(dataset.train), validation, generator(seed, "validation"))
        partition = divide_rest(scheme, dataset, kept_back, rng)
    return FederatedData(dataset, partition.train, partition.test, kept_back)


def build_objective(section: Section | Objective | Callable[..., Any], dataset: Dataset) -> Objective:
    """What is learnt: an objective, a loss that replaces the task's usual one, or what the task says."""
    if isinstance(section, Objective):
        objective = section
    else:
        options: dict[str, Any] = dict(section) if isinstance(section, dict) else {"loss": section}
        objective = objectives.build(options.pop("method", dataset.task), options, "objective")
    if objective.task != dataset.task:
        raise ConfigError(
            f"the objective {type(objective).__name__} is for {objective.task}, but the task of "
            f"'{dataset.name}' is {dataset.task}",
            fix="name the task where the data are made: muster.data.from_arrays(…, task=…)",
        )
    return objective.resolve()


def build_selector(section: Section | Selector, clients: int, pacing: Pacing | None = None) -> Selector:
    """The selector; `fraction` may say what share of the clients a round has, instead of `clients_per_round`."""
    return _asking(_selector(section, clients), pacing or Synchronous())


def _selector(section: Section | Selector, clients: int) -> Selector:
    if isinstance(section, Selector):
        return _fresh(section)
    options = dict(section)
    name, component = _method(options, "method", "selection", selectors)
    del options["method"]
    if "fraction" in options and "fraction" not in inspect.signature(component).parameters:
        fraction = options.pop("fraction")
        if not isinstance(fraction, int | float) or not 0 < fraction <= 1:
            raise ConfigError(
                f"bad value for 'selection.fraction': {fraction!r}", expected="a share, 0 < share ≤ 1"
            )
        if "clients_per_round" in options:
            raise ConfigError("selection has both fraction and clients_per_round", fix="keep one of them")
        options["clients_per_round"] = max(1, math.floor(fraction * clients + 1e-9))
    return selectors.build(name, options, "selection", beside=["method", "fraction"])


def _asking(selector: Selector, pacing: Pacing) -> Selector:
    """The selector, choosing as many clients as the pacing asks where it uses the answers of fewer."""
    count = getattr(selector, "clients_per_round", None)
    wanted = count if isinstance(count, int) and count >= 1 else 1
    if (asked := pacing.asked(wanted)) == wanted:
        return selector
    if count is None or not dataclasses.is_dataclass(selector):
        raise ConfigError(
            f"this pacing asks more clients than it uses, but {type(selector).__name__} has no clients_per_round "
            "that it could raise",
            fix="choose another selection, or another pacing",
        )
    raised: Selector = dataclasses.replace(selector, clients_per_round=asked)
    return raised


def _dataset(section: Section | Dataset) -> Dataset:
    if isinstance(section, Dataset):
        return section
    if section.get("source") == OWN:
        return build(own_dataset, {key: value for key, value in section.items() if key != "source"}, "data")
    options = dict(section)
    normalise = options.pop("normalise", None)
    dataset: Dataset = _component(options, "source", "data", sources)
    return dataset if normalise is None else dataset.normalised(normalise)


def build_network(experiment: Experiment, data: FederatedData) -> nn.Module:
    """The network before training."""
    shape, classes = data.dataset.sample_shape, data.classes
    if isinstance(experiment.model, dict):
        options = dict(experiment.model)
        name = options.pop("name", None)
        if name is None:
            raise ConfigError("missing key 'model.name'", fix="for example name = 'mlp'")
        module = build_model(name, shape, classes, options, seed=experiment.seed)
    else:
        module = build_model(experiment.model, shape, classes, seed=experiment.seed)
    if vocabulary := getattr(module, "vocabulary", ""):
        check_tokens(data.dataset, vocabulary, module.token_count)  # type: ignore[arg-type]
    elif isinstance(experiment.model, dict) and data.dataset.vocabulary and not data.dataset.tokens:
        raise ConfigError(
            f"samples of '{data.dataset.name}' hold ids of word pieces, which the model '{name}' would take for "
            "numbers",
            expected="a model that takes ids, such as late-fusion with text_encoder = 'bert'",
            fix="choose such a model, or another data.encoder",
        )
    return module


def _method(section: Any, key: str, title: str, registry: Any) -> tuple[str, Any]:
    """The name that a section gives and the component behind it."""
    if not isinstance(section, dict):
        return type(section).__name__, type(section)
    if key not in section:
        raise ConfigError(f"missing key '{title}.{key}'", expected=", ".join(registry.names()))
    return section[key], registry.get(section[key])


def _component(section: Any, key: str, title: str, registry: Any) -> Any:
    if not isinstance(section, dict):
        return _fresh(section)
    name, _ = _method(section, key, title, registry)
    return registry.build(name, {k: v for k, v in section.items() if k != key}, title, beside=[key])


def _fresh(component: T) -> T:
    """A copy for this run alone: what a selector remembers of one run must not change the next."""
    return copy.deepcopy(component)


__all__ = [
    "Ingredients",
    "Parts",
    "build_data",
    "build_ingredients",
    "build_parts",
    "build_selector",
    "run",
]
