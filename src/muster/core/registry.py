"""Names for components, and building them from options.

A component registers itself with a decorator in its own file; the registry imports the package's files the
first time that anybody looks. So a new method is one new file.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import pkgutil
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import pydantic

from muster.core.errors import ConfigError, nearest

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])


class Registry(Generic[T]):
    """Components of one kind by name."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind, self.package = kind, package
        self._entries: dict[str, Callable[..., T]] = {}
        self._discovered = False

    def register(self, name: str) -> Callable[[C], C]:
        def add(component: C) -> C:
            if name in self._entries and self._entries[name] is not component:
                raise ValueError(f"two components of kind {self.kind} are called '{name}'")
            self._entries[name] = component
            return component

        return add

    def _discover(self) -> None:
        if self._discovered:
            return
        self._discovered = True
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")

    def _import_by_name(self, name: str) -> None:
        """Most components live in a file of their name: importing only that one keeps the start quick."""
        module = f"{self.package}.{name.replace('-', '_')}"
        if name.replace("-", "").isalnum() and importlib.util.find_spec(module) is not None:
            importlib.import_module(module)

    def names(self) -> list[str]:
        self._discover()
        return sorted(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: str) -> bool:
        self._discover()
        return name in self._entries

    def get(self, name: str) -> Callable[..., T]:
        if not isinstance(name, str):
            raise ConfigError(f"bad name of a {self.kind}: {name!r}", expected=f"one of {', '.join(self.names())}")
        if name not in self._entries:
            self._import_by_name(name)
        if name not in self._entries:
            self._discover()
        if name not in self._entries:
            raise ConfigError(f"unknown {self.kind} '{name}'", expected=nearest(name, self._entries))
        return self._entries[name]

    def name_of(self, component: object) -> str:
        """The registered name of a component (or its class's name, when a user brought it)."""
        cls = type(component)
        return next((name for name, entry in self._entries.items() if entry is cls), cls.__name__)

    def summary(self, name: str) -> str:
        """The first line of the component's docstring."""
        doc = inspect.getdoc(self.get(name)) or ""
        return doc.strip().splitlines()[0] if doc.strip() else ""

    def build(
        self, name: str, options: Mapping[str, Any], section: str | None = None, beside: Iterable[str] = ()
    ) -> T:
        """Make the component `name` from options as they stand in a config file, with errors that name the key.

        `beside`: further keys that the section may have, for the hint when one is unknown.
        """
        return build(self.get(name), options, section or self.kind, beside)


def parameters_of(component: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The options that a component takes: a dataclass's init fields or a function's keyword arguments."""
    return {
        name: parameter
        for name, parameter in inspect.signature(component).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }


def build(component: Callable[..., T], options: Mapping[str, Any], section: str, beside: Iterable[str] = ()) -> T:
    """Call `component` with checked options."""
    allowed = parameters_of(component)
    for key in options:
        if key not in allowed:
            known = [*allowed, *beside]
            raise ConfigError(
                f"unknown key '{section}.{key}' for {component.__name__}",
                expected=nearest(key, known) if known else "no options",
            )
    missing = [n for n, p in allowed.items() if p.default is p.empty and n not in options]
    if missing:
        raise ConfigError(
            f"missing key '{section}.{missing[0]}' for {component.__name__}",
            fix=f"add `{missing[0]} = …` to the section [{section}]",
        )
    # A dataclass's own hints: those of an inherited field are names in the module of the class that declares it.
    of_class = isinstance(component, type) and not dataclasses.is_dataclass(component)
    hints = typing.get_type_hints(getattr(component, "__init__") if of_class else component)  # noqa: B009
    checked = {key: _checked(value, hints.get(key, Any), f"{section}.{key}") for key, value in options.items()}
    return component(**checked)


def _checked(value: Any, hint: Any, where: str) -> Any:
    try:
        adapter = pydantic.TypeAdapter(hint)
    except pydantic.PydanticSchemaGenerationError:
        return value  # a type that only Python code can pass, such as a selector inside another
    try:
        return adapter.validate_python(value)
    except pydantic.ValidationError as error:
        raise from_validation(error, where) from None


def from_validation(error: pydantic.ValidationError, section: str = "") -> ConfigError:
    """One clear message from the first thing that pydantic found."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in (section, *first["loc"]) if part != "")
    return ConfigError(f"bad value for '{where}': {first['input']!r}", expected=first["msg"])
