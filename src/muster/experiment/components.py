"""The single parts of an experiment, each made from its section: data, objective, network, selector, methods."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from muster.config.experiment import Experiment, Section
from muster.core.errors import ConfigError
from muster.core.randomness import generator
from muster.core.registry import build
from muster.data.checks import check_data, check_picture, check_tokens
from muster.data.federated import Dataset, FederatedData
from muster.data.own import OWN, own_dataset, without_clients
from muster.data.partition.base import Scheme, schemes
from muster.data.sources.base import sources
from muster.data.validation import divide_rest, held_back
from muster.models.base import build_model
from muster.pacing import Pacing, Synchronous
from muster.selection.base import Selector, selectors
from muster.training.objectives import Objective, objectives

T = TypeVar("T")


def build_data(experiment: Experiment) -> FederatedData:
    """The data set, divided among clients."""
    if isinstance(experiment.data, FederatedData | Dataset):
        check_data(experiment.data)
    if isinstance(experiment.data, FederatedData):
        _check_not_partitioned(experiment)
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
        scheme = build_component(options, "scheme", "partition", schemes)
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


def _check_not_partitioned(experiment: Experiment) -> None:
    """Refuse a partition of data that has its clients already: it would be passed over in silence."""
    data, scheme = experiment.data, experiment.partition
    assert isinstance(data, FederatedData)
    if scheme != Experiment().partition and (not isinstance(scheme, dict) or scheme.get("scheme") != "natural"):
        said = scheme.get("scheme") if isinstance(scheme, dict) else type(scheme).__name__
        raise ConfigError(
            f"the data has its {data.clients} clients already, and partition says to divide it ({said})",
            fix="leave partition out; or make the data without clients, so that there is something to divide",
        )


def _dataset(section: Section | Dataset) -> Dataset:
    if isinstance(section, Dataset):
        return section
    if section.get("source") == OWN:
        return build(own_dataset, {key: value for key, value in section.items() if key != "source"}, "data")
    options = dict(section)
    normalise = options.pop("normalise", None)
    dataset: Dataset = build_component(options, "source", "data", sources)
    return dataset if normalise is None else dataset.normalised(normalise)


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
    if isinstance(image_shape := getattr(module, "image_shape", None), tuple):
        check_picture(data.dataset, image_shape)
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


def build_selector(section: Section | Selector, clients: int, pacing: Pacing | None = None) -> Selector:
    """The selector; `fraction` may say what share of the clients a round has, instead of `clients_per_round`."""
    return _asking(_selector(section, clients), pacing or Synchronous())


def _selector(section: Section | Selector, clients: int) -> Selector:
    if isinstance(section, Selector):
        return _fresh(section)
    options = dict(section)
    name, component = named_method(options, "method", "selection", selectors)
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


def build_component(section: Any, key: str, title: str, registry: Any) -> Any:
    """The component that a section describes, new for this run."""
    if not isinstance(section, dict):
        return _fresh(section)
    name, _ = named_method(section, key, title, registry)
    return registry.build(name, {k: v for k, v in section.items() if k != key}, title, beside=[key])


def named_method(section: Any, key: str, title: str, registry: Any) -> tuple[str, Any]:
    """The name that a section gives and the component behind it."""
    if not isinstance(section, dict):
        return type(section).__name__, type(section)
    if key not in section:
        raise ConfigError(
            f"missing key '{title}.{key}'",
            expected=", ".join(registry.names()),
            fix=f'add {key} = "…" to the section [{title}]: its other keys are options of what is named there',
        )
    return section[key], registry.get(section[key])


def _fresh(component: T) -> T:
    """A copy for this run alone: what a selector remembers of one run must not change the next."""
    return copy.deepcopy(component)
