"""Registering and building: what people do twice, and what they pass instead of a class."""

from __future__ import annotations

import functools

import pytest

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
