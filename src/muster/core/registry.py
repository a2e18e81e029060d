"""Names for components, and building them from options.

A component registers itself with a decorator in its own file; the registry imports the package's files the
first time that a name is looked up. So a new method is one new file. Installed packages add components with entry
points in the registry's group (`muster.selectors`, …); they are imported only when they are used.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import logging
import pkgutil
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Generic, TypeVar

import pydantic

from muster.core.errors import ConfigError, nearest
from muster.core.modules import object_named

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])


class Registry(Generic[T]):
    """Components of one kind by name."""

    def __init__(self, kind: str, package: str, group: str = "", own: type[T] | None = None) -> None:
        """`own`: subclasses of it are found as "module:Class", too. Only for what servers run: what a config makes
        nodes import is for their owners to say."""
        self.kind, self.package, self.group, self.own = kind, package, group, own
        self._entries: dict[str, Callable[..., T]] = {}
        self._discovered = False
        self._offered: dict[str, EntryPoint] | None = None

    def register(self, name: str) -> Callable[[C], C]:
        def add(component: C) -> C:
            before = self._entries.get(name, component)
            # The same cell run again: the class is another object, and means to be the one before.
            if before is not component and _place(before) != _place(component):
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
        """Most components are in a file of the same name: importing only that one keeps start-up quick."""
        module = f"{self.package}.{name.replace('-', '_')}"
        if name.replace("-", "").isalnum() and importlib.util.find_spec(module) is not None:
            importlib.import_module(module)

    def _of_packages(self) -> dict[str, EntryPoint]:
        """What installed packages offer, by name."""
        if self._offered is None:
            self._offered = {}
            for entry in _installed(self.group) if self.group else ():
                other = self._offered.setdefault(entry.name, entry)
                if other.value != entry.value:
                    raise ConfigError(
                        f"two packages have a {self.kind} '{entry.name}': {_origin(other)} and {_origin(entry)}",
                        fix="uninstall one of them",
                    )
        return self._offered

    def _load(self, name: str) -> None:
        """Import what a package offers under a name."""
        entry = self._of_packages()[name]
        try:
            component = entry.load()
        except Exception as error:  # third-party code may raise anything
            raise ConfigError(
                f"the {self.kind} '{name}' of {_origin(entry)} cannot be imported "
                f"({type(error).__name__}: {error})",
                fix="install another version of that package, or uninstall it",
            ) from error
        if not callable(component):
            raise ConfigError(f"the {self.kind} '{name}' of {_origin(entry)} is a {type(component).__name__}")
        self._entries[name] = component

    def names(self) -> list[str]:
        self._discover()
        return sorted({*self._entries, *self._of_packages()})

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: str) -> bool:
        self._discover()
        return name in self._entries or name in self._of_packages()

    def get(self, name: str) -> Callable[..., T]:
        if not isinstance(name, str):
            raise ConfigError(f"bad name of a {self.kind}: {name!r}", expected=f"one of {', '.join(self.names())}")
        if name not in self._entries:
            self._import_by_name(name)
        if name not in self._entries:
            self._discover()
        if (entry := self._of_packages().get(name)) is not None:
            if name not in self._entries:
                self._load(name)
            elif getattr(self._entries[name], "__module__", "") != entry.module:
                raise ConfigError(
                    f"{_origin(entry)} has a {self.kind} '{name}', which is the name of one of Muster's own",
                    fix="uninstall that package, or ask its authors for another name",
                )
        if name not in self._entries and self._is_own(name):
            return self._class_of(name)
        if name not in self._entries:
            raise ConfigError(
                f"unknown {self.kind} '{name}'",
                expected=nearest(name, self.names()),
                fix="one of your own is named module:Class (docs/own.md)" if self.own is not None else "",
            )
        return self._entries[name]

    def _is_own(self, name: str) -> bool:
        return self.own is not None and ":" in name

    def _class_of(self, name: str) -> Callable[..., T]:
        found = object_named(name, self.kind)
        assert self.own is not None
        if not (isinstance(found, type) and issubclass(found, self.own)):
            raise ConfigError(
                f"'{name}' is not a {self.kind}", expected=f"a class that inherits {self.own.__name__}"
            )
        return found

    def added(self, name: str) -> Callable[..., T] | None:
        """The component of this name, if it is known without looking through the package's files."""
        if name not in self._entries and (name in self._of_packages() or self._is_own(name)):
            try:
                return self.get(name)
            except ConfigError:
                return None
        return self._entries.get(name)

    def name_of(self, component: object) -> str:
        """The registered name of a component (or its class's name, for a user's own component)."""
        cls = type(component)
        return next((name for name, entry in self._entries.items() if entry is cls), cls.__name__)

    def summary(self, name: str) -> str:
        """The first line of the component's docstring; what is wrong with one that cannot be imported."""
        try:
            component = self.get(name)
        except ConfigError as error:
            logging.getLogger(__name__).info("%s", error)
            return f"({error.problem})"
        doc = inspect.getdoc(component) or ""
        return doc.strip().splitlines()[0] if doc.strip() else ""

    def build(
        self, name: str, options: Mapping[str, Any], section: str | None = None, beside: Iterable[str] = ()
    ) -> T:
        """Make the component `name` from options as written in a config file, with errors that name the key.

        `beside`: further keys that the section may have, for the hint when one is unknown.
        """
        return build(self.get(name), options, section or self.kind, beside)


def _place(component: object) -> tuple[object, object]:
    return getattr(component, "__module__", component), getattr(component, "__qualname__", component)


@cache
def _installed(group: str) -> EntryPoints:
    return entry_points(group=group)


def _origin(entry: EntryPoint) -> str:
    return f"the package {entry.dist.name}" if entry.dist is not None else entry.value


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
                f"unknown key '{_dotted(section, key)}' for {_called(component)}",
                expected=nearest(key, known) if known else "no options",
            )
    missing = [n for n, p in allowed.items() if p.default is p.empty and n not in options]
    if missing:
        raise ConfigError(
            f"missing key '{_dotted(section, missing[0])}' for {_called(component)}",
            fix=f"add `{missing[0]} = …` to the section [{section}]",
        )
    hints = _hints(component)
    checked = {key: _checked(value, hints.get(key, Any), _dotted(section, key)) for key, value in options.items()}
    return component(**checked)


def _dotted(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key


def _called(component: object) -> str:
    if isinstance(component, partial):
        return _called(component.func)
    return str(getattr(component, "__name__", type(component).__name__))


def _hints(component: Any) -> dict[str, Any]:
    """The types of the parameters of a class, a function or any other callable."""
    if isinstance(component, partial):
        return _hints(component.func)
    if isinstance(component, type):
        # A dataclass itself: hints of an inherited field are names in the module of the class that declares it.
        of_class = not dataclasses.is_dataclass(component)
        return typing.get_type_hints(getattr(component, "__init__") if of_class else component)  # noqa: B009
    return typing.get_type_hints(component if inspect.isroutine(component) else type(component).__call__)


def _checked(value: Any, hint: Any, where: str) -> Any:
    try:
        adapter = pydantic.TypeAdapter(hint)
    except pydantic.PydanticSchemaGenerationError:
        return value  # a type that only Python code can pass, such as a selector inside another
    try:
        checked = adapter.validate_python(value)
    except pydantic.ValidationError as error:
        raise from_validation(error, where) from None
    if isinstance(value, bool) and type(checked) in (int, float):  # for pydantic, true is 1
        raise ConfigError(f"bad value for '{where}': {value!r}", expected="a number")
    return checked


def from_validation(error: pydantic.ValidationError, section: str = "") -> ConfigError:
    """One clear message from the first thing that pydantic found."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in (section, *first["loc"]) if part != "")
    given = first["input"]
    shown = repr(given) if isinstance(given, str | int | float | list | tuple | dict | None) else str(given)
    return ConfigError(f"bad value for '{where}': {shown}", expected=_expected(first))


#: How pydantic's kinds of errors begin → what was expected, in words.
_WORDS = {
    "int": "an integer",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "string": "a text in quotes",
    "list": "a list",
    "tuple": "a list",
    "dict": "a table of keys and values",
}


def _expected(error: Any) -> str:
    if error["type"] == "literal_error":
        allowed = str(error["ctx"]["expected"])
        close = difflib.get_close_matches(str(error["input"]).lower(), re.findall(r"'([^']+)'", allowed), n=1)
        return f"did you mean '{close[0]}'? Possible: {allowed}" if close else allowed
    kind = next((kind for kind in _WORDS if error["type"].startswith(f"{kind}_") or error["type"] == kind), "")
    return _WORDS.get(kind, str(error["msg"]))
