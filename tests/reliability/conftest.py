"""The programs of `make fuzz` and `make chaos`, as modules."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def tool(monkeypatch: Any) -> Callable[[str], ModuleType]:
    """Loads a program of `tools` with its own modules."""

    def load(name: str) -> ModuleType:
        monkeypatch.setattr(sys, "path", [str(TOOLS / name), *sys.path])
        monkeypatch.chdir(TOOLS.parent)
        spec = importlib.util.spec_from_file_location(f"{name}_program", TOOLS / name / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)  # its dataclasses look for it
        spec.loader.exec_module(module)
        return module

    return load
