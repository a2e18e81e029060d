"""Modules of a package as its attributes: `muster.selection.terraform` without an import of its own."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from types import ModuleType


def imported_when_used(package: str) -> Callable[[str], ModuleType]:
    """A package's `__getattr__`: imports a module the first time that somebody looks for it."""

    def find(name: str) -> ModuleType:
        module = f"{package}.{name}"
        if name.startswith("_") or importlib.util.find_spec(module) is None:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return importlib.import_module(module)

    return find
