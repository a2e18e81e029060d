"""Numbers out of range are refused, and the range is the one that the message states, up to its ends."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from muster.aggregation import aggregators
from muster.core.errors import ConfigError
from muster.core.registry import Registry, parameters_of
from muster.selection import selectors
from muster.server.testing import FakeFederation
from muster.updates.attacks.base import attack_names
from muster.updates.filters import filters

POPULATION = FakeFederation(40).population
#: How an expectation begins → what lies within. The first that fits counts.
WITHIN: dict[str, Callable[[float], bool]] = {
    "at least -1": lambda value: value >= -1,
    "1 to 40": lambda value: 1 <= value <= 40,
    "a class, 0 to 3": lambda value: 0 <= value <= 3,
    "a finite number": math.isfinite,
    "0 to 100": lambda value: 0 <= value <= 100,
    "0 to 1": lambda value: 0 <= value <= 1,
    "above 0, at most 1": lambda value: 0 < value <= 1,
    "a share in (0, 1]": lambda value: 0 < value <= 1,
    "at least 0, below 0.5": lambda value: 0 <= value < 0.5,
    "at least 0, below 1": lambda value: 0 <= value < 1,
    "above 1": lambda value: value > 1,
    "1 to inf": lambda value: value >= 1,
    "at least 1": lambda value: value >= 1,
    "both at least 1": lambda value: value >= 1,
    "at most 1": lambda value: value <= 1,
    "at least 2": lambda value: value >= 2,
    "0 to inf": lambda value: value >= 0,
    "0 or more": lambda value: value >= 0,
    "at least 0": lambda value: value >= 0,
    "both at least 0": lambda value: value >= 0,
    "zero or a positive number": lambda value: value >= 0,
    "a positive number": lambda value: value > 0,
    "positive": lambda value: value > 0,
}
WHOLE = (-2, -1, 0, 1, 2, 3, 100, 101)
ALSO = (-1e-9, 1e-9, 0.5 - 1e-9, 0.5, 1 - 1e-9, 1 + 1e-9, 1.5, 2 - 1e-9, 100 + 1e-9, math.nan)
NEEDED = {"clients_per_round": 4, "clients": (1,), "norm": 1.0}
CASES = [
    (registry, name, key)
    for registry, names in (
        (selectors, selectors),
        (aggregators, aggregators),
        (filters, [*attack_names(), "clip"]),
    )
    for name in names
    for key, option in parameters_of(registry.get(name)).items()
    if type(option.default) in (int, float) or (name, key) == ("clip", "norm")
    # Their messages are about several options at once.
    if name not in ("mix", "fedpns") and key != "deadline"
]


def refusals(registry: Registry[Any], name: str, key: str) -> dict[float, str]:
    """What is said of each value; "" where it is accepted."""
    made, options = registry.get(name), parameters_of(registry.get(name))
    unset = [other for other, option in options.items() if option.default in (inspect.Parameter.empty, ())]
    needed = {other: NEEDED[other] for other in unset if other in NEEDED}
    said = {}
    for value in WHOLE + (() if type(options[key].default) is int else ALSO):
        try:
            made(**(needed | {key: value})).check(POPULATION)
            said[value] = ""
        except ConfigError as error:
            said[value] = error.expected or error.fix
    return said


def range_of(words: str) -> Callable[[float], bool] | None:
    fitting = (within for start, within in WITHIN.items() if re.match(rf"{re.escape(start)}(?![\d.])", words))
    return next(fitting, None)


@pytest.mark.parametrize(("registry", "name", "key"), CASES, ids=[f"{name}.{key}" for _, name, key in CASES])
def test_the_range_is_the_one_that_the_message_states(registry: Registry[Any], name: str, key: str) -> None:
    said = refusals(registry, name, key)
    ranges = {words: within for words in said.values() if words and (within := range_of(words)) is not None}
    assert ranges, "no number is refused"
    for value, words in said.items():
        if words in ranges:
            assert not ranges[words](value), f"{value} is refused"
        elif not words:
            assert all(within(value) for within in ranges.values()), f"{value} is accepted"
