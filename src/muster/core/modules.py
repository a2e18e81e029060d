"""A package's modules and names as its attributes, imported the first time that they are used.

So `muster.selection.terraform` needs no import of its own, and `import muster` does not load PyTorch.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any


def imported_when_used(package: str, **exports: str) -> Callable[[str], Any]:
    """A package's `__getattr__`. `exports` says which module has a name: `Server="muster.server.loop"`."""

    def find(name: str) -> Any:
        if name in exports:
            return getattr(importlib.import_module(exports[name]), name)
        module = f"{package}.{name}"
        if name.startswith("_") or importlib.util.find_spec(module) is None:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return importlib.import_module(module)

    return find
