"""Users' own components that a config names: registered in a script or a notebook, or as "module:name"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from muster.config.defaults import COMPONENTS
from muster.config.experiment import FUNCTIONS
from muster.core.errors import ConfigError
from muster.core.modules import object_named
from muster.core.own_code import content, is_own, own_code
from muster.core.registry import Registry
from muster.training.objectives import objectives
from muster.updates.filters import filters
from muster.world.devices import device_models

#: Section → the keys that may name a component, and where components of that name are.
_NAMED: dict[str, tuple[tuple[str, ...], Registry[Any]]] = {
    **{section: ((key,), registry) for section, (key, registry) in COMPONENTS.items()},
    "objective": (("method",), objectives),
    "filters": (("method",), filters),
    "devices": (("method", "model"), device_models),
}


class OwnComponent(NamedTuple):
    """A component that is neither Muster's nor an installed package's."""

    section: str
    name: str
    component: Callable[..., Any]

    def register(self) -> None:
        """Register it under its name in this process, too."""
        _NAMED[self.section][1].register(self.name)(self.component)


def own_components(config: Mapping[str, Any]) -> list[OwnComponent]:
    """Those that a config names, also inside combinations; `config` as `Experiment.described` gives it."""
    return [
        OwnComponent(section, name, component)
        for section, (keys, registry) in _NAMED.items()
        for name in _names(config.get(section), keys)
        if (component := registry.added(name)) is not None and is_own(component)
    ]


def code_of_names(config: Mapping[str, Any]) -> dict[str, str]:
    """Checksums of the code that a config names and that is not Muster's: changed code makes a different run."""
    codes = {f"{own.section} {own.name}": own_code(own.component) for own in own_components(config)}
    for name in _function_names(config.get("objective")):
        try:
            found = object_named(name, "objective")
        except ConfigError:
            continue  # the run itself says what is wrong with it
        codes[name] = own_code(found) if isinstance(found, FUNCTIONS) else content(found)
    return {name: code for name, code in codes.items() if code}


def _names(value: Any, keys: Iterable[str]) -> list[str]:
    said = [part.get(key) for part in _sections(value) for key in keys]
    return sorted({name for name in said if isinstance(name, str)})


def _sections(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _sections(inner)


def _function_names(objective: Any) -> list[str]:
    """What stands for a loss or a metric as "module:name"."""
    if not isinstance(objective, Mapping):
        return []
    metrics = objective.get("metrics")
    said = [objective.get("loss"), *(metrics.values() if isinstance(metrics, Mapping) else ())]
    return [name for name in said if isinstance(name, str) and ":" in name]
