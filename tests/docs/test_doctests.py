"""The examples in docstrings run, and every protocol has one."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import muster
from muster.aggregation.base import Aggregator
from muster.data.partition.base import Scheme
from muster.engine.base import Engine
from muster.pacing.base import Pacing
from muster.selection.base import Selector
from muster.signals.base import Signal
from muster.tracking.base import Tracker
from muster.training.augmentation import Operation
from muster.training.base import LocalAlgorithm
from muster.training.objectives.base import Objective
from muster.updates.attacks.base import Attack
from muster.updates.filters import Filter
from muster.world.availability.base import Availability
from muster.world.devices.base import DeviceModel

PACKAGE = Path(muster.__file__).parent
#: Modules with examples, by name.
MODULES = sorted(
    ".".join(("muster", *path.relative_to(PACKAGE).with_suffix("").parts))
    for path in PACKAGE.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


PROTOCOLS = [
    *(Selector, Aggregator, Signal, LocalAlgorithm, Objective, Engine),
    *(Filter, Attack, Pacing, Scheme, Availability, DeviceModel, Operation, Tracker),
]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_has_an_example(protocol):
    assert doctest.DocTestFinder(recurse=False).find(protocol)[0].examples


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.attempted > 0
    assert outcome.failed == 0
