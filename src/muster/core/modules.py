"""A package's modules and names as its attributes, imported when they are first used.

So `muster.selection.terraform` needs no separate import, and `import muster` does not load PyTorch.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Callable
from importlib.abc import InspectLoader
from typing import Any

from muster.core.errors import ConfigError


def imported_when_used(
    package: str, *, classes: bool = False, **exports: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`.

    `exports` says which module has a name: `Server="muster.server.loop"`.
    With `classes`, the classes of the package's modules are found by their names too, whichever file they are in.
    """

    def find(name: str) -> Any:
        if name in exports:
            return getattr(importlib.import_module(exports[name]), name)
        if not name.startswith("_"):
            module = f"{package}.{name}"
            if importlib.util.find_spec(module) is not None:
                return importlib.import_module(module)
            if classes and name[0].isupper() and (found := _class_in(package, name)) is not None:
                return found
        raise AttributeError(f"module '{package}' has no attribute '{name}'")

    def names() -> list[str]:
        """For completion: what can be had, without importing any of it."""
        own = vars(sys.modules[package])
        modules = [module for module in _modules(package) if not module.startswith("_")]
        found = {*own.get("__all__", ()), *(name for name in own if name.startswith("__")), *exports, *modules}
        if classes:
            found.update(*(_class_names(f"{package}.{module}") for module in modules))
        return sorted(found)

    return find, names


def _modules(package: str) -> list[str]:
    return [found.name for found in pkgutil.iter_modules(importlib.import_module(package).__path__)]


def _class_names(module: str) -> list[str]:
    """The public classes of a module, by its source alone."""
    loader = getattr(importlib.util.find_spec(module), "loader", None)
    source = loader.get_source(module) if isinstance(loader, InspectLoader) else None
    return re.findall(r"^class ([A-Z]\w*)", source or "", flags=re.MULTILINE)


def _class_in(package: str, name: str) -> type | None:
    """The class of this name in one of the package's modules; the module of the same name is tried first."""
    likely = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    for module in sorted(_modules(package), key=lambda module: (module != likely, module)):
        where = f"{package}.{module}"
        found = getattr(importlib.import_module(where), name, None)
        if isinstance(found, type) and found.__module__ == where:
            return found
    return None


def object_named(name: str, where: str) -> Any:
    """What "module:name" stands for; the current folder is searched too. `where` is the key that has the name."""
    module, colon, path = name.partition(":")
    if not (colon and module and path):
        raise ConfigError(f"bad value for '{where}': {name!r}", expected="module:name, such as mylosses:focal")
    try:
        found: Any = _imported(module)
    except Exception as error:  # third-party code may raise anything
        raise ConfigError(
            f"'{where}': the module {module} cannot be imported ({type(error).__name__}: {error})",
            fix="install its package, or start Muster in the folder that it is in",
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            close = difflib.get_close_matches(part, dir(found), n=1)
            raise ConfigError(
                f"'{where}': the module {module} has no {path}",
                expected=f"did you mean '{close[0]}'?" if close else "",
            )
        found = getattr(found, part)
    return found


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        here = os.getcwd()
        if error.name != module.partition(".")[0] or here in sys.path:
            raise
        # Installed programs do not look for modules where they are started.
        sys.path.insert(0, here)
        return importlib.import_module(module)
