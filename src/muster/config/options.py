"""What every section of an experiment file may contain: options with types, defaults and the comments of the code.

Nothing is written down twice: names, types and defaults are those of the components' constructors, and what an
option means is the `#:` comment above it.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from muster.config.defaults import COMPONENTS, OPTIONS, taker
from muster.core.registry import parameters_of
from muster.data.own import OWN
from muster.models.base import models
from muster.updates.filters import filters
from muster.world.devices import device_models

#: Stands for "has no default: it must be given".
REQUIRED = inspect.Parameter.empty

#: What a model is told about the data, which no file sets.
_GIVEN = ("input_shape", "classes")

_FIELD = re.compile(r"    (\w+): [^#]*(?:#(?!:)\s*(.*))?$")


@dataclass(frozen=True)
class Option:
    """One key of a section."""

    name: str
    hint: Any
    default: Any
    comment: str

    @property
    def required(self) -> bool:
        return self.default is REQUIRED

    @property
    def type(self) -> str:
        """The type as one would write it."""
        return readable_type(self.hint)


def sections() -> dict[str, tuple[str, dict[str, Callable[..., Any]]]]:
    """Section → the key that names its component, and the components by name.

    Sections whose options are those of one class have the key "" and that class under the name "".
    """
    found: dict[str, tuple[str, dict[str, Callable[..., Any]]]] = {
        section: ("", {"": component}) for section, component in OPTIONS.items()
    }
    for section, (key, registry) in COMPONENTS.items():
        found[section] = (key, {name: taker(section, name) for name in registry})
    found["data"][1][OWN] = taker("data", OWN)
    found["devices"] = ("method", {name: device_models.get(name) for name in device_models})
    found["filters"] = ("method", {name: filters.get(name) for name in filters})
    return found


def sections_with(key: str) -> list[str]:
    """The sections in which a key may stand; those of methods only if no other section has it."""
    own = [section for section, component in OPTIONS.items() if key in parameters_of(component)]
    return own or [
        section
        for section, (naming, components) in sections().items()
        if key == naming or any(key in parameters_of(component) for component in components.values())
    ]


def options_of(component: Callable[..., Any]) -> list[Option]:
    """The options that a component takes, in its own order."""
    hints, comments = _hints(component), _comments(component)
    return [
        Option(name, hints.get(name, Any), _default(component, name, parameter.default), comments.get(name, ""))
        for name, parameter in parameters_of(component).items()
        if not (name in _GIVEN and _is_model(component))
    ]


def _is_model(component: Callable[..., Any]) -> bool:
    return component.__module__.startswith(models.package)


def _default(component: Callable[..., Any], name: str, default: Any) -> Any:
    """A parameter's default; of a dataclass field with a default factory, what that makes."""
    if dataclasses.is_dataclass(component):
        for field in dataclasses.fields(component):
            if field.name == name and field.default_factory is not dataclasses.MISSING:
                return field.default_factory()
    return default


def _hints(component: Callable[..., Any]) -> Mapping[str, Any]:
    of_class = isinstance(component, type) and not dataclasses.is_dataclass(component)
    return typing.get_type_hints(getattr(component, "__init__") if of_class else component)  # noqa: B009


@cache
def _comments(component: Callable[..., Any]) -> Mapping[str, str]:
    """Field → its comment: the `#:` lines above it, otherwise the comment after it."""
    if not isinstance(component, type):
        return {}
    found: dict[str, str] = {}
    for cls in reversed(component.__mro__):
        if cls.__module__.startswith("muster") or dataclasses.is_dataclass(cls):
            found |= dict(_commented_fields(cls))
    return found


def _commented_fields(cls: type) -> Iterator[tuple[str, str]]:
    try:
        lines = inspect.getsource(cls).splitlines()
    except (OSError, TypeError):  # a class that was typed into a console has no source
        return
    above: list[str] = []
    for line in lines:
        if line.strip().startswith("#:"):
            above.append(line.strip()[2:].strip())
        elif field := _FIELD.match(line):
            text = " ".join(above) or (field[2] or "")
            # Markers for checkers are not comments.
            yield field[1], "" if text.startswith(("noqa", "type:")) else text
            above = []
        else:
            above = []


def readable_type(hint: Any) -> str:
    """A type hint in words that a writer of TOML understands."""
    if hint is Any:
        return "any"
    if hint is type(None):
        return "nothing"
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return readable_type(inside[0])
    if origin is typing.Literal:
        return " or ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in inside)
    if origin in (typing.Union, UNION):
        return " or ".join(readable_type(part) for part in inside if part is not type(None))
    if origin in (list, tuple) or (isinstance(origin, type) and issubclass(origin, list | tuple)):
        return f"list of {readable_type(inside[0])}" if inside else "list"
    if origin is not None:
        return "table" if isinstance(origin, type) and issubclass(origin, Mapping) else str(origin.__name__)
    plain = {float: "number", int: "integer", str: "text", bool: "true or false"}
    return plain.get(hint, getattr(hint, "__name__", str(hint)))


#: What `int | None` is.
UNION = type(int | None)
