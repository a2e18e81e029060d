"""Registering and building: what people do twice, and what they pass instead of a class."""

from __future__ import annotations

import functools
import sys

import pytest

from muster.config.own_components import _NAMED
from muster.core.errors import ConfigError
from muster.core.registry import Registry, build


def made_in_a_cell(qualname: str = "Mine") -> type:
    return type("Mine", (), {"__module__": "__main__", "__qualname__": qualname})


def test_a_cell_that_is_run_again_replaces_what_it_registered():
    registry: Registry[object] = Registry("thing", "muster.core")
    first, second = made_in_a_cell(), made_in_a_cell()
    registry.register("mine")(first)
    registry.register("mine")(second)
    assert registry.get("mine") is second
    with pytest.raises(ValueError, match="two components of kind thing are called 'mine'"):
        registry.register("mine")(made_in_a_cell("Other"))


class Maker:
    def __call__(self, width: int, depth: int = 1) -> tuple[int, int]:
        return width, depth


@pytest.mark.parametrize("component", [Maker(), functools.partial(Maker(), depth=1), Maker().__call__])
def test_whatever_can_be_called_is_built_with_checked_options(component):
    assert build(component, {"width": 3}, "model") == (3, 1)
    with pytest.raises(ConfigError, match=r"unknown key 'model.widht' for (Maker|__call__)"):
        build(component, {"widht": 3}, "model")
    with pytest.raises(ConfigError, match=r"missing key 'model.width' for (Maker|__call__)"):
        build(component, {}, "model")
    with pytest.raises(ConfigError, match=r"bad value for 'model.width'"):
        build(component, {"width": "wide"}, "model")


class Thing:
    def __init__(self, size: int = 1) -> None:
        self.size = size


def test_a_class_of_ones_own_is_found_by_its_module(tmp_path, monkeypatch):
    (tmp_path / "my_things.py").write_text(
        f"from {__name__} import Thing\nclass Large(Thing): pass\nclass Other: pass\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    registry: Registry[Thing] = Registry("thing", "muster.core", own=Thing)
    built = registry.build("my_things:Large", {"size": 3})
    assert (type(built).__name__, built.size) == ("Large", 3)
    assert registry.added("my_things:Large") is type(built)
    with pytest.raises(ConfigError, match=r"(?s)has no Larg\b.*did you mean 'Large'"):
        registry.get("my_things:Larg")
    with pytest.raises(ConfigError, match=r"(?s)'my_things:Other' is not a thing.*inherits Thing"):
        registry.get("my_things:Other")
    with pytest.raises(ConfigError, match="module:Class"):
        registry.get("large")


def test_only_registries_that_say_so_import_what_a_name_says():
    """A node's owner must not have to trust what a server's experiment names."""
    closed: Registry[object] = Registry("thing", "muster.core")
    with pytest.raises(ConfigError, match="unknown thing 'os:system'"):
        closed.get("os:system")
    assert closed.added("os:system") is None
    assert [name for name, (_, registry) in _NAMED.items() if registry.own] == ["selection", "aggregation"]
