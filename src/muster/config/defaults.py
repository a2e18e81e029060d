"""All settings of a run, given or not: a config's sections with the defaults that they rely on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from muster.aggregation.base import aggregators
from muster.config.experiment import CheckpointOptions, EngineOptions, EvaluationOptions, plain_setting
from muster.config.flower import FlowerOptions
from muster.core.errors import ConfigError
from muster.core.registry import Registry, parameters_of
from muster.data.own import OWN, own_dataset
from muster.data.partition.base import schemes
from muster.data.sources.base import sources
from muster.models.base import models
from muster.pacing import pacings
from muster.privacy.account import Privacy
from muster.selection.base import selectors
from muster.training.base import LocalTraining, algorithms
from muster.updates.guard import Guard
from muster.world import devices
from muster.world.availability import availabilities

#: Sections whose options are those of one class.
OPTIONS: dict[str, Callable[..., Any]] = {
    "training": LocalTraining,
    "evaluation": EvaluationOptions,
    "guard": Guard,
    "engine": EngineOptions,
    "flower": FlowerOptions,
    "checkpoint": CheckpointOptions,
    "privacy": Privacy,
}
#: Sections that name a component: under which key, and where components of that name are.
COMPONENTS: dict[str, tuple[str, Registry[Any]]] = {
    "data": ("source", sources),
    "partition": ("scheme", schemes),
    "model": ("name", models),
    "algorithm": ("method", algorithms),
    "selection": ("method", selectors),
    "aggregation": ("method", aggregators),
    "availability": ("method", availabilities),
    "pacing": ("method", pacings),
}
#: Sections that have no effect when they are empty.
_ABSENT_IF_EMPTY = ("availability", "devices", "pacing", "privacy")


def with_defaults(config: Mapping[str, Any], sections: Iterable[str]) -> dict[str, Any]:
    """The config with these sections complete, as far as their components are known here."""
    complete = dict(config)
    for section in sections:
        said = config.get(section)
        if isinstance(said, Mapping) and "object" not in said and (said or section not in _ABSENT_IF_EMPTY):
            complete[section] = {**_unsaid(section, said), **said}
    return complete


def _unsaid(section: str, said: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        name = _named(section, said)
        return _defaults(section, name) if isinstance(name, str) else {}
    except ConfigError:  # a component that was registered elsewhere: what it takes is not known here
        return {}


def _named(section: str, said: Mapping[str, Any]) -> Any:
    """The component that a section names; "": its options are those of one class; None: nothing is known of it."""
    if section in OPTIONS:
        return ""
    if section == "devices":
        return devices.method_of(said)
    return said.get(COMPONENTS[section][0]) if section in COMPONENTS else None


@cache
def _defaults(section: str, name: str) -> Mapping[str, Any]:
    found = {
        key: plain_setting(parameter.default)
        for key, parameter in parameters_of(taker(section, name)).items()
        if parameter.default is not parameter.empty
    }
    return {"method": name, **found} if section == "devices" else found


def taker(section: str, name: str) -> Callable[..., Any]:
    """What takes the options of a section."""
    if section in OPTIONS:
        return OPTIONS[section]
    if section == "devices":
        return devices.model(name)
    if (section, name) == ("data", OWN):
        return own_dataset
    _, registry = COMPONENTS[section]
    return registry.get(name)
